// Package management serves the management API: it turns HTTP requests into
// calls of the fleet and what the fleet says into JSON, problems and event
// streams. It decides nothing about machines. It must not know drivers,
// stores, A2A or where tokens come from; the principal of a request is in its
// context, put there by auth.
package management

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/mux"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
)

// Instances makes, finds and changes instances. A ref is an id or a name.
// Errors carry an *instance.Fault where a caller or an operator can act.
type Instances interface {
	Create(ctx context.Context, req fleet.CreateRequest) (fleet.Operation, error)
	Get(ctx context.Context, ref string) (fleet.View, error)
	List(ctx context.Context, f fleet.Filter) (fleet.Page, error)
	Delete(ctx context.Context, ref string, ifGeneration int64) (fleet.Operation, error)
	Act(ctx context.Context, ref string, a fleet.Action, o fleet.ActOptions) (fleet.Operation, error)
}

// Operations knows the long requests.
type Operations interface {
	Operation(ctx context.Context, id string) (fleet.Operation, error)
	Operations(ctx context.Context, f fleet.OperationFilter) (fleet.OperationPage, error)
	// Watch sends the present state at once, then every change. The channel
	// is closed after the final state or when ctx ends.
	Watch(ctx context.Context, id string) (<-chan fleet.Operation, error)
}

// Guests reaches into machines.
type Guests interface {
	// PutArchive unpacks a tar stream below a directory of the guest.
	PutArchive(ctx context.Context, ref, path string, tar io.Reader) (entries int, bytes int64, err error)
	Log(ctx context.Context, ref string) (fleet.Log, error)
}

// Host describes this host.
type Host interface {
	Facts(ctx context.Context) (fleet.HostFacts, error)
}

// Catalog holds the loadouts known by name.
type Catalog interface {
	// Names lists them, sorted.
	Names() []string
	// Lookup finds documents, as loadouts.Resolve asks for them. A missing
	// one is an error that is fs.ErrNotExist.
	Lookup(ref string) (data []byte, name string, err error)
}

// Config is what New needs. Log may be nil, and so may Catalog, which means
// the loadouts that come with this system.
type Config struct {
	Instances  Instances
	Operations Operations
	Guests     Guests
	Host       Host
	Catalog    Catalog
	Log        *slog.Logger
	// BaseURL is how clients reach this server, such as
	// "http://127.0.0.1:8420"; empty takes it from each request.
	BaseURL string
	// MaxArchive bounds an uploaded tar stream in bytes; 0 means 16 GiB.
	MaxArchive int64
	// Heartbeat is how often a silent event stream shows that it lives;
	// 0 means 15 seconds.
	Heartbeat time.Duration
	// Stall is how long a client may keep a stream from moving;
	// 0 means one minute.
	Stall time.Duration
}

const (
	maxRequest        = 8 << 20 // bytes of a JSON body
	defaultMaxArchive = 16 << 30
	defaultHeartbeat  = 15 * time.Second
	defaultStall      = time.Minute
)

// api implements the generated ServerInterface, one file for each noun.
type api struct {
	Config
}

var _ managementv1.ServerInterface = (*api)(nil)

// New returns the handler for everything below managementv1.BasePath. It
// expects whole paths, so mount it without stripping them, behind auth.
func New(c Config) http.Handler {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxArchive == 0 {
		c.MaxArchive = defaultMaxArchive
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.Stall == 0 {
		c.Stall = defaultStall
	}
	if c.Catalog == nil {
		c.Catalog = shipped{}
	}
	c.BaseURL = strings.TrimRight(c.BaseURL, "/")
	a := &api{Config: c}

	// Paths are matched as they are: a cleaned one would be answered with a
	// redirect, which loses the body of a POST.
	router := mux.NewRouter().SkipClean(true)
	router.NotFoundHandler = http.HandlerFunc(a.noRoute)
	router.MethodNotAllowedHandler = a.wrongMethod(router)
	router.HandleFunc(managementv1.BasePath+"/openapi.yaml", document).Methods(http.MethodGet)
	routes := managementv1.HandlerWithOptions(a, managementv1.GorillaServerOptions{
		BaseURL:          managementv1.BasePath,
		BaseRouter:       router,
		ErrorHandlerFunc: a.badParameter,
	})
	return a.identify(a.record(a.recoverPanic(a.authorize(routes))))
}

func document(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	_, _ = w.Write(managementv1.Document) // the client has gone, nobody is left to tell
}

// base is the address clients reach this server at.
func (a *api) base(r *http.Request) string {
	if a.BaseURL != "" {
		return a.BaseURL
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

// shipped is the catalog that comes with this system.
type shipped struct{}

func (shipped) Names() []string { return catalog.Names() }

func (shipped) Lookup(ref string) (data []byte, name string, err error) { return catalog.Lookup(ref) }
