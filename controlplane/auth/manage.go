package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// maxTokens bounds how many there are: each is compared at every request.
const maxTokens = 256

// nameForm is what tokens and tenants may be called.
var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// Scopes are all scopes there are.
func Scopes() []Scope {
	return []Scope{ScopeAdmin, ScopeFleetRead, ScopeFleetWrite, ScopeInvoke, ScopeMetricsRead, ScopeReadHost}
}

// Token is what is known of a token; the token itself is not.
type Token struct {
	Name    string
	Scopes  []Scope
	Tenant  string // empty: the default tenant
	Created time.Time
	Expires time.Time // zero: never
}

// check names the field that breaks a rule, and the rule.
func (t Token) check(now time.Time) error {
	const form = "want lower-case letters, digits and -, a letter first, at most 63 characters"
	switch {
	case !nameForm.MatchString(t.Name):
		return fmt.Errorf("name %q: %s", t.Name, form)
	case t.Name == adminName:
		return fmt.Errorf("name %q: the daemon makes that one itself, in %s", t.Name, AdminFile)
	case t.Tenant != "" && !nameForm.MatchString(t.Tenant):
		return fmt.Errorf("tenant %q: %s", t.Tenant, form)
	case len(t.Scopes) == 0:
		return fmt.Errorf("scope: want at least one of %s", scopeList())
	case !t.Expires.IsZero() && !t.Expires.After(now):
		return fmt.Errorf("expires: %s is over", t.Expires.Format(time.RFC3339))
	}
	for i, s := range t.Scopes {
		if !slices.Contains(Scopes(), s) {
			return fmt.Errorf("scope %q: want one of %s", s, scopeList())
		}
		if slices.Contains(t.Scopes[:i], s) {
			return fmt.Errorf("scope %q: given twice", s)
		}
	}
	return nil
}

func scopeList() string {
	names := make([]string, 0, len(Scopes()))
	for _, s := range Scopes() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

// Add stores a new token in a state directory that a daemon has used before,
// and returns it in clear: nobody can read it again. A running daemon takes it
// at the next request.
func Add(stateDir string, t Token) (clear string, err error) {
	now := time.Now().UTC().Truncate(time.Second)
	if err := t.check(now); err != nil {
		return "", &instance.Fault{Blame: instance.Caller, Code: "auth.token_invalid", Err: fmt.Errorf("cannot add token: %w", err)}
	}
	if clear, err = newToken(); err != nil {
		return "", err
	}
	hash := sha256.Sum256([]byte(clear))
	e := entry{
		Name: t.Name, SHA256: hex.EncodeToString(hash[:]), Scopes: t.Scopes, Tenant: t.Tenant,
		Created: now, Expires: t.Expires.UTC().Truncate(time.Second), hash: hash,
	}
	err = change(stateDir, func(all []entry) ([]entry, error) {
		switch {
		case slices.ContainsFunc(all, func(e entry) bool { return e.Name == t.Name }):
			return nil, &instance.Fault{
				Blame: instance.Caller, Code: "auth.token_exists",
				Hint: "choose another name, or remove it first: sandboxd tokens rm " + t.Name,
				Err:  fmt.Errorf("cannot add token %q: there is one of that name", t.Name),
			}
		case len(all) >= maxTokens:
			return nil, &instance.Fault{
				Blame: instance.Caller, Code: "auth.too_many_tokens", Hint: "remove some that are not used: sandboxd tokens ls",
				Err: fmt.Errorf("cannot add token %q: there are %d, which is the most", t.Name, len(all)),
			}
		}
		return append(all, e), nil
	})
	if err != nil {
		return "", err
	}
	return clear, nil
}

// List returns what is known of the tokens of a state directory.
func List(stateDir string) ([]Token, error) {
	file, err := usedTokens(stateDir)
	if err != nil {
		return nil, err
	}
	all := make([]Token, 0, len(file.Tokens))
	for _, e := range file.Tokens {
		all = append(all, Token{Name: e.Name, Scopes: e.Scopes, Tenant: e.Tenant, Created: e.Created, Expires: e.Expires})
	}
	return all, nil
}

// Remove makes a token worthless. A running daemon refuses it from the next
// request on; streams that are open go on.
func Remove(stateDir, name string) error {
	if name == adminName {
		return &instance.Fault{
			Blame: instance.Caller, Code: "auth.token_invalid",
			Hint: fmt.Sprintf("to have a new one made, remove %s and restart sandboxd", filepath.Join(stateDir, AdminFile)),
			Err:  fmt.Errorf("cannot remove token %q: the daemon needs it", name),
		}
	}
	return change(stateDir, func(all []entry) ([]entry, error) {
		i := slices.IndexFunc(all, func(e entry) bool { return e.Name == name })
		if i < 0 {
			return nil, &instance.Fault{
				Blame: instance.Caller, Code: "auth.token_not_found", Hint: "sandboxd tokens ls shows what there is",
				Err: fmt.Errorf("cannot remove token %q: there is none of that name in %q", name, stateDir),
			}
		}
		return slices.Delete(all, i, i+1), nil
	})
}

// change replaces the tokens by what edit makes of them, while nobody else
// changes them.
func change(stateDir string, edit func([]entry) ([]entry, error)) error {
	unlock, err := lock(stateDir)
	if err != nil {
		return err
	}
	defer unlock()
	file, err := usedTokens(stateDir)
	if err != nil {
		return err
	}
	if file.Tokens, err = edit(file.Tokens); err != nil {
		return err
	}
	return storeTokens(stateDir, file.Tokens)
}

// usedTokens reads the tokens of a directory that has some: in another one, a
// token would be of no use to anybody.
func usedTokens(stateDir string) (tokensFile, error) {
	path := filepath.Join(stateDir, TokensFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return tokensFile{}, noTokens(stateDir, err)
	}
	return readTokens(path)
}

func noTokens(stateDir string, err error) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "auth.no_tokens",
		Hint: "name the state directory of your daemon with --state-dir; a new daemon must have been started once",
		Err:  fmt.Errorf("cannot find the tokens of a daemon in %q: %w", stateDir, err),
	}
}

func storeTokens(stateDir string, all []entry) error {
	data, err := json.MarshalIndent(tokensFile{Version: fileVersion, Tokens: all}, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot store tokens: %w", err)
	}
	return atomicfile.Write(filepath.Join(stateDir, TokensFile), append(data, '\n'), 0o600)
}

// lock keeps other processes from changing the tokens until unlock.
func lock(stateDir string) (unlock func(), err error) {
	d, err := os.Open(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noTokens(stateDir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open state directory: %w", err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock state directory %q: %w", stateDir, err), d.Close())
	}
	return func() { _ = d.Close() }, nil // and with it the lock
}

func newToken() (string, error) {
	secret := make([]byte, tokenBytes)
	if _, err := rand.Read(secret); err != nil {
		return "", fmt.Errorf("cannot make token: %w", err)
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(secret), nil
}
