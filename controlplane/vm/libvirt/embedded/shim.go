package embedded

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
)

// shimText runs QEMU, but lets libvirt's question for capabilities not try KVM.
const shimText = `#!/bin/sh
# Written at every start; changes are lost. For %s
n=$#
while [ "$n" -gt 0 ]; do
	arg=$1
	shift
	[ "$arg" != none,accel=kvm:tcg ] || arg=none,accel=tcg
	set -- "$@" "$arg"
	n=$((n - 1))
done
exec %s "$@"
`

// Shim returns a path for the emulator under which libvirt finds no KVM.
//
// It is for hosts where the hypervisors' user may not open /dev/kvm. libvirt
// run by root asks QEMU for its capabilities with the right to override file
// permissions, is told that there is KVM, sees that the user may not use it,
// discards what it learnt, and asks again: ten times and more for each start.
func Shim(root *Root, emulator string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(emulator, &st); err != nil {
		return "", fmt.Errorf("cannot use emulator %q: %w", emulator, err)
	}
	// The file must change when the emulator does: libvirt looks at its time.
	identity := fmt.Sprintf("inode %d of %d.%09d", st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
	quoted := "'" + strings.ReplaceAll(emulator, "'", `'\''`) + "'"
	text := fmt.Appendf(nil, shimText, identity, quoted)
	dir := filepath.Join(root.Dir, "bin")
	path := filepath.Join(dir, filepath.Base(emulator))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cannot make directory %q: %w", dir, err)
	}
	if err := atomicfile.Write(path, text, 0o755); err != nil {
		return "", err
	}
	return path, nil
}
