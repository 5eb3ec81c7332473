// Package localhost is how a client finds the daemon of its own host: the
// daemon writes into its state directory where it listens, and a client looks
// into the state directories it may read. It holds no secrets, only the name
// of the file that does.
package localhost

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
)

const (
	// File is the name of the endpoint's file below a state directory.
	File = "endpoint.json"

	// SystemStateDir is where a daemon that root runs keeps its state.
	SystemStateDir = "/var/lib/agentic-sandbox"

	name    = "agentic-sandbox"
	maxFile = 64 << 10
)

// Endpoint is where a daemon can be reached.
type Endpoint struct {
	// URL is its base, such as "http://127.0.0.1:8420".
	URL string `json:"url"`
	// PublicURL is where others reach the same daemon; empty: as this host does.
	PublicURL string `json:"public_url,omitempty"`
	// TokenFile is the absolute path of a token for its owner.
	TokenFile string `json:"token_file"`
	PID       int    `json:"pid"`
	Version   string `json:"version"`
}

// Write tells clients where the daemon of stateDir is. Others may know that,
// too; without the token it is of no use.
func Write(stateDir string, e Endpoint) error {
	path := filepath.Join(stateDir, File)
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	return atomicfile.Write(path, append(data, '\n'), 0o644)
}

// Read returns where the daemon of stateDir is, or was when it wrote this: an
// error that is fs.ErrNotExist when it never did or has ended in order.
func Read(stateDir string) (Endpoint, error) {
	path := filepath.Join(stateDir, File)
	f, err := os.Open(path)
	if err != nil {
		return Endpoint{}, fmt.Errorf("cannot read %q: %w", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Endpoint{}, fmt.Errorf("cannot read %q: %w", path, err)
	}
	if err := trusted(info); err != nil {
		return Endpoint{}, fmt.Errorf("cannot trust %q: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return Endpoint{}, fmt.Errorf("cannot read %q: %w", path, err)
	}
	var e Endpoint
	if err := json.Unmarshal(data, &e); err != nil {
		return Endpoint{}, fmt.Errorf("cannot parse %q: %w", path, err)
	}
	u, err := url.Parse(e.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return Endpoint{}, fmt.Errorf("cannot parse %q: url %q is not an address of a server", path, e.URL)
	}
	if !filepath.IsAbs(e.TokenFile) {
		return Endpoint{}, fmt.Errorf("cannot parse %q: token_file %q is not an absolute path", path, e.TokenFile)
	}
	return e, nil
}

// trusted refuses a file that somebody else could have written: a client
// sends its token to the address in it.
func trusted(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others can write it (mode %04o)", info.Mode().Perm())
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return fmt.Errorf("it belongs to user %d", st.Uid)
	}
	return nil
}

// Remove makes Read find nothing, for a daemon that ends.
func Remove(stateDir string) error {
	err := os.Remove(filepath.Join(stateDir, File))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove endpoint: %w", err)
	}
	return nil
}

// Alive reports whether the process that wrote the endpoint may still run.
func (e Endpoint) Alive() bool {
	if e.PID <= 0 {
		return false
	}
	err := syscall.Kill(e.PID, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// UserStateDir is where a daemon that a user runs keeps its state.
func UserStateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, name), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("cannot find state directory: %w", err)
	}
	return filepath.Join(home, ".local", "state", name), nil
}

// DefaultStateDir is where a daemon keeps its state when no flag says where:
// the directory that SANDBOX_STATE_DIR names, so that clients with the same
// environment find it, else the user's own or, of root, the system's.
func DefaultStateDir() (string, error) {
	if dir := os.Getenv("SANDBOX_STATE_DIR"); dir != "" {
		return dir, nil
	}
	if os.Geteuid() == 0 {
		return SystemStateDir, nil
	}
	return UserStateDir()
}

// SearchDirs are the state directories a client looks into, in this order:
// the one that SANDBOX_STATE_DIR names and then no other, else the user's own
// and the system's.
func SearchDirs() []string {
	if dir := os.Getenv("SANDBOX_STATE_DIR"); dir != "" {
		return []string{dir}
	}
	var dirs []string
	if dir, err := UserStateDir(); err == nil {
		dirs = append(dirs, dir)
	}
	return append(dirs, SystemStateDir)
}
