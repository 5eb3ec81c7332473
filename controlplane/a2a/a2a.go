// Package a2a gives every machine its A2A surface at /agents/{id}: the
// AgentCard, and the operations of A2A 1.0 as JSON-RPC and as HTTP+JSON,
// and of A2A 0.3 beside it (v03.go).
//
// It negotiates versions and extensions, checks and decodes requests, and
// presents tasks. It provisions nothing, reaches no guest and stores nothing;
// who the caller is has been found out before (Config.Caller).
//
//	request ── agent ── version ── extensions ── decode ── operation ── present
package a2a

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/share"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Agent is what the surface must know of one machine.
type Agent struct {
	ID          instance.ID
	Name        string
	Description string
	Version     string
	Skills      []Skill
	// Loadout, Kind ("vm", "container", "host"), Provider and ImageRef are the
	// names of runtime/v1; Provider and ImageRef may be empty.
	Loadout  string
	Kind     string
	Provider string
	ImageRef string
	// Capabilities are those of runtime/v1; nil means not published.
	Capabilities []string
	// Host identifies the machine's host; shown only to callers who may see it.
	Host string
	// Where and as whom commands run, and which runners the loadout allows.
	Workspace string
	User      string
	Env       map[string]string
	Runners   []string
}

// Skill is one entry of the card's skills.
type Skill struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	Examples    []string `json:"examples,omitempty"`
}

// ErrUnknownInstance is returned by Instances for an id nobody has.
var ErrUnknownInstance = errors.New("no such instance")

// Instances finds machines.
type Instances interface {
	// Instance describes a machine, or returns ErrUnknownInstance also for one
	// the caller in ctx may not see.
	Instance(ctx context.Context, id instance.ID) (Agent, error)
}

// Tasks carries tasks out.
type Tasks interface {
	Submit(ctx context.Context, s engine.Submission) (engine.Result, error)
	Cancel(ctx context.Context, in task.Scope, taskID string) (task.Record, error)
	Reply(ctx context.Context, r engine.Reply) error
	Changed(taskID string) <-chan struct{}
	Done() <-chan struct{}
}

var _ Tasks = (*engine.Engine)(nil)

// Caller is who makes a request.
type Caller struct {
	// Name owns the tasks the caller makes, in its tenant.
	Name string
	// AllTasks lets the caller see everybody's tasks in its tenant.
	AllTasks bool
	// SeesHost lets the caller learn which host a machine runs on.
	SeesHost bool
	// Tenant is whose tasks it may see at all; empty for the default tenant.
	Tenant string
	// May reports whether the caller has a scope, such as "agents:invoke"; nil
	// has all. Without any, cards are all there is to see.
	May func(scope string) bool
}

// Config says what the surface works with. The first five are required.
type Config struct {
	Instances Instances
	Tasks     Tasks
	Store     task.Reader
	// Caller is asked who makes a request.
	Caller func(context.Context) Caller
	// PublicURL is where clients reach this process, without a path, such as
	// "http://127.0.0.1:8080".
	PublicURL string

	// Push delivers push notifications; nil: they are not supported.
	Push Push
	// Signer signs cards; nil: they are served unsigned.
	Signer Signer
	// Reservations remember messages; nil: idempotency/v1 is not offered.
	Reservations Reservations
	Now          func() time.Time
	Log          *slog.Logger
	// VirtualHostDomain serves each agent also at the root of the origin
	// {instance_id}.<domain>, a host name with or without a port; empty does not.
	VirtualHostDomain string
	// ExtendedSkills are those of an agent that only authenticated callers see,
	// on its extended card. Nil: there are no extended cards.
	ExtendedSkills func(Agent) []Skill
	// NothingRequired offers every extension and requires none: for the kits of
	// conformance tests, which know no extensions.
	NothingRequired bool
	Limits          Limits
}

