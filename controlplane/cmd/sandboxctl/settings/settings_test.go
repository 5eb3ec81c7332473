package settings_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/settings"
)

func TestChangesAtOnceLoseNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "config.yaml")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			err := settings.Change(path, func(f *settings.File) error {
				f.Contexts[fmt.Sprintf("c%d", i)] = settings.Context{Server: "http://127.0.0.1:1"}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f, err := settings.Read(path)
	if err != nil || len(f.Contexts) != 20 {
		t.Fatalf("%d contexts, %v", len(f.Contexts), err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	refuse := errors.New("no")
	if err := settings.Change(path, func(f *settings.File) error { f.Contexts = nil; return refuse }); !errors.Is(err, refuse) {
		t.Errorf("got %v", err)
	}
	if err := settings.Change(path, func(f *settings.File) error { f.Current = "nowhere"; return nil }); err == nil {
		t.Error("a current context that is none was written")
	}
	if f, err := settings.Read(path); err != nil || len(f.Contexts) != 20 || f.Current != "" {
		t.Errorf("after refused changes: %+v, %v", f, err)
	}
}

func TestWhoMayRead(t *testing.T) {
	const with, without = "contexts: {a: {server: http://h, token: sbx_x}}\n", "contexts: {a: {server: http://h}}\n"
	for _, c := range []struct {
		text string
		mode os.FileMode
		ok   bool
	}{
		{with, 0o600, true}, {with, 0o640, false}, {with, 0o604, false},
		{without, 0o644, true}, {without, 0o664, false}, {without, 0o646, false},
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := settings.Read(path)
		var open *settings.OpenError
		if (err == nil) != c.ok || (err != nil && !errors.As(err, &open)) {
			t.Errorf("%q mode %v: %v", c.text, c.mode, err)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"contexts: {a: {server: https://h}}": "",
		"contexts: {a: {state-dir: /s}}\ncurrent-context: a": "",
		"contexts: {a: {}}":                                                    "contexts.a.server: want it, or state-dir",
		"contexts: {a: {server: h}}":                                           "contexts.a.server: want an address",
		"contexts: {a: {server: http://u:sbx_p@h}}":                            "without user and password",
		"contexts: {a: {server: http://h, token-file: x}}":                     "contexts.a.token-file: want an absolute path",
		"contexts: {a: {server: http://h, token-file: /x, token: sbx_secret}}": "contexts.a.token: want it or token-file",
		"contexts: {a: {state-dir: x}}":                                        "contexts.a.state-dir: want an absolute path",
		"contexts: {'a b': {server: http://h}}":                                "is no name",
		"contexts: {a: {server: http://h}}\ncurrent-context: b":                "is not among the contexts",
		"contexts: {a: {server: http://h, tokens: sbx_secret}}":                `line 1: unknown field "tokens"`,
		"contexts: {a: {server: http://h, token: [sbx_secret]}}":               "line 1: want a text",
		"contexts: sbx_secret":                                                 "line 1: want fields with names",
		"contexts: {a: [sbx_secret]}":                                          "line 1: want fields with names",
		"contexts: {a: {server: {sbx_a: sbx_b}}}":                              "line 1: want a text",
		"current-context: [sbx_secret]":                                        "line 1: want a text",
		"contexst: {}":                                                         `line 1: unknown field "contexst"`,
		"{":                                                                    "yaml",
	} {
		_, err := settings.Parse([]byte(text))
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "settings.") {
			t.Errorf("%q: the error names a type of Go: %v", text, err)
		}
		if err != nil && strings.Contains(err.Error(), "sbx_") {
			t.Errorf("%q: the error shows a secret: %v", text, err)
		}
	}
	many := []byte("contexts:\n")
	for i := range 1001 {
		many = fmt.Appendf(many, "  c%d: {server: http://h}\n", i)
	}
	if _, err := settings.Parse(many); err == nil {
		t.Error("1001 contexts were taken")
	}
}

func TestPath(t *testing.T) {
	t.Setenv("HOME", "/home/x")
	for _, c := range [][3]string{
		{"", "", "/home/x/.config/agentic-sandbox/config.yaml"},
		{"", "/c", "/c/agentic-sandbox/config.yaml"},
		{"", "relative is not valid", "/home/x/.config/agentic-sandbox/config.yaml"},
		{"/own.yaml", "/c", "/own.yaml"},
	} {
		t.Setenv(settings.PathEnv, c[0])
		t.Setenv("XDG_CONFIG_HOME", c[1])
		if got, err := settings.Path(); err != nil || got != c[2] {
			t.Errorf("%q: got %q, %v", c, got, err)
		}
	}
}

// FuzzParse takes any text: it neither panics nor accepts what Check refuses.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "contexts: {a: {server: http://h, token: sbx_x}}\ncurrent-context: a", "contexts: {a: {state-dir: /s}}", "{", "&a [*a]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := settings.Parse(data)
		if err != nil {
			return
		}
		for _, name := range file.Names() {
			if err := file.Contexts[name].Check(); err != nil || settings.CheckName(name) != nil {
				t.Errorf("took context %q: %v", name, err)
			}
		}
	})
}
