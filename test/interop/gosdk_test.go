package interop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	peer "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// goSDK is the client of the Go SDK, which needs no program of its own.
type goSDK struct{ version string }

// bearer adds the token to every request. There is no proxy on the way.
type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return direct.RoundTrip(r)
}

var direct = &http.Transport{MaxIdleConnsPerHost: 8}

func (g goSDK) run(ctx context.Context, s setup, tell func(result), restart func() error) error {
	report := func(version, binding, name string, err error) bool {
		r := result{Client: "go", SDK: g.version, Version: version, Binding: binding, Case: name, OK: err == nil}
		if err != nil {
			r.Error = err.Error()
		}
		tell(r)
		return r.OK
	}
	web := &http.Client{Transport: bearer{s.Token}}
	var all []*goCases
	card, err := resolve(ctx, web, s, "1.0")
	if !report("1.0", "card", "card", err) {
		return errors.New("there is no card")
	}
	report("1.0", "card", "card-unauthenticated", unauthenticated(ctx, s))
	_, err = resolve(ctx, web, s, "0.3")
	report("0.3", "card", "card", err)
	for _, iface := range card.SupportedInterfaces { // those of 0.3, too
		c, err := a2aclient.NewFromEndpoints(ctx, []*peer.AgentInterface{iface},
			a2aclient.WithJSONRPCTransport(web), a2aclient.WithRESTTransport(web),
			a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{Client: web}), a2av0.WithRESTTransport(a2av0.RESTTransportConfig{Client: web}))
		if err != nil {
			return err
		}
		all = append(all, &goCases{Client: c, agent: s.Agent, version: string(iface.ProtocolVersion), binding: iface.ProtocolBinding})
	}
	for _, c := range all {
		c.key = regexp.MustCompile(`\W`).ReplaceAllString(strings.ToLower("go"+string(c.binding)+c.version), "")
		for _, one := range c.list() {
			bounded, cancel := context.WithTimeout(ctx, 3*time.Minute)
			if one.name != extensionRequired {
				bounded = activate(bounded, extensions.Runtime)
			}
			report(c.version, string(c.binding), one.name, one.do(bounded))
			cancel()
		}
	}
	ctx = activate(ctx, extensions.Runtime)
	for _, c := range all {
		report(c.version, string(c.binding), "restart-begun", c.restartBegun(ctx))
	}
	if err := restart(); err != nil {
		return err
	}
	for _, c := range all {
		report(c.version, string(c.binding), "restart", c.restart(ctx))
	}
	return nil
}

// activate names the extensions of the calls made with the context.
func activate(ctx context.Context, uris ...string) context.Context {
	return a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{"A2A-Extensions": uris})
}

// wrong is what a case says.
func wrong(what string, seen ...any) error { return fmt.Errorf("want %s, got %+v", what, seen) }

func resolve(ctx context.Context, web *http.Client, s setup, version string) (*peer.AgentCard, error) {
	resolver := agentcard.NewResolver(web)
	var opts []agentcard.ResolveOption
	if version == "0.3" {
		resolver.CardParser = a2av0.NewAgentCardParser()
		opts = append(opts, agentcard.WithPath("/.well-known/agent.json"))
	}
	card, err := resolver.Resolve(ctx, s.Agent, opts...)
	if err != nil {
		return nil, err
	}
	for _, binding := range []peer.TransportProtocol{peer.TransportProtocolJSONRPC, peer.TransportProtocolHTTPJSON} {
		if !slices.ContainsFunc(card.SupportedInterfaces, func(i *peer.AgentInterface) bool {
			return i.ProtocolBinding == binding && strings.HasPrefix(string(i.ProtocolVersion), version) && i.URL == s.Agent
		}) {
			return nil, wrong(fmt.Sprintf("%s %s among %d interfaces", binding, version, len(card.SupportedInterfaces)), card)
		}
	}
	at := slices.IndexFunc(card.Capabilities.Extensions, func(e peer.AgentExtension) bool { return e.URI == extensions.Runtime })
	switch {
	case card.Name != "interop" || card.Description == "" || card.Version == "" || len(card.Skills) == 0:
		return nil, wrong("a whole card", card)
	case !card.Capabilities.Streaming || !card.Capabilities.PushNotifications:
		return nil, wrong("true capabilities", card.Capabilities)
	case at < 0 || !card.Capabilities.Extensions[at].Required:
		return nil, wrong("runtime/v1 required", card.Capabilities)
	case !strings.HasSuffix(s.Agent, fmt.Sprint(card.Capabilities.Extensions[at].Params["instance_id"])):
		return nil, wrong("the instance id", card.Capabilities.Extensions[at])
	case len(card.SecuritySchemes) != 1:
		return nil, wrong("one security scheme", card.SecuritySchemes)
	}
	return card, nil
}

func unauthenticated(ctx context.Context, s setup) error {
	_, err := agentcard.NewResolver(&http.Client{Transport: direct}).Resolve(ctx, s.Agent)
	var status *agentcard.ErrStatusNotOK
	if !errors.As(err, &status) || status.StatusCode != http.StatusUnauthorized {
		return wrong("status 401", err)
	}
	return nil
}

// seen is the history that the events of one task make.
type seen struct {
	first  peer.Event
	id     peer.TaskID
	states []peer.TaskState
	text   string
}

func (s *seen) take(e peer.Event) {
	if s.first == nil {
		s.first = e
	}
	state := peer.TaskState("")
	switch e := e.(type) {
	case *peer.Task:
		s.id, s.text, state = e.ID, output(e), e.Status.State
	case *peer.TaskStatusUpdateEvent:
		state = e.Status.State
	case *peer.TaskArtifactUpdateEvent:
		if e.Artifact.Name != "stderr" {
			s.text += text(e.Artifact)
		}
	}
	if state != "" && (len(s.states) == 0 || s.states[len(s.states)-1] != state) {
		s.states = append(s.states, state)
	}
}

func (s *seen) completed() bool {
	return len(s.states) > 0 && s.states[len(s.states)-1] == peer.TaskStateCompleted
}

// whole wants everything from the task at the start to its end.
func (s *seen) whole(want string) error {
	if _, ok := s.first.(*peer.Task); !ok || s.text != want || !s.completed() {
		return wrong(fmt.Sprintf("the task first, then %q, completed", want), s.first, s.text, s.states)
	}
	return nil
}

func text(a *peer.Artifact) string {
	var b strings.Builder
	for _, p := range a.Parts {
		b.WriteString(p.Text())
	}
	return b.String()
}

func output(t *peer.Task) string {
	var b strings.Builder
	for _, a := range t.Artifacts {
		if a.Name != "stderr" {
			b.WriteString(text(a))
		}
	}
	return b.String()
}
