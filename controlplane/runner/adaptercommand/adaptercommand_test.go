package adaptercommand_test

import (
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const (
	script = ".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs"
	goodRq = ".aiwg/ops/adapters/sandbox-agent-runner/examples/cycle-005-request.json"
)

func good() map[string]any {
	return map[string]any{
		"adapter": "sandbox-agent-runner", "mode": "plan", "working_dir": "/workspace", "timeout_seconds": 300,
		"command": []any{"node", script, "--request", goodRq},
	}
}

func request(t testing.TB, envelope any) runner.Request {
	t.Helper()
	raw, ok := envelope.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(envelope); err != nil {
			t.Fatal(err)
		}
	}
	return runner.Request{
		TaskID: "task-1", ContextID: "ctx",
		Message: task.Message{
			Role: task.User, Parts: []task.Part{task.TextPart("Run"), task.TextPart("it.")},
			Metadata: task.Metadata{adaptercommand.URI: raw},
		},
		Machine: runner.Machine{
			ID: "01900000-0000-7000-8000-000000000001", Workspace: "/workspace", User: "agent",
			Env: map[string]string{"LANG": "C.UTF-8", adaptercommand.EnvMode: "spoofed"},
		},
	}
}

func prepare(t testing.TB, req runner.Request) (*runner.Command, []runner.Violation) {
	t.Helper()
	if !(adaptercommand.Runner{}).Claims(req) {
		t.Fatal("the request is not claimed, so it would be echoed")
	}
	cmd, err := adaptercommand.Runner{}.Prepare(req)
	var refusal *runner.Refusal
	switch {
	case err == nil && cmd != nil:
		return cmd, nil
	case cmd != nil || !errors.As(err, &refusal) || len(refusal.Violations) == 0:
		t.Fatalf("prepare: %+v, %v", cmd, err)
	}
	return nil, refusal.Violations
}

func TestTheSeedsExample(t *testing.T) {
	cmd, broken := prepare(t, request(t, good()))
	if broken != nil {
		t.Fatal(broken)
	}
	s := cmd.Spec
	if !slices.Equal(s.GetArgv(), []string{"node", script, "--request", goodRq}) || s.GetRoot() != "/workspace" || s.GetWorkingDir() != "/workspace" ||
		s.GetTimeout().AsDuration() != 300*time.Second || s.GetUser() != "agent" || s.GetStdin() || cmd.Stdin != nil {
		t.Errorf("spec is %v", s)
	}
	for k, v := range map[string]string{
		adaptercommand.EnvMode: "plan", adaptercommand.EnvMessage: "Run\nit.", adaptercommand.EnvTaskID: "task-1",
		adaptercommand.EnvInstanceID: "01900000-0000-7000-8000-000000000001", "LANG": "C.UTF-8",
	} {
		if s.GetEnv()[k] != v {
			t.Errorf("%s is %q, want %q", k, s.GetEnv()[k], v)
		}
	}
}

// TestTextInput: input_mode needs hitl-prompt/v1 and makes the command read.
func TestTextInput(t *testing.T) {
	for name, c := range map[string]struct {
		mode any // nil: none
		uris []string
		ok   bool
	}{
		"both":                 {"text-line", []string{extensions.Runtime, extensions.HITLPrompt}, true},
		"not activated":        {"text-line", []string{extensions.Runtime, extensions.AdapterCommand}, false},
		"another version":      {"text-line", []string{strings.Replace(extensions.HITLPrompt, "v1", "v2", 1)}, false},
		"another mode":         {"text-block", []string{extensions.HITLPrompt}, false},
		"empty mode":           {"", []string{extensions.HITLPrompt}, false},
		"mode of another type": {true, []string{extensions.HITLPrompt}, false},
	} {
		e := good()
		e["input_mode"] = c.mode
		req := request(t, e)
		req.Extensions = c.uris
		cmd, broken := prepare(t, req)
		switch {
		case c.ok && (broken != nil || !cmd.Spec.GetStdin() || cmd.Stdin != nil):
			t.Errorf("%s: %v %v", name, cmd, broken)
		case !c.ok && (len(broken) != 1 || !strings.HasSuffix(broken[0].Field, ".input_mode")):
			t.Errorf("%s: %v", name, broken)
		}
	}
	req := request(t, good())
	req.Extensions = []string{extensions.HITLPrompt}
	if cmd, broken := prepare(t, req); broken != nil || cmd.Spec.GetStdin() {
		t.Errorf("without input_mode: %v %v", cmd, broken)
	}
}

