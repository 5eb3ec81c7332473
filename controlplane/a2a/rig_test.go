package a2a_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/echo"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine/enginetest"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
)

const (
	idA    = "01900000-0000-7000-8000-00000000000a"
	idB    = "01900000-0000-7000-8000-00000000000b"
	idHost = "6ba7b810-9dad-41d1-80b4-00c04fd430c8" // version 4
)

// rig is the whole way from HTTP to real processes.
type rig struct {
	t      *testing.T
	url    string
	guest  *enginetest.Guest
	engine *engine.Engine
	db     *sqlite.DB
}

type instances map[instance.ID]a2a.Agent

func (m instances) Instance(_ context.Context, id instance.ID) (a2a.Agent, error) {
	a, ok := m[id]
	if !ok {
		return a, a2a.ErrUnknownInstance
	}
	return a, nil
}

func agents() instances {
	vm := a2a.Agent{
		ID: idA, Name: "demo", Description: "A machine.", Version: "1.2.3", Loadout: "agentic-dev", Kind: "vm", Provider: "libvirt",
		ImageRef:     "qcow2://images/debian-12-agentic-dev@sha256:" + strings.Repeat("0123456789abcdef", 4),
		Capabilities: []string{"instance.start", "instance.x-future:1"}, Host: "host-1",
		Workspace: "/workspace", Runners: []string{"echo", "adapter-command", "shell"},
		Skills: []a2a.Skill{{ID: "echo", Name: "Echo", Description: "Echoes."}},
	}
	other := vm
	other.ID = idB
	host := a2a.Agent{ID: idHost, Name: "bare", Loadout: "minimal", Kind: "host", Workspace: "/", Runners: []string{"echo"}}
	return instances{idA: vm, idB: other, idHost: host}
}

// shell runs the text of a message that begins with "sh:".
type shell struct{}

func (shell) Name() string { return "shell" }
func (shell) Claims(r runner.Request) bool {
	p := r.Message.Parts[0]
	return p.Text != nil && strings.HasPrefix(*p.Text, "sh:")
}
func (shell) Prepare(req runner.Request) (*runner.Command, error) {
	return &runner.Command{
		Spec: &agentv1.RunSpec{
			Argv: []string{"sh", "-c", strings.TrimPrefix(*req.Message.Parts[0].Text, "sh:")}, Root: "/", WorkingDir: "/",
			Timeout: durationpb.New(5 * time.Minute),
		},
		Artifacts: [2]string{"stdout", "stderr"},
	}, nil
}

