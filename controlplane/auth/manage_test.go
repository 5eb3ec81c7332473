package auth_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// TestChangesAreSeenHoweverTheyAreMade: in place, with the same size, or by a
// file that is as old as the one it replaces.
func TestChangesAreSeenHoweverTheyAreMade(t *testing.T) {
	dir := t.TempDir()
	running := open(t, dir)
	clear, err := auth.Add(dir, auth.Token{Name: "ci", Tenant: "t0", Scopes: []auth.Scope{auth.ScopeFleetRead}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, auth.TokensFile)
	tenant := func(want string) {
		t.Helper()
		if p, ok := running.Verify(clear); !ok || p.Tenant != want {
			t.Errorf("the token is of %q, want %q", p.Tenant, want)
		}
	}
	tenant("t0")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	with := func(tenant string) []byte {
		return bytes.Replace(data, []byte(`"t0"`), []byte(strconv.Quote(tenant)), 1)
	}
	if err := os.WriteFile(path, with("t1"), 0o600); err != nil {
		t.Fatal(err)
	}
	later := info.ModTime().Add(time.Second)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	tenant("t1")
	next := path + ".next"
	if err := os.WriteFile(next, with("t2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(next, later, later); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	tenant("t2")
}

// TestTokensAreBounded: each is compared at every request.
func TestTokensAreBounded(t *testing.T) {
	const most = 256
	dir := t.TempDir()
	open(t, dir)
	path := filepath.Join(dir, auth.TokensFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Version int              `json:"version"`
		Tokens  []map[string]any `json:"tokens"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for i := len(file.Tokens); i < most-1; i++ {
		one := maps.Clone(file.Tokens[0])
		one["name"] = fmt.Sprint("t", i)
		file.Tokens = append(file.Tokens, one)
	}
	if data, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	read := []auth.Scope{auth.ScopeFleetRead}
	if _, err := auth.Add(dir, auth.Token{Name: "last", Scopes: read}); err != nil {
		t.Error(err)
	}
	_, err = auth.Add(dir, auth.Token{Name: "beyond", Scopes: read})
	wantFault(t, err, "auth.too_many_tokens", "beyond")
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
	if !running.Expired(clear) || running.Expired(clear+"x") {
		t.Error("a token that has expired is not told from one that never was")
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