func TestDefaults(t *testing.T) {
	e := good()
	delete(e, "working_dir")
	delete(e, "timeout_seconds")
	e["mode"] = "assess"
	cmd, broken := prepare(t, request(t, e))
	if broken != nil || cmd.Spec.GetWorkingDir() != "/workspace" || cmd.Spec.GetTimeout().AsDuration() != 300*time.Second ||
		cmd.Spec.GetEnv()[adaptercommand.EnvMode] != "assess" {
		t.Errorf("%v %v", cmd, broken)
	}
}

func TestFields(t *testing.T) {
	cmdWith := func(i int, v any) []any {
		c := []any{"node", script, "--request", goodRq}
		c[i] = v
		return c
	}
	for name, c := range map[string]struct {
		field string // of the envelope
		value any    // nil removes it
		where string // of the violation; empty: none
	}{
		"no adapter":         {"adapter", nil, "adapter"},
		"other adapter":      {"adapter", "shell", "adapter"},
		"adapter case":       {"adapter", "Sandbox-Agent-Runner", "adapter"},
		"adapter type":       {"adapter", []any{"sandbox-agent-runner"}, "adapter"},
		"no mode":            {"mode", nil, "mode"},
		"mode apply":         {"mode", "apply", "mode"},
		"mode case":          {"mode", "Plan", "mode"},
		"mode space":         {"mode", "plan ", "mode"},
		"mode empty":         {"mode", "", "mode"},
		"mode type":          {"mode", true, "mode"},
		"no command":         {"command", nil, "command"},
		"command text":       {"command", "node " + script + " --request " + goodRq, "command"},
		"command empty":      {"command", []any{}, "command"},
		"command short":      {"command", []any{"node", script, "--request"}, "command"},
		"command long":       {"command", append(cmdWith(0, "node"), "--verbose"), "command"},
		"other program":      {"command", cmdWith(0, "/usr/bin/node"), "command[0]"},
		"program sh":         {"command", cmdWith(0, "sh"), "command[0]"},
		"other script":       {"command", cmdWith(1, "./"+script), "command[1]"},
		"script elsewhere":   {"command", cmdWith(1, ".aiwg/ops/adapters/sandbox-agent-runner/other.mjs"), "command[1]"},
		"other flag":         {"command", cmdWith(2, "--eval"), "command[2]"},
		"flag joined":        {"command", []any{"node", script, "--request=" + goodRq}, "command"},
		"path type":          {"command", cmdWith(3, 7), "command"},
		"path list null":     {"command", []any{"node", script, "--request", nil}, "command[3]"},
		"dir relative":       {"working_dir", "workspace", "working_dir"},
		"dir elsewhere":      {"working_dir", "/etc", "working_dir"},
		"dir sibling":        {"working_dir", "/workspace2", "working_dir"},
		"dir up":             {"working_dir", "/workspace/../etc", "working_dir"},
		"dir dots inside":    {"working_dir", "/workspace/a/../b", "working_dir"},
		"dir double":         {"working_dir", "/workspace//a", "working_dir"},
		"dir dot":            {"working_dir", "/workspace/.", "working_dir"},
		"dir nul":            {"working_dir", "/workspace/\x00", "working_dir"},
		"dir backslash":      {"working_dir", `/workspace\..\etc`, "working_dir"},
		"dir empty":          {"working_dir", "", "working_dir"},
		"dir root":           {"working_dir", "/", "working_dir"},
		"dir type":           {"working_dir", 7, "working_dir"},
		"dir below":          {"working_dir", "/workspace/a/b", ""},
		"dir slash":          {"working_dir", "/workspace/", ""},
		"timeout 0":          {"timeout_seconds", 0, "timeout_seconds"},
		"timeout negative":   {"timeout_seconds", -1, "timeout_seconds"},
		"timeout 901":        {"timeout_seconds", 901, "timeout_seconds"},
		"timeout huge":       {"timeout_seconds", json.RawMessage("99999999999999999999"), "timeout_seconds"},
		"timeout fraction":   {"timeout_seconds", 1.5, "timeout_seconds"},
		"timeout exponent":   {"timeout_seconds", json.RawMessage("1e2"), "timeout_seconds"},
		"timeout text":       {"timeout_seconds", "300", "timeout_seconds"},
		"timeout bool":       {"timeout_seconds", true, "timeout_seconds"},
		"timeout null":       {"timeout_seconds", json.RawMessage("null"), "timeout_seconds"},
		"timeout 1":          {"timeout_seconds", 1, ""},
		"timeout 900":        {"timeout_seconds", 900, ""},
		"input mode":         {"input_mode", "text-line", "input_mode"},
		"input mode other":   {"input_mode", "none", "input_mode"},
		"unknown field":      {"env", map[string]any{}, `"env"`},
		"field case":         {"Mode", "plan", `"Mode"`},
		"unknown, not ASCII": {"mode\u200b", "plan", `"mode\u200b"`},
	} {
		t.Run(name, func(t *testing.T) {
			e := good()
			if e[c.field] = c.value; c.value == nil {
				delete(e, c.field)
			}
			_, broken := prepare(t, request(t, e))
			if c.where == "" {
				if broken != nil {
					t.Errorf("refused: %v", broken)
				}
				return
			}
			want := `message.metadata["` + adaptercommand.URI + `"].` + c.where
			if len(broken) != 1 || broken[0].Field != want || broken[0].Description == "" {
				t.Errorf("violations are %v, want one of %s", broken, want)
			}
		})
	}
}

