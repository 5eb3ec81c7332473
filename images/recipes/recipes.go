// Package recipes says what images are made of: small YAML files that name
// packages and files, and hold no commands.
//
// The package only reads and checks them; images/build follows them. It must
// not know how anything is fetched or built.
package recipes

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

//go:embed *.yaml
var shipped embed.FS

// What a root disk is made from.
const (
	FromBusybox = "busybox" // one static program and its links
	FromDebian  = "debian"  // packages, installed as the distribution does
)

// maxRecipe bounds a recipe, in bytes.
const maxRecipe = 1 << 20

// Recipe says what one image is made of.
type Recipe struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
	// From is FromBusybox or FromDebian.
	From string `yaml:"from"`
	// Suite is the Debian release that packages and the kernel are taken from.
	Suite string `yaml:"suite"`
	// Kernel is a kernel package, or one that depends on it.
	Kernel string `yaml:"kernel"`
	// Packages are installed on the root disk.
	Packages []string `yaml:"packages"`
	// Exclude are absolute paths left out with everything beneath them. The
	// directories named themselves are kept, empty.
	Exclude     []string    `yaml:"exclude"`
	Wheels      []Wheel     `yaml:"wheels"`
	Symlinks    []Symlink   `yaml:"symlinks"`
	Disk        Disk        `yaml:"disk"`
	Users       []User      `yaml:"users"`
	Directories []Directory `yaml:"directories"`
	Files       []File      `yaml:"files"`
}

// Disk is the root file system and the disk that holds it.
type Disk struct {
	Size Size   `yaml:"size"`
	UUID string `yaml:"uuid"`
}

// Wheel is a Python package of which files are taken, without installing it.
type Wheel struct {
	Name     string    `yaml:"name"`
	Version  string    `yaml:"version"`
	Platform string    `yaml:"platform"`
	SHA256   string    `yaml:"sha256"`
	Install  []Install `yaml:"install"`
}

// Install takes a file, or a directory and all beneath it, out of a wheel.
type Install struct {
	From string `yaml:"from"`
	To   string `yaml:"to"`
	// Mode is for files; without it they are 0644, and 0755 when they begin
	// with "#!".
	Mode Mode `yaml:"mode"`
}

// Symlink is a symbolic link.
type Symlink struct {
	Path   string `yaml:"path"`
	Target string `yaml:"target"`
}

// User is an account and its home directory.
type User struct {
	Name  string `yaml:"name"`
	UID   int    `yaml:"uid"`
	GID   int    `yaml:"gid"`
	Home  string `yaml:"home"`
	Shell string `yaml:"shell"`
}

// Directory is a directory and its owner.
type Directory struct {
	Path string `yaml:"path"`
	UID  int    `yaml:"uid"`
	GID  int    `yaml:"gid"`
	Mode Mode   `yaml:"mode"`
}

// File is a text file that belongs to root.
type File struct {
	Path    string `yaml:"path"`
	Content string `yaml:"content"`
	Mode    Mode   `yaml:"mode"`
}

// Mode is permission bits, written as a quoted octal number. Zero means that
// none was given.
type Mode uint32

// UnmarshalYAML reads a quoted octal number.
func (m *Mode) UnmarshalYAML(n *yaml.Node) error {
	v, err := strconv.ParseUint(n.Value, 8, 32)
	if err != nil || n.Tag != "!!str" || v > 0o7777 {
		return fmt.Errorf("line %d: mode %q is not a quoted octal number such as \"0755\"", n.Line, n.Value)
	}
	*m = Mode(v)
	return nil
}

// Size is a number of bytes, written with a unit: MiB or GiB.
type Size int64

// UnmarshalYAML reads a number with its unit.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	for unit, shift := range map[string]int{"MiB": 20, "GiB": 30} {
		number, ok := strings.CutSuffix(n.Value, unit)
		if !ok {
			continue
		}
		v, err := strconv.ParseInt(number, 10, 24)
		if err == nil && v > 0 {
			*s = Size(v << shift)
			return nil
		}
	}
	return fmt.Errorf("line %d: size %q is not a whole number with MiB or GiB", n.Line, n.Value)
}

