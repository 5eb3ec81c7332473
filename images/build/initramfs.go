package build

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"agentic-sandbox.aiwg.io/sandbox/images/initramfs"
)

// maxAgent bounds the guest agent, in bytes: every byte is memory of every
// machine.
const maxAgent = 64 << 20

// Initramfs writes an initramfs to the file out: the agent as /init, the given
// kernel modules beneath /modules under their own names, and the mount points
// the agent needs. Another archive may be appended to it.
func Initramfs(out, agent string, modules []string) error {
	if err := writeInitramfs(out, agent, modules); err != nil {
		return fmt.Errorf("cannot make initramfs: %w", err)
	}
	return nil
}

func writeInitramfs(out, agent string, modules []string) error {
	program, err := readAgent(agent)
	if err != nil {
		return err
	}
	entries := []initramfs.Entry{{Name: "init", Mode: 0o755, Data: program}}
	for _, dir := range []string{"dev", "modules", "newroot", "proc", "sys"} {
		entries = append(entries, initramfs.Entry{Name: dir, Mode: 0o755, Dir: true})
	}
	for _, m := range modules {
		data, err := os.ReadFile(m)
		if err != nil {
			return err
		}
		entries = append(entries, initramfs.Entry{Name: path.Join("modules", filepath.Base(m)), Mode: 0o644, Data: data})
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	return errors.Join(initramfs.Write(f, entries), f.Close())
}

// readAgent reads the agent and makes sure that a kernel can run it with
// nothing else there: a program that needs a loader would be a panic at boot.
func readAgent(agent string) ([]byte, error) {
	info, err := os.Stat(agent)
	if err != nil {
		return nil, fmt.Errorf("cannot read guest agent: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxAgent {
		return nil, fmt.Errorf("cannot use guest agent %q: it is not a file of at most %d bytes", agent, maxAgent)
	}
	program, err := os.ReadFile(agent)
	if err != nil {
		return nil, fmt.Errorf("cannot read guest agent: %w", err)
	}
	if !bytes.HasPrefix(program, []byte(elf.ELFMAG)) {
		return nil, fmt.Errorf("cannot use guest agent %q: it is not an ELF program", agent)
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, fmt.Errorf("cannot use guest agent %q: %w", agent, err)
	}
	defer f.Close()
	if f.Machine != elf.EM_X86_64 || f.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("cannot use guest agent %q: it is for %v, not for x86_64", agent, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("cannot use guest agent %q: it is not static; build it with CGO_ENABLED=0", agent)
		}
	}
	return program, nil
}
