package adaptercommand_test

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
)

// FuzzEnvelope: whatever the envelope, it is refused by fields and rules, or
// becomes the one command that there is, within all its bounds; and an
// envelope that says the same in plain words becomes the same command.
func FuzzEnvelope(f *testing.F) {
	raw, err := json.Marshal(good())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw, true)
	for _, seed := range []string{
		`{"mode":"plan","mode":"plan"}`, `{"command":["node",null]}`, `{} {}`, `[]`, `null`, `{"timeout_seconds":1e2}`,
		strings.Replace(string(raw), `"timeout_seconds":300`, `"timeout_seconds":900,"input_mode":"text-line"`, 1),
		strings.Replace(string(raw), "examples/", "../", 1), strings.Replace(string(raw), "examples/", `\u002e\u002e/`, 1),
		strings.Replace(string(raw), `"/workspace"`, `"/workspace/a/"`, 1), strings.Replace(string(raw), "/examples", `\u0000`, 1),
	} {
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, prompts bool) {
		req := request(t, json.RawMessage(raw))
		if prompts {
			req.Extensions = []string{extensions.HITLPrompt}
		}
		cmd, violations := prepare(t, req)
		for _, v := range violations {
			if !strings.HasPrefix(v.Field, "message.metadata[") || v.Description == "" || len(v.Field)+len(v.Description) > 1024 ||
				!utf8.ValidString(v.Field+v.Description) || strings.ContainsAny(v.Field+v.Description, "\x00\n\x1b") {
				t.Fatalf("refused by %+v", v)
			}
		}
		if cmd == nil {
			return
		}
		s := cmd.Spec
		argv, dir, seconds := s.GetArgv(), s.GetWorkingDir(), s.GetTimeout().AsDuration()/time.Second
		if len(argv) != 4 || !slices.Equal(argv[:3], []string{"node", script, "--request"}) {
			t.Fatalf("took %q", argv)
		}
		if p := argv[3]; path.Clean(p) != p || path.IsAbs(p) || strings.ContainsAny(p, "\\%\x00") ||
			!strings.HasPrefix(p, ".aiwg/ops/runs/") && !strings.HasPrefix(p, ".aiwg/ops/adapters/sandbox-agent-runner/") {
			t.Fatalf("took the path %q", p)
		}
		if path.Clean(dir) != dir || dir != "/workspace" && !strings.HasPrefix(dir, "/workspace/") {
			t.Fatalf("took the directory %q", dir)
		}
		mode := s.GetEnv()[adaptercommand.EnvMode]
		if seconds < 1 || seconds > 900 || mode != "plan" && mode != "assess" || s.GetStdin() && !prompts || len(cmd.Stdin) > 0 {
			t.Fatalf("took %v", s)
		}
		plain := maps.Clone(good())
		plain["mode"], plain["working_dir"], plain["timeout_seconds"] = mode, dir, seconds
		plain["command"] = argv
		if s.GetStdin() {
			plain["input_mode"] = "text-line"
		}
		again := request(t, plain)
		again.Extensions = req.Extensions
		if same, broken := prepare(t, again); broken != nil || !proto.Equal(same.Spec, s) {
			t.Fatalf("%q became %v, and that %v, %v", raw, s, same, broken)
		}
	})
}