// Names returns the names of the shipped recipes, sorted.
func Names() []string {
	entries, err := shipped.ReadDir(".")
	if err != nil {
		return nil // an embedded directory can always be read
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	sort.Strings(names)
	return names
}

// Shipped returns a shipped recipe by its name.
func Shipped(name string) (Recipe, error) {
	data, err := shipped.ReadFile(name + ".yaml")
	if err != nil {
		return Recipe{}, fmt.Errorf("cannot find recipe %q: shipped are %s", name, strings.Join(Names(), ", "))
	}
	return Parse(data)
}

// Parse reads a recipe and checks it. Unknown fields are refused.
func Parse(data []byte) (Recipe, error) {
	if len(data) > maxRecipe {
		return Recipe{}, fmt.Errorf("cannot parse recipe: %d bytes are more than %d", len(data), maxRecipe)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	var r Recipe
	if err := dec.Decode(&r); err != nil {
		return Recipe{}, fmt.Errorf("cannot parse recipe: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Recipe{}, errors.New("cannot parse recipe: it holds more than one document")
	}
	if err := r.check(); err != nil {
		return Recipe{}, fmt.Errorf("cannot use recipe %q: %w", r.Name, err)
	}
	return r, nil
}

// rules are what the simple fields must look like. Everything that becomes
// an argument of a program starts with a letter or digit, so that it cannot
// be taken for an option.
type rules struct{ name, pkg, version, user, uuid, sha256 *regexp.Regexp }

func newRules() rules {
	return rules{
		name:    regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`),
		pkg:     regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{0,127}$`),
		version: regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`),
		user:    regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`),
		uuid:    regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`),
		sha256:  regexp.MustCompile(`^[0-9a-f]{64}$`),
	}
}

func (r Recipe) check() error {
	ok := newRules()
	const minDisk, maxDisk = 64 << 20, 4 << 40
	switch {
	case !ok.name.MatchString(r.Name):
		return errors.New("name must be 1 to 128 of a-z, 0-9, '.', '_' and '-'")
	case r.From != FromBusybox && r.From != FromDebian:
		return fmt.Errorf("from %q is not one of %s, %s", r.From, FromBusybox, FromDebian)
	case !ok.pkg.MatchString(r.Suite):
		return fmt.Errorf("suite %q is not a Debian release", r.Suite)
	case !ok.pkg.MatchString(r.Kernel):
		return fmt.Errorf("kernel %q is not a package name", r.Kernel)
	case r.Disk.Size < minDisk || r.Disk.Size > maxDisk:
		return errors.New("disk.size must be between 64MiB and 4096GiB")
	case !ok.uuid.MatchString(r.Disk.UUID):
		return fmt.Errorf("disk.uuid %q is not a UUID", r.Disk.UUID)
	case len(r.Packages) == 0:
		return errors.New("packages is empty")
	}
	for _, p := range r.Packages {
		if !ok.pkg.MatchString(p) {
			return fmt.Errorf("package %q is not a package name", p)
		}
	}
	return errors.Join(r.checkWheels(ok), r.checkUsers(ok), r.checkPaths())
}

func (r Recipe) checkWheels(ok rules) error {
	for _, w := range r.Wheels {
		switch {
		case !ok.pkg.MatchString(w.Name), !ok.version.MatchString(w.Version), !ok.version.MatchString(w.Platform):
			return fmt.Errorf("wheel %q: name, version or platform is not valid", w.Name)
		case !ok.sha256.MatchString(w.SHA256):
			return fmt.Errorf("wheel %q: sha256 must be 64 lower-case hexadecimal digits", w.Name)
		case len(w.Install) == 0:
			return fmt.Errorf("wheel %q: install is empty", w.Name)
		}
		for _, i := range w.Install {
			if i.From == "" || path.IsAbs(i.From) || path.Clean(i.From) != i.From || strings.HasPrefix(i.From, "..") {
				return fmt.Errorf("wheel %q: path %q is not relative and clean", w.Name, i.From)
			}
		}
	}
	return nil
}

func (r Recipe) checkUsers(ok rules) error {
	for _, u := range r.Users {
		const maxID = 60000
		if !ok.user.MatchString(u.Name) || u.UID < 1 || u.UID > maxID || u.GID < 1 || u.GID > maxID {
			return fmt.Errorf("user %q: the name, uid or gid is not valid", u.Name)
		}
	}
	return nil
}

func (r Recipe) checkPaths() error {
	paths := append([]string(nil), r.Exclude...)
	for _, w := range r.Wheels {
		for _, i := range w.Install {
			paths = append(paths, i.To)
		}
	}
	for _, s := range r.Symlinks {
		if s.Target == "" {
			return fmt.Errorf("symlink %q has no target", s.Path)
		}
		paths = append(paths, s.Path)
	}
	for _, u := range r.Users {
		paths = append(paths, u.Home, u.Shell)
	}
	for _, d := range r.Directories {
		paths = append(paths, d.Path)
	}
	for _, f := range r.Files {
		paths = append(paths, f.Path)
	}
	for _, p := range paths {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, "\x00\n\r\"\\:") {
			return fmt.Errorf("path %q is not absolute and clean", p)
		}
	}
	return nil
}
