package images

import "time"

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
