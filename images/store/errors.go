package store

import (
	"errors"
	"fmt"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/images"
)

// Rebuild is the command that makes missing and broken images again.
const Rebuild = "make images"

// ErrNotFound is what a *NotFoundError is (errors.Is).
var ErrNotFound = errors.New("image is not in the store")

// NotFoundError says that the store has no image of that name.
type NotFoundError struct {
	Name string
	// Have are the names the store knows, sorted.
	Have []string
}

// Error names the images that there are, and the command that makes them.
func (e *NotFoundError) Error() string {
	have := "the store is empty"
	if len(e.Have) > 0 {
		have = "there are: " + strings.Join(e.Have, ", ")
	}
	return fmt.Sprintf("cannot find image %q: %s; to build the shipped images run: %s", e.Name, have, Rebuild)
}

// Is makes errors.Is(err, ErrNotFound) true.
func (e *NotFoundError) Is(target error) bool { return target == ErrNotFound }

// PinError says that an image exists, but not with the wanted root disk.
type PinError struct {
	Ref images.Ref
	// Have are the root disks the store has under that name, newest first.
	Have []images.Digest
}

// Error shows the digest that was asked for and those that there are.
func (e *PinError) Error() string {
	var have []string
	for _, d := range e.Have {
		have = append(have, d.String())
	}
	return fmt.Sprintf("cannot use image %q: it is pinned to root disk %s, the store has %s; change the pin, or bring the image back",
		e.Ref.Name, e.Ref.Digest, strings.Join(have, ", "))
}

// MismatchError says that a file of an image is not what it must be.
type MismatchError struct {
	Image string // name
	Role  string // "root disk", "kernel" or "initramfs"
	Path  string
	Want  images.Digest
	// Got is empty when there is no file.
	Got images.Digest
	// Quarantine is where the file is now; empty when it was not moved.
	Quarantine string
}

// Error shows both digests and the command that mends it.
func (e *MismatchError) Error() string {
	if e.Got == "" {
		return fmt.Sprintf("cannot use image %q: its %s %q is missing; build it again with: %s", e.Image, e.Role, e.Path, Rebuild)
	}
	where := ""
	if e.Quarantine != "" {
		where = fmt.Sprintf(" (moved to %q)", e.Quarantine)
	}
	return fmt.Sprintf("cannot use image %q: its %s must have %s and has %s%s; build it again with: %s",
		e.Image, e.Role, e.Want, e.Got, where, Rebuild)
}

// Remedy is the command that mends it.
func (e *MismatchError) Remedy() string { return Rebuild }

// Remedy is the command that mends it.
func (e *NotFoundError) Remedy() string { return Rebuild }
