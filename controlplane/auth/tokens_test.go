package auth_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

func adminToken(t *testing.T, dir string) string {
	t.Helper()
	token, err := auth.ReadToken(filepath.Join(dir, auth.AdminFile))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func open(t *testing.T, dir string) *auth.Tokens {
	t.Helper()
	tokens, err := auth.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func TestFirstStartMakesAToken(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	token := adminToken(t, dir)
	if !regexp.MustCompile(`^sbx_[A-Za-z0-9_-]{43}$`).MatchString(token) {
		t.Errorf("token is %q", token)
	}
	for _, name := range []string{auth.TokensFile, auth.AdminFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", name, info.Mode(), err)
		}
	}
	stored, err := os.ReadFile(filepath.Join(dir, auth.TokensFile))
	if err != nil || strings.Contains(string(stored), token) || strings.Contains(string(stored), token[4:]) {
		t.Errorf("the token is stored in clear, or not at all: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("state directory holds %v, %v", left, err)
	}

	again := open(t, dir)
	if adminToken(t, dir) != token {
		t.Error("the second start made another token")
	}
	if p, ok := again.Verify(token); !ok || p.Name != "admin" || !p.Has(auth.ScopeAdmin) {
		t.Errorf("token belongs to %+v, %v", p, ok)
	}
	other := t.TempDir()
	open(t, other)
	if adminToken(t, other) == token {
		t.Error("two state directories have the same token")
	}
}

func TestLostFiles(t *testing.T) {
	t.Run("clear text", func(t *testing.T) {
		dir := t.TempDir()
		open(t, dir)
		old := adminToken(t, dir)
		remove(t, dir, auth.AdminFile)
		tokens := open(t, dir)
		if adminToken(t, dir) == old {
			t.Error("no new token was made")
		}
		if _, ok := tokens.Verify(old); ok {
			t.Error("the old token is still good")
		}
	})
	t.Run("hashes", func(t *testing.T) {
		dir := t.TempDir()
		open(t, dir)
		token := adminToken(t, dir)
		remove(t, dir, auth.TokensFile)
		if _, ok := open(t, dir).Verify(token); !ok || adminToken(t, dir) != token {
			t.Error("the token that the owner holds is no longer good")
		}
	})
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// TestRefusedFiles wants each a clear message with what to do, and nothing
// changed.
func TestRefusedFiles(t *testing.T) {
	for _, c := range []struct {
		name, file, content string
		mode                os.FileMode
		code, hint          string
	}{
		{"damaged", auth.TokensFile, "{", 0o600, "auth.tokens_damaged", "restore"},
		{"version", auth.TokensFile, `{"version":9}`, 0o600, "auth.tokens_damaged", "restore"},
		{"hash", auth.TokensFile, `{"version":1,"tokens":[{"name":"admin","sha256":"00"}]}`, 0o600, "auth.tokens_damaged", "restore"},
		{"readable", auth.AdminFile, "sbx_x\n", 0o644, "auth.file_mode", "chmod 600"},
		{"another", auth.AdminFile, "sbx_another\n", 0o600, "auth.tokens_differ", "remove"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			open(t, dir)
			path := filepath.Join(dir, c.file)
			if err := os.WriteFile(path, []byte(c.content), c.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			_, err := auth.Open(dir)
			var fault *instance.Fault
			if !errors.As(err, &fault) || fault.Code != c.code || !strings.Contains(fault.Hint, c.hint) ||
				!strings.Contains(err.Error(), dir) {
				t.Fatalf("got %v, want %s", err, c.code)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != c.content {
				t.Errorf("the file was changed: %q, %v", got, err)
			}
		})
	}
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "\n", "lines": "a\nb\n", "control": "sbx_\x1b[2J", "long": strings.Repeat("x", 5000)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := auth.ReadToken(path); err == nil {
			t.Errorf("%s: read %q", name, got)
		}
	}
	if _, err := auth.ReadToken(dir); err == nil {
		t.Error("read a directory")
	}
	if _, err := auth.ReadToken(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
}

// TestReadTokenSaysWhatToDo wants an advice that is true of the very file: only
// the administrator's token is made anew by the daemon.
func TestReadTokenSaysWhatToDo(t *testing.T) {
	state, own := t.TempDir(), t.TempDir()
	open(t, state)
	write := func(path, content string, mode os.FileMode) string {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const restart, add = "restart sandboxd, which makes a new one", "sandboxd tokens add"
	for _, c := range []struct{ path, code, want, not string }{
		{filepath.Join(own, "missing"), "auth.no_token_file", add, restart},
		{write(filepath.Join(own, "open"), "sbx_x", 0o644), "auth.file_mode", add, restart},
		{write(filepath.Join(own, auth.AdminFile), "sbx_x", 0o604), "auth.file_mode", add, restart},
		{write(filepath.Join(own, "words"), "two words", 0o600), "auth.token_file", "nothing but the token", restart},
		{write(filepath.Join(state, auth.AdminFile), "sbx_x", 0o640), "auth.file_mode", restart, add},
	} {
		_, err := auth.ReadToken(c.path)
		var f *instance.Fault
		if !errors.As(err, &f) || f.Code != c.code || !strings.Contains(f.Hint, c.want) || strings.Contains(f.Hint, c.not) {
			t.Errorf("%s: %v", c.path, err)
		}
	}
}