func newRig(t *testing.T, change func(*a2a.Config, *engine.Config)) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, guest: &enginetest.Guest{}, db: db}
	ecfg := engine.Config{
		Journal: db, Runs: db, Reader: db, Prompts: db, Guests: r.guest,
		Runners: []runner.Runner{adaptercommand.Runner{}, shell{}, echo.Runner{}},
	}
	srv := httptest.NewUnstartedServer(nil)
	cfg := a2a.Config{
		Instances: agents(), Store: db, PublicURL: "http://" + srv.Listener.Addr().String(),
		Caller: func(ctx context.Context) a2a.Caller { return a2a.Caller{Name: user(ctx)} },
	}
	if change != nil {
		change(&cfg, &ecfg)
	}
	r.engine = engine.New(t.Context(), ecfg)
	if err := r.engine.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg.Tasks = r.engine
	h := a2a.New(cfg)
	srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { // stands in for the token check
		h.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), userKey{}, req.Header.Get("X-User"))))
	})
	srv.Start()
	r.url = srv.URL
	t.Cleanup(func() {
		r.engine.Close() // ends the streams, which the server waits for
		srv.Close()
		r.guest.Forget()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

type userKey struct{}

func user(ctx context.Context) string {
	s, _ := ctx.Value(userKey{}).(string)
	if s == "" {
		return "alice"
	}
	return s
}

type answer struct {
	status int
	header http.Header
	body   []byte
	json   map[string]any
}

// path returns the value at a path of members and indexes.
func (a answer) path(keys ...any) any { return dig(a.json, keys...) }

func dig(v any, keys ...any) any {
	for _, k := range keys {
		switch k := k.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

var good = map[string]string{"A2A-Version": "1.0", "A2A-Extensions": extensions.Runtime, "Content-Type": "application/json"}

func with(more map[string]string) map[string]string {
	h := maps.Clone(good)
	for k, v := range more {
		h[k] = v
		if v == "" {
			delete(h, k)
		}
	}
	return h
}

func (r *rig) open(method, path, body string, header map[string]string) *http.Response {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
		if k == "Host" {
			req.Host = v
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

func (r *rig) do(method, path, body string, header map[string]string) answer {
	r.t.Helper()
	resp := r.open(method, path, body, header)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, body: raw}
	if ct := resp.Header.Get("Content-Type"); strings.Contains(ct, "json") && method != http.MethodHead && len(raw) > 0 {
		if err := json.Unmarshal(raw, &a.json); err != nil {
			r.t.Fatalf("%s %s answers %q: %v", method, path, raw, err)
		}
		if bytes.Contains(raw, []byte(":null")) && !bytes.Contains(raw, []byte(`"id":null`)) {
			r.t.Errorf("%s %s has a null: %s", method, path, raw)
		}
	}
	return a
}

func message(text string) string {
	b, err := json.Marshal(map[string]any{"message": map[string]any{
		"messageId": "m1", "role": "ROLE_USER", "parts": []any{map[string]any{"text": text}},
	}})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (r *rig) send(text string) answer {
	r.t.Helper()
	return r.do(http.MethodPost, "/agents/"+idA+"/message:send", message(text), good)
}

func (r *rig) rpc(method, params string, header map[string]string) answer {
	r.t.Helper()
	body := `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":` + params + `}`
	return r.do(http.MethodPost, "/agents/"+idA, body, header)
}

// start sends a message without waiting and returns the task's id.
func (r *rig) start(text string) string {
	r.t.Helper()
	body := strings.TrimSuffix(message(text), "}") + `,"configuration":{"returnImmediately":true}}`
	a := r.do(http.MethodPost, "/agents/"+idA+"/message:send", body, good)
	id, _ := a.path("task", "id").(string)
	if id == "" {
		r.t.Fatalf("send answers %d %s", a.status, a.body)
	}
	return id
}

// frame is one server-sent event.
type frame struct {
	id   string
	data map[string]any
}

// frames reads a stream to its end, calling each for every frame.
func (r *rig) frames(resp *http.Response, each func(frame) bool) {
	r.t.Helper()
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || ct != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		r.t.Fatalf("stream answers %d %q %s", resp.StatusCode, ct, b)
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 16<<20)
	var f frame
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "id: "):
			f.id = line[4:]
		case strings.HasPrefix(line, "data: "):
			f.data = nil
			if err := json.Unmarshal([]byte(line[6:]), &f.data); err != nil {
				r.t.Fatalf("frame %.100q: %v", line, err)
			}
		case line == "" && f.data != nil:
			if !each(f) {
				return
			}
			f = frame{}
		}
	}
	if err := sc.Err(); err != nil {
		r.t.Fatal(err)
	}
}

// collected is what came over a stream.
type collected struct {
	states []string
	out    map[string]string
	last   string // id of the last frame
	frames int
}

func (c *collected) add(f frame) {
	if c.out == nil {
		c.out = map[string]string{}
	}
	c.frames++
	c.last = f.id
	addArtifact := func(a any) {
		id, _ := dig(a, "artifactId").(string)
		parts, _ := dig(a, "parts").([]any)
		for _, p := range parts {
			text, _ := dig(p, "text").(string)
			c.out[id] += text
		}
	}
	if t := f.data["task"]; t != nil {
		c.states = append(c.states, dig(t, "status", "state").(string))
		list, _ := dig(t, "artifacts").([]any)
		for _, a := range list {
			addArtifact(a)
		}
	}
	if s := f.data["statusUpdate"]; s != nil {
		c.states = append(c.states, dig(s, "status", "state").(string))
	}
	if a := f.data["artifactUpdate"]; a != nil {
		addArtifact(dig(a, "artifact"))
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func serveOn(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}