// Limits bound what one request may cost. Zero values mean the defaults.
type Limits struct {
	// Replay bounds the messages that idempotency/v1 remembers. Default 24 h
	// and 10000 messages of one principal.
	Replay idempotency.Bounds
	// Body bounds a request, in bytes. Default 4 MiB.
	Body int64
	// Blocking is how long SendMessage waits for the task; then it answers
	// with the task as it is. Default 50 s, below what proxies wait.
	Blocking time.Duration
	// CancelWait is how long CancelTask waits for the command's end. Default 30 s.
	CancelWait time.Duration
	// Inline bounds the bytes of one artifact within a task. Default 1 MiB.
	Inline int
	// Page bounds the bytes of the tasks on one page of a list, as they are
	// written, with their histories and artifacts: the page ends early, but has
	// one task. Default 8 MiB.
	Page int
	// Lists bounds the pages that are held in memory at once, each until its
	// reader has taken it or is dropped; a principal gets a quarter. Default 16.
	Lists int
	// Streams bounds the streams open at once. The last quarter is for tenants
	// that have less than a quarter. Default 1024.
	Streams int64
	// KeepAlive is the pause between signs of life on a silent stream. Default 15 s.
	KeepAlive time.Duration
	// Stall is how long a reader may take nothing before it is dropped. Default 60 s.
	Stall time.Duration
}

func (l *Limits) fill() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	if l.Body <= 0 {
		l.Body = 4 << 20
	}
	if l.Inline <= 0 {
		l.Inline = 1 << 20
	}
	if l.Replay.Entries <= 0 {
		l.Replay.Entries = 10_000
	}
	if l.Page <= 0 {
		l.Page = 8 << 20
	}
	if l.Lists <= 0 {
		l.Lists = 16
	}
	if l.Streams <= 0 {
		l.Streams = 1024
	}
	def(&l.Replay.TTL, 24*time.Hour)
	def(&l.Blocking, 50*time.Second)
	def(&l.CancelWait, 30*time.Second)
	def(&l.KeepAlive, 15*time.Second)
	def(&l.Stall, time.Minute)
}

func (cfg *Config) fill() {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.PublicURL = strings.TrimRight(cfg.PublicURL, "/")
	cfg.Limits.fill()
}

// New makes the handler of everything below /agents/{id}.
func New(cfg Config) http.Handler {
	cfg.fill()
	s := &surface{
		cfg: cfg, streams: share.NewPlaces(int(min(cfg.Limits.Streams, math.MaxInt32))),
		lists: share.NewGate(cfg.Limits.Lists/4, cfg.Limits.Lists),
	}
	scopes := scopesOfRoutes()
	// Paths are matched as they were sent: what cleaning would join or drop
	// names nothing here.
	m := mux.NewRouter().SkipClean(true)
	m.NotFoundHandler = http.HandlerFunc(s.notFound)
	s.routes(func(path string, all methods) {
		asked := make(methods, len(all))
		for method, h := range all {
			asked[method] = asking(scopeFrom(scopes, method+" "+plainPath(path)), h)
		}
		m.Handle("/agents/{id}"+path, s.methods(asked))
	})
	return s.virtualHosts(m)
}

// routes tells at of everything there is below /agents/{id}.
func (s *surface) routes(at func(path string, methods methods)) {
	rpc := methods{http.MethodPost: s.rpc}
	at("", rpc)
	at("/", rpc)
	at("/.well-known/agent-card.json", methods{http.MethodGet: s.card, http.MethodHead: s.card})
	at(wellKnown03, methods{http.MethodGet: s.card, http.MethodHead: s.card})
	s.routes03(at)
	s.routesSend(at, "")
	at("/tasks", methods{http.MethodGet: s.rest(restList)})
	// Before the plain task, so that no verb is taken for part of an id.
	at("/tasks/{task:[^/:]+}:cancel", methods{http.MethodPost: s.rest(restCancel)})
	subscribe := s.restStream(restSubscribe)
	at("/tasks/{task:[^/:]+}:subscribe", methods{http.MethodPost: subscribe, http.MethodGet: subscribe})
	at("/tasks/{task:[^/:]+}", methods{http.MethodGet: s.rest(restGet)})
	at("/tasks/{task:[^/:]+}/artifacts/{artifact:[^/]+}", methods{http.MethodGet: s.artifact, http.MethodHead: s.artifact})
	s.routesPush(at, "")
	at("/extendedAgentCard", methods{http.MethodGet: s.rest(restExtendedCard)})
}