func TestRequestPaths(t *testing.T) {
	const a, r = ".aiwg/ops/adapters/sandbox-agent-runner/", ".aiwg/ops/runs/"
	for p, ok := range map[string]bool{
		a + "x.json": true, r + "x.json": true, r + "a/b/c.json": true, r + "with space.json": true, r + "..x": true, r + "x..": true, r + "...": true,
		"": false, ".": false, a: false, r: false, strings.TrimSuffix(r, "/"): false, "x.json": false, "/" + r + "x": false,
		"./" + r + "x": false, r + "../x": false, r + "..": false, r + "a/../../x": false, r + "a/../b": false, r + "./x": false,
		r + "/x": false, r + "a//b": false, r + "x/": false, r + `..\x`: false, r + `a\b`: false, r + "x\x00": false, r + "\x00/../x": false,
		r + "x\n": false, r + "\x7f": false, r + "%2e%2e/x": false, r + "%2Fetc": false, r + "\u2025/x": false, r + "\uff0e\uff0e/x": false,
		r + "\u2215etc": false, r + "\xc0\xae\xc0\xae/x": false, r + "\xff": false,
		".AIWG/ops/runs/x": false, ".aiwg/ops/runs2/x": false, ".aiwg/ops/runsx": false, ".aiwg/ops/adapters/other/x": false,
		"-" + r + "x": false, "file://" + r + "x": false, "~/" + r + "x": false, r + strings.Repeat("x", 4096): false,
	} {
		e := good()
		// Not through json.Marshal, which would mend what is not UTF-8.
		e["command"] = []any{"node", script, "--request", "PATH"}
		raw, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		quoted, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		_, broken := prepare(t, request(t, json.RawMessage(strings.Replace(string(raw), `"PATH"`, string(quoted), 1))))
		if (broken == nil) != ok {
			t.Errorf("path %q: %v", p, broken)
		}
	}
}

func TestShapes(t *testing.T) {
	whole, err := json.Marshal(good())
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{
		`null`, `true`, `"x"`, `[]`, `7`, `{}`, `[` + string(whole) + `]`,
		strings.Replace(string(whole), `"mode":"plan"`, `"mode":"apply","mode":"plan"`, 1),
		strings.Replace(string(whole), `"mode":"plan"`, `"mode":"plan","mode":"plan"`, 1),
	} {
		if _, broken := prepare(t, request(t, json.RawMessage(raw))); broken == nil {
			t.Errorf("%s was taken", raw)
		}
	}
}

