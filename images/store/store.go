// Package store keeps images in a directory: every file under its own sha256,
// never written to after it appeared, checked before it is used.
//
//	blobs/sha256/<digest>       files, read-only
//	manifests/sha256/<digest>   manifests, by the digest of their JSON
//	names/<name>.json           which manifests a name stands for
//	tmp/                        files that are not yet complete
//	quarantine/                 files that turned out not to be what they claim
//	lock                        held by whoever changes any of this
//
// Several processes may use one store. Readers take no lock: files appear by
// rename, whole or not at all. The package must not know how images are made
// or who boots them.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/filelock"
)

// Store is a directory of images. Safe for concurrent use, also by several
// processes.
type Store struct {
	dir string

	mu       sync.Mutex
	verified map[images.Digest]*verification
}

// Open opens the store in dir, and makes one when there is none.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open image store: %w", err)
	}
	for _, sub := range []string{"blobs/sha256", "manifests/sha256", "names", "quarantine", "tmp"} {
		// Others may read: hypervisors run as users of their own.
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("cannot open image store: %w", err)
		}
	}
	return &Store{dir: dir, verified: map[images.Digest]*verification{}}, nil
}

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

func (s *Store) blobPath(d images.Digest) string {
	return filepath.Join(s.dir, "blobs", "sha256", string(d))
}

func (s *Store) manifestPath(d images.Digest) string {
	return filepath.Join(s.dir, "manifests", "sha256", string(d)+".json")
}

func (s *Store) namePath(name string) string { return filepath.Join(s.dir, "names", name+".json") }

// lock waits until no other process changes the store.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	return filelock.Lock(ctx, filepath.Join(s.dir, "lock"))
}

// name is the content of a file in names/.
type name struct {
	// Manifests are newest first, one for each root disk: a newer kernel or
	// agent around the same root disk takes the place of the older.
	Manifests []entry `json:"manifests"`
}

type entry struct {
	Manifest images.Digest `json:"manifest"`
	RootDisk images.Digest `json:"root_disk"`
}

const maxNameFile = 4 << 20

func (s *Store) readName(n string) (name, error) {
	data, err := readBounded(s.namePath(n), maxNameFile)
	if errors.Is(err, fs.ErrNotExist) {
		have, err := s.names()
		if err != nil {
			return name{}, err
		}
		return name{}, &NotFoundError{Name: n, Have: have}
	}
	if err != nil {
		return name{}, fmt.Errorf("cannot read image name %q: %w", n, err)
	}
	var out name
	if err := json.Unmarshal(data, &out); err != nil {
		return name{}, fmt.Errorf("cannot read image name %q: %w", n, err)
	}
	if len(out.Manifests) == 0 {
		return name{}, fmt.Errorf("cannot read image name %q: it stands for nothing", n)
	}
	return out, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%q has more than %d bytes", path, limit)
	}
	return data, err
}

// names returns the names in the store, sorted.
func (s *Store) names() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "names"))
	if err != nil {
		return nil, fmt.Errorf("cannot list images: %w", err)
	}
	var out []string
	for _, e := range entries {
		if n, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			if _, err := images.ParseRef(n); err == nil {
				out = append(out, n)
			}
		}
	}
	sort.Strings(out)
	return out, nil
}

// Lookup returns the manifest a reference stands for, without checking the
// files it names. Errors are *NotFoundError and *PinError.
func (s *Store) Lookup(ref images.Ref) (images.Manifest, error) {
	n, err := s.readName(ref.Name)
	if err != nil {
		return images.Manifest{}, err
	}
	pin := &PinError{Ref: ref}
	for _, e := range n.Manifests {
		if ref.Digest == "" || e.RootDisk == ref.Digest {
			return s.readManifest(ref.Name, e)
		}
		pin.Have = append(pin.Have, e.RootDisk)
	}
	return images.Manifest{}, pin
}

func (s *Store) readManifest(name string, e entry) (images.Manifest, error) {
	fail := func(err error) (images.Manifest, error) {
		return images.Manifest{}, fmt.Errorf("cannot read manifest of image %q: %w", name, err)
	}
	d, err := images.ParseDigest(string(e.Manifest))
	if err != nil {
		return fail(err)
	}
	data, err := readBounded(s.manifestPath(d), maxNameFile)
	if err != nil {
		return fail(err)
	}
	if got := digestOf(data); got != d {
		return fail(fmt.Errorf("%q has %s; to build it again run: %s", s.manifestPath(d), got, Rebuild))
	}
	m, err := images.ParseManifest(data)
	if err != nil {
		return fail(err)
	}
	if m.Name != name || m.RootDisk.Digest != e.RootDisk {
		return fail(fmt.Errorf("it is that of image %q", m.Ref()))
	}
	return m, nil
}

// Item is one manifest in the store.
type Item struct {
	Manifest images.Manifest
	// Current is true for the manifest its name stands for without a pin.
	Current bool
}

// List returns what the store has, by name, newest first within a name.
// A name whose manifests cannot be read is an error.
func (s *Store) List() ([]Item, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var out []Item
	for _, n := range names {
		content, err := s.readName(n)
		if err != nil {
			return nil, err
		}
		for i, e := range content.Manifests {
			m, err := s.readManifest(n, e)
			if err != nil {
				return nil, err
			}
			out = append(out, Item{Manifest: m, Current: i == 0})
		}
	}
	return out, nil
}
