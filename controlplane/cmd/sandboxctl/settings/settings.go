// Package settings keeps the client's configuration file: the servers that a
// user works with, each under the name of a context. It knows no server and
// prints nothing; what it must not do is let a token out of its file.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"
)

const (
	// PathEnv names another file than the usual one.
	PathEnv = "SANDBOX_CONFIG"

	maxFile     = 1 << 20
	maxContexts = 1000
)

// Context is one server and how to be let in there.
type Context struct {
	// Server is an address such as "https://sandbox.example"; empty: that of
	// the daemon that has StateDir.
	Server string `yaml:"server,omitempty" json:"server,omitempty"`
	// TokenFile is the absolute path of a file that holds the token.
	TokenFile string `yaml:"token-file,omitempty" json:"token_file,omitempty"`
	// Token is the token itself, for those who have no better place.
	Token string `yaml:"token,omitempty" json:"-"`
	// StateDir is the state directory of a daemon of this host.
	StateDir string `yaml:"state-dir,omitempty" json:"state_dir,omitempty"`
}

// File is the whole configuration.
type File struct {
	Current  string             `yaml:"current-context,omitempty"`
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

// ErrNoContext says that there is no context of a name.
var ErrNoContext = errors.New("there is no such context")

// Path is where the configuration is: $SANDBOX_CONFIG, or config.yaml of
// agentic-sandbox in the user's directory for configurations (XDG).
func Path() (string, error) {
	if p := os.Getenv(PathEnv); p != "" {
		return p, nil
	}
	dir := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("cannot find the configuration: %w", err)
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "agentic-sandbox", "config.yaml"), nil
}

// Read reads the configuration at path; none is an empty one. It refuses a
// file that others can write, since it says where tokens are sent, and one
// with tokens that others can read.
func Read(path string) (File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("cannot read configuration: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, fmt.Errorf("cannot read configuration: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return File{}, fmt.Errorf("cannot read configuration: %w", err)
	}
	if len(data) > maxFile {
		return File{}, fmt.Errorf("cannot read configuration %q: it is longer than %d bytes", path, maxFile)
	}
	file, err := Parse(data)
	if err != nil {
		return File{}, fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	closed := fs.FileMode(0o022)
	for _, c := range file.Contexts {
		if c.Token != "" {
			closed = 0o077
		}
	}
	if info.Mode().Perm()&closed != 0 {
		return File{}, &OpenError{Path: path, Mode: info.Mode().Perm()}
	}
	return file, nil
}

// OpenError says that others than the owner have access to the file.
type OpenError struct {
	Path string
	Mode fs.FileMode
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("cannot trust configuration %q: others can access it (mode %04o)", e.Path, e.Mode)
}

// Parse reads the text of a configuration and checks it.
func Parse(data []byte) (File, error) {
	var file File
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return File{}, hideValues(err)
	}
	if len(file.Contexts) > maxContexts {
		return File{}, fmt.Errorf("contexts: want at most %d", maxContexts)
	}
	for _, name := range file.Names() {
		if err := CheckName(name); err != nil {
			return File{}, fmt.Errorf("contexts: %w", err)
		}
		if err := file.Contexts[name].Check(); err != nil {
			return File{}, fmt.Errorf("contexts.%s.%w", name, err)
		}
	}
	if _, ok := file.Contexts[file.Current]; file.Current != "" && !ok {
		return File{}, fmt.Errorf("current-context: %q is not among the contexts", file.Current)
	}
	return file, nil
}

// hideValues keeps what stands in the file out of an error: yaml quotes
// values, and one may be a token. Types of Go are told in words.
func hideValues(err error) error {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return err
	}
	lines := make([]error, 0, len(wrong.Errors))
	for _, text := range wrong.Errors {
		text = unknownField.ReplaceAllString(text, `${1}unknown field "$2"`)
		text = wantedText.ReplaceAllString(text, "${1}want a text")
		text = wantedFields.ReplaceAllString(text, "${1}want fields with names")
		lines = append(lines, errors.New(quoted.ReplaceAllString(text, "…")))
	}
	return errors.Join(lines...)
}

var (
	quoted       = regexp.MustCompile("`[^`]*`")
	unknownField = regexp.MustCompile(`^(line \d+: )field (\S+) not found in type \S+$`)
	wantedText   = regexp.MustCompile(`(?s)^(line \d+: )cannot unmarshal .* into string$`)
	wantedFields = regexp.MustCompile(`(?s)^(line \d+: )cannot unmarshal .* into \S+$`)
)

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// CheckName says what is wrong with the name of a context.
func CheckName(name string) error {
	if !nameRule.MatchString(name) {
		return fmt.Errorf("%q is no name: want 1 to 63 of letters, digits, '.', '_' and '-', beginning with a letter or digit", name)
	}
	return nil
}

// Check says which field is wrong, and why.
func (c Context) Check() error {
	if c.Server != "" {
		u, err := url.Parse(c.Server)
		switch {
		case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
			return errors.New("server: want an address such as http://127.0.0.1:8420")
		case u.User != nil:
			return errors.New("server: want an address without user and password")
		}
	}
	if c.TokenFile != "" && !filepath.IsAbs(c.TokenFile) {
		return errors.New("token-file: want an absolute path")
	}
	if c.StateDir != "" && !filepath.IsAbs(c.StateDir) {
		return errors.New("state-dir: want an absolute path")
	}
	if c.Token != "" && c.TokenFile != "" {
		return errors.New("token: want it or token-file, not both")
	}
	if c.Server == "" && c.StateDir == "" {
		return errors.New("server: want it, or state-dir")
	}
	return nil
}

// Names are the contexts, sorted.
func (f File) Names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

// Get finds a context.
func (f File) Get(name string) (Context, error) {
	c, ok := f.Contexts[name]
	if !ok {
		return Context{}, fmt.Errorf("cannot use context %q: %w", name, ErrNoContext)
	}
	return c, nil
}

// Change reads the configuration, lets f change it, and replaces the file,
// readable for its owner only. Two at once do not lose each other's change.
func Change(path string, f func(*File) error) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	defer lock.Close()                                               // and with it the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { //nolint:gosec // a descriptor fits
		return fmt.Errorf("cannot lock %q: %w", dir, err)
	}
	file, err := Read(path)
	if err != nil {
		return err
	}
	if file.Contexts == nil {
		file.Contexts = map[string]Context{}
	}
	if err := f(&file); err != nil {
		return err
	}
	data, err := yaml.Marshal(file)
	if err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	if _, err := Parse(data); err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	return replace(path, data)
}

func replace(path string, data []byte) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".config.*") // mode 0600
	if err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	defer func() {
		if err != nil {
			_ = tmp.Close()           // may be closed already
			_ = os.Remove(tmp.Name()) // the error that counts is err
		}
	}()
	if _, err := tmp.Write(data); err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	return nil
}
