package auth_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// TestRunningDaemonTakesChanges: tokens that are open see what others change.
func TestRunningDaemonTakesChanges(t *testing.T) {
	dir := t.TempDir()
	running := open(t, dir)
	running.Report(func(err error) { t.Errorf("a change was not taken: %v", err) })
	want := auth.Token{Name: "ci", Tenant: "blue", Scopes: []auth.Scope{auth.ScopeFleetRead, auth.ScopeInvoke}}
	clear, err := auth.Add(dir, want)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := running.Verify(clear)
	if !ok || p.Name != "ci" || p.Tenant != "blue" || !p.Has(auth.ScopeInvoke) || p.Has(auth.ScopeFleetWrite) {
		t.Errorf("the token belongs to %+v, %v", p, ok)
	}
	if _, ok := running.Verify(adminToken(t, dir)); !ok {
		t.Error("the administrator's token is no longer good")
	}
	stored, err := os.ReadFile(filepath.Join(dir, auth.TokensFile))
	if err != nil || strings.Contains(string(stored), clear[4:]) {
		t.Errorf("the token is stored in clear: %v", err)
	}
	all, err := auth.List(dir)
	if err != nil || len(all) != 2 || all[1].Name != "ci" || all[1].Tenant != "blue" || !slices.Equal(all[1].Scopes, want.Scopes) ||
		all[1].Created.IsZero() || !all[1].Expires.IsZero() {
		t.Errorf("there are %+v, %v", all, err)
	}
	if _, ok := open(t, dir).Verify(clear); !ok {
		t.Error("the next daemon does not know the token")
	}
	if err := auth.Remove(dir, "ci"); err != nil {
		t.Fatal(err)
	}
	if _, ok := running.Verify(clear); ok {
		t.Error("a token that was removed is still good")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("state directory holds %v, %v", left, err)
	}
}

func TestExpiry(t *testing.T) {
	dir := t.TempDir()
	running := open(t, dir)
	clear, err := auth.Add(dir, auth.Token{Name: "soon", Scopes: []auth.Scope{auth.ScopeAdmin}, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := running.Verify(clear); !ok {
		t.Fatal("the token is not good yet")
	}
	path := filepath.Join(dir, auth.TokensFile)
	stored, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := auth.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	past := strings.Replace(string(stored), all[1].Expires.Format(time.RFC3339), "2001-01-01T00:00:00Z", 1)
	if past == string(stored) || os.WriteFile(path, []byte(past+"\n"), 0o600) != nil {
		t.Fatalf("the expiry is not in %s", stored)
	}
	if _, ok := running.Verify(clear); ok {
		t.Error("a token that has expired is still good")
	}
}

// TestDamagedChangeIsNotTaken: what was read before stays good, and it is said.
func TestDamagedChangeIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	running := open(t, dir)
	var reports []error
	running.Report(func(err error) { reports = append(reports, err) })
	path := filepath.Join(dir, auth.TokensFile)
	good, err := os.ReadFile(path)
	if err != nil || os.WriteFile(path, []byte("{"), 0o600) != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, ok := running.Verify(adminToken(t, dir)); !ok {
			t.Error("the administrator's token is no longer good")
		}
	}
	if len(reports) != 1 || !strings.Contains(reports[0].Error(), path) {
		t.Errorf("reported %v", reports)
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if clear, err := auth.Add(dir, auth.Token{Name: "ci", Scopes: auth.Scopes()}); err != nil {
		t.Error(err)
	} else if _, ok := running.Verify(clear); !ok {
		t.Error("changes are no longer taken")
	}
}

// TestRefusedTokens: the error names the field and the rule, and nothing is stored.
func TestRefusedTokens(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	read := []auth.Scope{auth.ScopeFleetRead}
	if _, err := auth.Add(dir, auth.Token{Name: "taken", Scopes: read}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		token      auth.Token
		code, want string
	}{
		{auth.Token{Name: "", Scopes: read}, "auth.token_invalid", "name"},
		{auth.Token{Name: "A b\n", Scopes: read}, "auth.token_invalid", `name "A b\n"`},
		{auth.Token{Name: "admin", Scopes: read}, "auth.token_invalid", "admin.token"},
		{auth.Token{Name: "taken", Scopes: read}, "auth.token_exists", "taken"},
		{auth.Token{Name: "x"}, "auth.token_invalid", "scope"},
		{auth.Token{Name: "x", Scopes: []auth.Scope{"fleet:rea"}}, "auth.token_invalid", "fleet:read-host"},
		{auth.Token{Name: "x", Scopes: []auth.Scope{"admin", "admin"}}, "auth.token_invalid", "twice"},
		{auth.Token{Name: "x", Scopes: read, Tenant: "../y"}, "auth.token_invalid", "tenant"},
		{auth.Token{Name: "x", Scopes: read, Expires: time.Unix(1, 0)}, "auth.token_invalid", "expires"},
	} {
		_, err := auth.Add(dir, c.token)
		wantFault(t, err, c.code, c.want)
	}
	wantFault(t, auth.Remove(dir, "nobody"), "auth.token_not_found", "nobody")
	wantFault(t, auth.Remove(dir, "admin"), "auth.token_invalid", "admin")
	for _, other := range []string{t.TempDir(), filepath.Join(dir, "missing")} {
		_, err := auth.Add(other, auth.Token{Name: "x", Scopes: read})
		wantFault(t, err, "auth.no_tokens", other)
		_, err = auth.List(other)
		wantFault(t, err, "auth.no_tokens", other)
	}
	if all, err := auth.List(dir); err != nil || len(all) != 2 {
		t.Errorf("there are %+v, %v", all, err)
	}
}

func wantFault(t *testing.T, err error, code, text string) {
	t.Helper()
	var fault *instance.Fault
	if !errors.As(err, &fault) || fault.Code != code || fault.Blame != instance.Caller || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %s with %q", err, code, text)
	}
}

// TestAddAtOnce: none of those who add tokens at once undoes another's.
func TestAddAtOnce(t *testing.T) {
	dir := t.TempDir()
	running := open(t, dir)
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		wg.Go(func() {
			clear, err := auth.Add(dir, auth.Token{Name: name, Scopes: auth.Scopes()})
			if err != nil {
				t.Error(err)
			} else if p, ok := running.Verify(clear); !ok || p.Name != name {
				t.Errorf("token %s belongs to %+v, %v", name, p, ok)
			}
		})
	}
	wg.Wait()
	if all, err := auth.List(dir); err != nil || len(all) != 7 {
		t.Errorf("there are %+v, %v", all, err)
	}
}