// TestNothingBecomesAnEcho: what is meant for this runner is claimed however
// it is spelled, and refused.
func TestNothingBecomesAnEcho(t *testing.T) {
	raw, err := json.Marshal(good())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		strings.Replace(adaptercommand.URI, "/v1", "/v2", 1), adaptercommand.URI + "/", strings.ToUpper(adaptercommand.URI),
		strings.Replace(adaptercommand.URI, "https", "http", 1), "adapter-command", "adapter-command/v1", adaptercommand.URI + "/envelope",
		"adapter_command", "adapterCommand", "x.Adapter_Command", "adapter command",
	} {
		req := request(t, good())
		req.Message.Metadata = task.Metadata{key: raw}
		if _, broken := prepare(t, req); broken == nil {
			t.Errorf("key %q was taken", key)
		}
		req.Message.Metadata[adaptercommand.URI] = raw // two of them
		if _, broken := prepare(t, req); broken == nil {
			t.Errorf("key %q beside the right one was taken", key)
		}
	}
	req := request(t, good())
	req.Metadata, req.Message.Metadata = req.Message.Metadata, nil
	if _, broken := prepare(t, req); broken == nil {
		t.Error("an envelope beside the message was taken")
	}
	for _, key := range []string{adaptercommand.URI, "adapter_command"} {
		for _, inMessage := range []task.Metadata{nil, {adaptercommand.URI: raw}} {
			req := request(t, good())
			req.Message.Metadata = inMessage
			req.Message.Parts[1].Metadata = task.Metadata{key: raw}
			if _, broken := prepare(t, req); len(broken) != 1 || broken[0].Field != "message.parts[1].metadata" {
				t.Errorf("%s in a part's metadata: %v", key, broken)
			}
		}
	}
	if (adaptercommand.Runner{}).Claims(runner.Request{Message: task.Message{Metadata: task.Metadata{"other": nil}}}) {
		t.Error("a message without an envelope is claimed")
	}
}

func TestMessageText(t *testing.T) {
	for name, parts := range map[string][]task.Part{
		"NUL":      {task.TextPart("a\x00b")},
		"too long": {task.TextPart(strings.Repeat("x", runner.MaxText+1))},
		"bytes":    {{Raw: []byte("x")}},
	} {
		req := request(t, good())
		req.Message.Parts = parts
		if _, broken := prepare(t, req); broken == nil {
			t.Errorf("%s was taken", name)
		}
	}
	req := request(t, good())
	req.Machine.Env["BIG"] = strings.Repeat("x", 100<<10)
	req.Message.Parts = []task.Part{task.TextPart(strings.Repeat("x", runner.MaxText))}
	if _, broken := prepare(t, req); broken == nil {
		t.Error("an environment that is too large was taken")
	}
}

// TestWhatIsTakenIsSafe: whatever the path and directory, if they are taken
// they stay where they must.
func TestWhatIsTakenIsSafe(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		".aiwg", "ops", "runs", "adapters", "sandbox-agent-runner", "..", ".", "", "/", "\\", "a", "%2e", "\x00", " ", "workspace", ".aiwg/ops/runs/",
	})
	rapid.Check(t, func(rt *rapid.T) {
		p := strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(rt, "path"), rapid.SampledFrom([]string{"/", ""}).Draw(rt, "sep"))
		if rapid.Bool().Draw(rt, "prefixed") {
			p = ".aiwg/ops/runs/" + p
		}
		dir := "/" + strings.Join(rapid.SliceOfN(piece, 0, 5).Draw(rt, "dir"), "/")
		e := good()
		e["command"] = []any{"node", script, "--request", p}
		e["working_dir"] = dir
		req := request(t, e)
		cmd, err := adaptercommand.Runner{}.Prepare(req)
		if err != nil {
			return
		}
		got := cmd.Spec.GetArgv()[3]
		if got != p || path.Clean(got) != got || path.IsAbs(got) ||
			!strings.HasPrefix(got, ".aiwg/ops/runs/") && !strings.HasPrefix(got, ".aiwg/ops/adapters/sandbox-agent-runner/") {
			rt.Errorf("path %q was taken", got)
		}
		wd := cmd.Spec.GetWorkingDir()
		if path.Clean(wd) != wd || wd != "/workspace" && !strings.HasPrefix(wd, "/workspace/") {
			rt.Errorf("working directory %q was taken", wd)
		}
	})
}
