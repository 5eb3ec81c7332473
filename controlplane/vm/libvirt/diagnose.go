package libvirt

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

const (
	maxConsole = 64 << 10 // bytes of console shown
	maxLogTail = 16 << 10 // bytes of QEMU's log shown
)

// Diagnose gathers what is known without asking the machine anything.
func (m *machine) Diagnose(ctx context.Context) vm.Diagnosis {
	m.mu.Lock()
	phase, since, proc, rec := m.life.phase, m.since, m.proc, m.record
	m.mu.Unlock()
	d := vm.Diagnosis{
		State: string(phase), Since: since,
		Console: printable(m.consoleTail()),
		Facts: map[string]string{
			"domain": m.name, "uri": m.d.uri(), "directory": m.files.dir(), "vsock": string(m.d.way),
		},
	}
	if path := m.hypervisorLog(); path != "" {
		d.Hypervisor = printable(tail(path, maxLogTail))
	}
	if rec.Run != nil {
		d.Facts["accelerator"] = map[bool]string{true: "kvm", false: "tcg"}[rec.Run.KVM]
		d.Facts["vsock"] = string(rec.Run.Way)
		if rec.Run.CID != 0 {
			d.Facts["cid"] = strconv.FormatUint(uint64(rec.Run.CID), 10)
		}
	}
	if proc != nil && !isClosed(proc.gone) {
		d.Facts["pid"] = strconv.Itoa(proc.pid)
	}
	if m.d.session == nil {
		return d
	}
	// libvirt answers from memory, but only once it is not busy.
	state := make(chan string, 1)
	err := m.d.call(ctx, func() error {
		s, reason, err := m.d.state(m.id)
		if err == nil {
			state <- fmt.Sprintf("%s (reason %d)", stateName(s), reason)
		}
		return err
	})
	switch {
	case err == nil:
		d.Facts["libvirt"] = <-state
	case noDomain(err):
		d.Facts["libvirt"] = "no domain"
	default:
		d.Facts["libvirt"] = "does not answer: " + err.Error()
	}
	return d
}

func stateName(s lv.DomainState) string {
	names := map[lv.DomainState]string{
		lv.DOMAIN_NOSTATE: "no state", lv.DOMAIN_RUNNING: "running", lv.DOMAIN_BLOCKED: "blocked",
		lv.DOMAIN_PAUSED: "paused", lv.DOMAIN_SHUTDOWN: "shutting down", lv.DOMAIN_SHUTOFF: "shut off",
		lv.DOMAIN_CRASHED: "crashed", lv.DOMAIN_PMSUSPENDED: "suspended",
	}
	if name, ok := names[s]; ok {
		return name
	}
	return fmt.Sprintf("state %d", s)
}

// ConsolePath implements vm.Console.
func (m *machine) ConsolePath() string { return m.files.console() }

// consoleTail returns the end of the console, across its last rotation.
func (m *machine) consoleTail() []byte {
	last := tail(m.files.console(), maxConsole)
	if len(last) < maxConsole {
		earlier := tail(m.files.console()+rotated, maxConsole-len(last))
		last = append(earlier, last...)
	}
	return last
}

// tail returns at most n bytes from the end of a file; nothing for one that
// cannot be read.
func tail(path string, n int) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	if _, err := f.Seek(max(0, info.Size()-int64(n)), io.SeekStart); err != nil {
		return nil
	}
	out, err := io.ReadAll(io.LimitReader(f, int64(n)))
	if err != nil {
		return nil
	}
	return out
}

// escapes are terminal control sequences: CSI, OSC and two-byte ones.
var escapes = regexp.MustCompile("\x1b(?:\\[[0-9;?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\-_c]?)")

// printable makes guest output safe to show: no control characters but line
// feed and tab, no terminal sequences, valid UTF-8.
func printable(raw []byte) string {
	text := escapes.ReplaceAllString(strings.ToValidUTF8(string(raw), "�"), "")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r':
			return -1
		case unicode.IsPrint(r):
			return r
		default:
			return '�'
		}
	}, text)
}