// routesSend adds what takes messages, below prefix for 0.3.
func (s *surface) routesSend(at func(path string, m methods), prefix string) {
	for _, send := range []string{"/message:", "/messages:"} { // the seed's spelling, too
		at(prefix+send+"send", methods{http.MethodPost: s.rest(restSend)})
		at(prefix+send+"stream", methods{http.MethodPost: s.restStream(restStreamSend)})
	}
}

// surface holds what all requests share.
type surface struct {
	cfg     Config
	streams *share.Places
	lists   *share.Gate // of the pages that are held
	flights flights
}

// call is one request, negotiated.
type call struct {
	*surface
	agent      Agent
	caller     Caller
	version    version
	proto03    bool        // the body is one of the proto file of 0.3
	extensions []string    // activated
	url        string      // the agent's address, as the caller knows it
	header     http.Header // of the answer
	flight     *flight     // of a message that is carried out once; nil otherwise
	leaveList  func()      // gives back the page of a list that is held; nil: none is
}

// begin finds the agent and negotiates. The extensions are echoed whatever
// comes after.
func (s *surface) begin(w http.ResponseWriter, r *http.Request) (*call, *fault) {
	agent, f := s.agent(r)
	if f != nil {
		return nil, f
	}
	c := &call{surface: s, agent: agent, caller: s.cfg.Caller(r.Context()), url: s.baseFor(r, agent), header: w.Header()}
	c.proto03 = path03(r.URL.Path)
	supported := s.extensions(agent)
	c.extensions = requestedExtensions(r, supported)
	if len(c.extensions) > 0 {
		w.Header().Set(headerExtensions, strings.Join(c.extensions, ", "))
	}
	if f := c.caller.allow(r.Context()); f != nil {
		return nil, f
	}
	if c.version, f = negotiateVersion(r); f != nil {
		return nil, f
	}
	if c.version == v03 && len(c.extensions) > 0 {
		w.Header().Set(headerExtensionsOld, strings.Join(c.extensions, ", "))
	}
	return c, checkRequired(c.extensions, supported)
}

func (s *surface) agent(r *http.Request) (Agent, *fault) {
	id, err := instance.ParseID(mux.Vars(r)["id"])
	if err != nil {
		return Agent{}, errNoInstance()
	}
	agent, err := s.cfg.Instances.Instance(r.Context(), id)
	if errors.Is(err, ErrUnknownInstance) {
		return Agent{}, errNoInstance()
	}
	if err != nil {
		return Agent{}, s.internal(r.Context(), "find an instance", err)
	}
	return agent, nil
}

func (a Agent) machine() runner.Machine {
	return runner.Machine{ID: a.ID, Workspace: a.Workspace, User: a.User, Env: a.Env, Runners: a.Runners}
}

type methods map[string]http.HandlerFunc

// methods answers what no handler is for, in JSON and with the ones there are.
func (s *surface) methods(m methods) http.Handler {
	allowed := make([]string, 0, len(m))
	for _, name := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		if m[name] != nil {
			allowed = append(allowed, name)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := m[r.Method]; h != nil {
			h(w, r)
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		s.refuse(w, r, errMethod(allowed))
	})
}

func (s *surface) notFound(w http.ResponseWriter, r *http.Request) { s.refuse(w, r, errNoResource()) }
