package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// The files of a state directory, mode 0600: the hashes, and the
// administrator's token in clear for the owner.
const (
	TokensFile = "tokens.json"
	AdminFile  = "admin.token"
)

const (
	tokenPrefix = "sbx_"
	tokenBytes  = 32
	adminName   = "admin"

	maxTokensFile = 1 << 20
	maxTokenFile  = 4096
	fileVersion   = 1
)

// Tokens are the tokens of one state directory. Safe for concurrent use.
type Tokens struct {
	path string // empty: they never change

	mu      sync.Mutex
	entries []entry     // never changed, only replaced
	seen    fs.FileInfo // the file that entries are of
	report  func(error)
}

// entry is one token as it is stored. The hash needs no salt and no slow
// function: what is hashed are 256 random bits.
type entry struct {
	Name    string    `json:"name"`
	SHA256  string    `json:"sha256"`
	Scopes  []Scope   `json:"scopes"`
	Tenant  string    `json:"tenant,omitempty"` // empty: the default tenant
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`

	hash [sha256.Size]byte
}

type tokensFile struct {
	Version int     `json:"version"`
	Tokens  []entry `json:"tokens"`
}

// Open reads the tokens of a state directory. It makes the administrator's
// token when there is none yet, and a new one when its clear text is gone.
func Open(stateDir string) (*Tokens, error) {
	unlock, err := lock(stateDir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	t, err := open(stateDir)
	if err != nil {
		return nil, err
	}
	t.path = filepath.Join(stateDir, TokensFile)
	if t.seen, err = os.Stat(t.path); err != nil {
		return nil, fmt.Errorf("cannot read tokens: %w", err)
	}
	return t, nil
}

func open(stateDir string) (*Tokens, error) {
	file, err := readTokens(filepath.Join(stateDir, TokensFile))
	if err != nil {
		return nil, err
	}
	clear, err := ReadToken(filepath.Join(stateDir, AdminFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return mint(stateDir, file)
	case err != nil:
		return nil, err
	}
	t := &Tokens{entries: file.Tokens}
	if _, ok := t.Verify(clear); ok {
		return t, nil
	}
	if len(file.Tokens) == 0 {
		// The hashes are gone, the token is not: what the owner holds stays good.
		return adopt(stateDir, file, clear)
	}
	return nil, &instance.Fault{
		Blame: instance.Host, Code: "auth.tokens_differ",
		Hint: fmt.Sprintf("remove %s and start sandboxd again: it makes a new one", filepath.Join(stateDir, AdminFile)),
		Err:  fmt.Errorf("cannot use token in %q: it is not one of %s", filepath.Join(stateDir, AdminFile), TokensFile),
	}
}

// Verify returns the principal of a token. Every token is compared, each in
// constant time, so that the time taken tells nothing.
func (t *Tokens) Verify(token string) (Principal, bool) {
	e, ok := t.find(token)
	if !ok || e.over() {
		return Principal{}, false
	}
	return Principal{Name: e.Name, Scopes: e.Scopes, Tenant: e.Tenant}, true
}

// Expired reports whether a token was good once. Who holds it may know.
func (t *Tokens) Expired(token string) bool {
	e, ok := t.find(token)
	return ok && e.over()
}

func (e entry) over() bool { return !e.Expires.IsZero() && !time.Now().Before(e.Expires) }

func (t *Tokens) find(token string) (entry, bool) {
	hash := sha256.Sum256([]byte(token))
	found := -1
	entries := t.current()
	for i := range entries {
		if subtle.ConstantTimeCompare(hash[:], entries[i].hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return entry{}, false
	}
	return entries[found], true
}

// Report has report told why tokens that were changed cannot be read. Those read before stay good until they can.
func (t *Tokens) Report(report func(error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report = report
}

// current returns the tokens, read anew if their file has changed.
func (t *Tokens) current() []entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.path == "" {
		return t.entries
	}
	info, err := os.Stat(t.path) // before reading: a change in between is seen next time
	if err != nil || same(info, t.seen) {
		return t.entries // a file that is gone takes nobody's token away; Open mends it
	}
	file, err := readTokens(t.path)
	if err == nil {
		t.seen, t.entries = info, file.Tokens
		return t.entries
	}
	var fault *instance.Fault
	if errors.As(err, &fault) && !errors.Is(err, fs.ErrPermission) { // it stays so until the file changes again
		t.seen = info
	}
	if t.report != nil {
		t.report(fmt.Errorf("going on with the tokens read before: %w", err))
	}
	return t.entries
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode()
}

// mint makes a new token for the administrator, in place of an older one. The
// hash is stored first: after a crash in between there is no clear text, and
// the next Open makes yet another token.
func mint(stateDir string, file tokensFile) (*Tokens, error) {
	clear, err := newToken()
	if err != nil {
		return nil, err
	}
	t, err := adopt(stateDir, file, clear)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(filepath.Join(stateDir, AdminFile), []byte(clear+"\n"), 0o600); err != nil {
		return nil, err
	}
	return t, nil
}

// adopt stores the hash of clear as the administrator's token.
func adopt(stateDir string, file tokensFile, clear string) (*Tokens, error) {
	hash := sha256.Sum256([]byte(clear))
	kept := make([]entry, 0, len(file.Tokens)+1)
	for _, e := range file.Tokens {
		if e.Name != adminName {
			kept = append(kept, e)
		}
	}
	kept = append(kept, entry{
		Name: adminName, SHA256: hex.EncodeToString(hash[:]), Scopes: []Scope{ScopeAdmin},
		Created: time.Now().UTC().Truncate(time.Second), hash: hash,
	})
	if err := storeTokens(stateDir, kept); err != nil {
		return nil, err
	}
	return &Tokens{entries: kept}, nil
}

func readTokens(path string) (tokensFile, error) {
	data, err := readPrivate(path, maxTokensFile, "")
	if errors.Is(err, fs.ErrNotExist) {
		return tokensFile{}, nil
	}
	if err != nil {
		return tokensFile{}, err
	}
	damaged := func(cause error) error {
		return &instance.Fault{
			Blame: instance.Host, Code: "auth.tokens_damaged",
			Hint: fmt.Sprintf("restore %s; or remove it and restart sandboxd: the token in %s stays good, all others are lost",
				path, AdminFile),
			Err: fmt.Errorf("cannot read tokens from %q: %w", path, cause),
		}
	}
	var file tokensFile
	if err := json.Unmarshal(data, &file); err != nil {
		return tokensFile{}, damaged(err)
	}
	if file.Version != fileVersion {
		return tokensFile{}, damaged(fmt.Errorf("version is %d, want %d", file.Version, fileVersion))
	}
	for i := range file.Tokens {
		hash, err := hex.DecodeString(file.Tokens[i].SHA256)
		if err != nil || len(hash) != sha256.Size {
			return tokensFile{}, damaged(fmt.Errorf("hash of token %q is not a SHA-256", file.Tokens[i].Name))
		}
		copy(file.Tokens[i].hash[:], hash)
	}
	return file, nil
}

// ReadToken reads a token in clear from a file that only its owner can read. An
// error is a fault that says what to do; of a file that is missing it is
// fs.ErrNotExist as well.
func ReadToken(path string) (string, error) {
	data, err := readPrivate(path, maxTokenFile, another(path))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fileFault("auth.no_token_file", err,
			"write the token into it and make it yours alone (mode 0600); `sandboxd tokens add` on the daemon's host makes one")
	}
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fileFault("auth.token_file", fmt.Errorf("cannot use token file %q: want one line with a token", path),
			"write nothing but the token into it")
	}
	return token, nil
}

func fileFault(code string, err error, hint string) error {
	return &instance.Fault{Blame: instance.Host, Code: code, Hint: hint, Err: err}
}

// another is how to come to another token than that of a file: the
// administrator's is made anew by the daemon, any other by whoever gave it.
func another(path string) string {
	dir, base := filepath.Split(path)
	if base == AdminFile {
		if _, err := os.Stat(filepath.Join(dir, TokensFile)); err == nil {
			return "remove it and restart sandboxd, which makes a new one"
		}
	}
	return "have another token made: `sandboxd tokens rm` and `sandboxd tokens add`, on the daemon's host"
}

// readPrivate reads a small file and refuses one that others can read, for
// then its secret is none. instead is what to do when they have read it; empty
// for a file that holds no secret.
func readPrivate(path string, limit int64, instead string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", path, err)
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("cannot read %q: want a regular file of at most %d bytes", path, limit)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		hint := "chmod 600 " + path
		if instead != "" {
			hint = "if nobody else has read it: " + hint + "; else " + instead
		}
		return nil, fileFault("auth.file_mode", fmt.Errorf("cannot use %q: others can access it (mode %04o)", path, perm), hint)
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fileFault("auth.file_owner", fmt.Errorf("cannot read %q: %w", path, err), "do this as the user who owns the file")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", path, err)
	}
	return data, nil
}
