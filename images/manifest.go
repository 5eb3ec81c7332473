package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// ManifestVersion is the version this code writes.
const ManifestVersion = 1

// Manifest says which files make a bootable image. Its own digest is that of
// its canonical JSON.
type Manifest struct {
	Version      int    `json:"version"`
	Name         string `json:"name"`
	Architecture string `json:"architecture"` // as in GOARCH
	// RootDisk is a qcow2 without a backing file.
	RootDisk Blob `json:"root_disk"`
	// Kernel is a PVH vmlinux, or a bzImage where that was not to be had.
	Kernel Blob `json:"kernel"`
	// Initramfs holds the agent and the kernel modules it loads.
	Initramfs  Blob              `json:"initramfs"`
	Labels     map[string]string `json:"labels,omitempty"`
	Provenance Provenance        `json:"provenance"`
}

// Blob is one file of an image.
type Blob struct {
	Digest Digest `json:"sha256"`
	Size   int64  `json:"size"` // bytes
	// VirtualSize is what a disk shows to a machine, in bytes; 0 for others.
	VirtualSize int64 `json:"virtual_size,omitempty"`
	// Format is "qcow2", "elf-pvh", "bzimage" or "cpio".
	Format string `json:"format"`
}

// Provenance says what an image was made of.
type Provenance struct {
	// InputHash is the digest over everything that went in; an image with
	// the same hash need not be built again.
	InputHash Digest `json:"input_hash"`
	Builder   string `json:"builder"`
	// Packages are "name=version" of what was installed, sorted.
	Packages []string  `json:"packages,omitempty"`
	BuiltAt  time.Time `json:"built_at"`
}

// Ref returns the pinned reference that names the image by its root disk.
func (m Manifest) Ref() Ref {
	return Ref{Name: m.Name, Digest: m.RootDisk.Digest}
}

// maxManifest bounds a manifest's JSON, in bytes.
const maxManifest = 4 << 20

// ParseManifest reads the JSON of a manifest and checks it. Unknown fields
// and versions are refused.
func ParseManifest(data []byte) (Manifest, error) {
	if len(data) > maxManifest {
		return Manifest{}, fmt.Errorf("cannot parse manifest: %d bytes are more than %d", len(data), maxManifest)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var m Manifest
	if err := dec.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("cannot parse manifest: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Manifest{}, errors.New("cannot parse manifest: something follows it")
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// Validate says what is wrong with a manifest.
func (m Manifest) Validate() error {
	switch {
	case m.Version != ManifestVersion:
		return fmt.Errorf("cannot use manifest: version is %d, this program knows %d", m.Version, ManifestVersion)
	case !nameRule.MatchString(m.Name):
		return fmt.Errorf("cannot use manifest: name %q is not valid", m.Name)
	case m.Architecture == "":
		return errors.New("cannot use manifest: architecture is empty")
	case m.Provenance.InputHash != "" && !digestRule.MatchString(string(m.Provenance.InputHash)):
		return fmt.Errorf("cannot use manifest: input hash %q is not valid", string(m.Provenance.InputHash))
	}
	for _, b := range m.Blobs() {
		known := false
		for _, f := range b.formats {
			known = known || f == b.Format
		}
		switch {
		case !digestRule.MatchString(string(b.Digest)):
			return fmt.Errorf("cannot use manifest: digest %q of the %s is not valid", string(b.Digest), b.Role)
		case b.Size <= 0 || b.VirtualSize < 0:
			return fmt.Errorf("cannot use manifest: size of the %s is not valid", b.Role)
		case !known:
			return fmt.Errorf("cannot use manifest: format %q of the %s is not one of %s", b.Format, b.Role, strings.Join(b.formats, ", "))
		}
	}
	return nil
}

// The formats of blobs.
const (
	FormatQCOW2   = "qcow2"
	FormatPVH     = "elf-pvh"
	FormatBzImage = "bzimage"
	FormatCPIO    = "cpio"
)

// NamedBlob is a blob and what it is to its image.
type NamedBlob struct {
	Role string // for people: "root disk", "kernel" or "initramfs"
	Blob
	formats []string
}

// Blobs returns the files of an image, the root disk first.
func (m Manifest) Blobs() []NamedBlob {
	return []NamedBlob{
		{"root disk", m.RootDisk, []string{FormatQCOW2}},
		{"kernel", m.Kernel, []string{FormatPVH, FormatBzImage}},
		{"initramfs", m.Initramfs, []string{FormatCPIO}},
	}
}

// Canonical returns the JSON of a manifest in the one form whose digest
// counts.
func (m Manifest) Canonical() ([]byte, error) {
	m.Provenance.BuiltAt = m.Provenance.BuiltAt.UTC()
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot write manifest: %w", err)
	}
	return append(data, '\n'), nil
}
