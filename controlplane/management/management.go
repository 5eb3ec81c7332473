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
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/share"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
)

// Instances makes, finds and describes instances. A ref is an id or a name.
// Errors carry an *instance.Fault where a caller or an operator can act.
type Instances interface {
	Create(ctx context.Context, req fleet.CreateRequest) (fleet.Operation, error)
	Get(ctx context.Context, ref string) (fleet.View, error)
	List(ctx context.Context, f fleet.Filter) (fleet.Page, error)
	// SetLabels replaces the labels; an ifGeneration other than 0 must be the
	// present one.
	SetLabels(ctx context.Context, ref string, labels map[string]string, ifGeneration int64) (fleet.View, error)
	// Renew moves the end of the instance's life; 0 takes it away.
	Renew(ctx context.Context, ref string, ttl time.Duration) (fleet.View, error)
}

// Machines changes what runs.
type Machines interface {
	Act(ctx context.Context, ref string, a fleet.Action, o fleet.ActOptions) (fleet.Operation, error)
	Delete(ctx context.Context, ref string, ifGeneration int64) (fleet.Operation, error)
}

// Operations knows the long requests.
type Operations interface {
	Operation(ctx context.Context, id string) (fleet.Operation, error)
	Operations(ctx context.Context, f fleet.OperationFilter) (fleet.OperationPage, error)
	CancelOperation(ctx context.Context, id string) (fleet.Operation, error)
	// Watch sends the present state at once, then every change. The channel
	// is closed after the final state or when ctx ends.
	Watch(ctx context.Context, id string) (<-chan fleet.Operation, error)
}

// Events is the log of what happened.
type Events interface {
	// Events returns the first ones behind a number, oldest first: at most
	// limit, and none only if there are none.
	Events(ctx context.Context, after uint64, f fleet.EventFilter, limit int) ([]fleet.Event, error)
	// Follow sends those and then what happens. The channel is closed when ctx
	// ends, and for a receiver that is too slow.
	Follow(ctx context.Context, after uint64, f fleet.EventFilter) (<-chan fleet.Event, error)
	// LastEvent is the newest number, 0 when nothing has happened yet.
	LastEvent() uint64
}

// Guests reaches into machines.
type Guests interface {
	// PutArchive unpacks a tar stream below a directory of the guest.
	PutArchive(ctx context.Context, ref, path string, tar io.Reader) (entries int, bytes int64, err error)
	Log(ctx context.Context, ref string) (fleet.Log, error)
	// Console reads the last lines of the console, and with follow what comes
	// until ctx ends.
	Console(ctx context.Context, ref string, follow bool, lines int) (io.ReadCloser, error)
}

// Host describes this host and what is odd on it.
type Host interface {
	Facts(ctx context.Context) (fleet.HostFacts, error)
	Orphans(ctx context.Context) ([]fleet.Orphan, error)
	RemoveOrphan(ctx context.Context, id instance.ID) error
	// Lacks says what the host lacks for an instance of a loadout.
	Lacks(ctx context.Context, l *loadouts.Resolved) []fleet.FieldError
}

// Catalog holds the loadouts known by name.
type Catalog interface {
	// Names lists them, sorted.
	Names() []string
	// Lookup finds documents, as loadouts.Resolve asks for them. A missing
	// one is an error that is fs.ErrNotExist.
	Lookup(ref string) (data []byte, name string, err error)
}

// Seen is one request that was answered.
type Seen struct {
	// Route is the template of the path in the OpenAPI document, such as
	// "/instances/{ref}"; empty for one that is not in it.
	Route  string
	Method string
	Status int
	Took   time.Duration
	// Stream is set when the answer was sent piece by piece.
	Stream bool
}

// Config is what New needs. Catalog, Once, Observe and Log may be nil: then
// the loadouts are those that come with this system, an Idempotency-Key is
// refused, and nobody is told.
type Config struct {
	Instances  Instances
	Machines   Machines
	Operations Operations
	Events     Events
	Guests     Guests
	Host       Host
	Catalog    Catalog
	// Once remembers the requests with an Idempotency-Key.
	Once    once.Store
	Observe func(Seen)
	Log     *slog.Logger
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
	// MaxStreams bounds the streams open at one time; 0 means 1024. The last
	// quarter is for tenants that have less than a quarter.
	MaxStreams int
}

const (
	maxRequest        = 8 << 20 // bytes of a JSON body
	defaultMaxArchive = 16 << 30
	defaultHeartbeat  = 15 * time.Second
	defaultStall      = time.Minute
	defaultMaxStreams = 1024

	rememberFor     = 24 * time.Hour // an Idempotency-Key
	rememberEntries = 10_000         // of one principal
)

// api implements the generated ServerInterface, one file for each noun.
type api struct {
	Config

	once    *once.Handler // nil: none
	streams *share.Places
	scopes  scopeTable
	queries queryTable
}

var _ managementv1.ServerInterface = (*api)(nil)

func (c *Config) fill() {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = request.Log(c.Log)
	if c.MaxArchive == 0 {
		c.MaxArchive = defaultMaxArchive
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.Stall == 0 {
		c.Stall = defaultStall
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = defaultMaxStreams
	}
	if c.Catalog == nil {
		c.Catalog = shipped{}
	}
	if c.Observe == nil {
		c.Observe = func(Seen) {}
	}
	c.BaseURL = strings.TrimRight(c.BaseURL, "/")
}

// New returns the handler for everything below managementv1.BasePath. It
// expects whole paths, so mount it without stripping them, behind auth.
func New(c Config) http.Handler {
	c.fill()
	a := &api{Config: c, streams: share.NewPlaces(c.MaxStreams), scopes: scopes(), queries: queries()}
	if c.Once != nil {
		a.once = a.newOnce(c.Once)
	}

	// Paths are matched as they are: a cleaned one would be answered with a
	// redirect, which loses the body of a POST.
	router := mux.NewRouter().SkipClean(true)
	router.NotFoundHandler = http.HandlerFunc(a.noRoute)
	router.MethodNotAllowedHandler = a.wrongMethod(router)
	router.Use(refuseVerbs(router.MethodNotAllowedHandler), a.note, a.authorize, a.checkQuery, joinTags, a.carryOutOnce)
	routes := managementv1.HandlerWithOptions(a, managementv1.GorillaServerOptions{
		BaseURL:          managementv1.BasePath,
		BaseRouter:       router,
		ErrorHandlerFunc: a.badParameter,
	})
	return request.Identify(a.record(a.recoverPanic(a.authenticate(routes))))
}

// Document serves the OpenAPI document. It is no secret and needs no token.
func Document() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(managementv1.Document) // the client has gone, nobody is left to tell
	})
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
