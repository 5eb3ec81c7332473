package host

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

const (
	// maxConsole is how much of the end of the console is shown and kept.
	maxConsole = 64 << 10
	// consoleLimit is when the file is cut. The agent says little; what grows
	// the file is a workload that has found it.
	consoleLimit = 1 << 20
)

// readConsole returns the end of the console, made printable.
func readConsole(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > maxConsole {
		if _, err := f.Seek(-maxConsole, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConsole))
	if err != nil {
		return ""
	}
	return printable(string(data))
}

// printable replaces what could disturb a terminal or a page.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || (unicode.IsPrint(r) && r != unicode.ReplacementChar) {
			return r
		}
		return '?'
	}, s)
	return s[max(0, len(s)-maxConsole):]
}

// trimConsole keeps only the end of a console that has grown too long. The
// agent appends, so it goes on behind what is kept.
func trimConsole(path string) error {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || fi.Size() <= consoleLimit {
		return err
	}
	end := readConsole(path)
	if err := os.Truncate(path, 0); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("(older lines were cut)\n" + end)
	return errors.Join(err, f.Close())
}

// ConsolePath implements vm.Console.
func (m *Machine) ConsolePath() string { return m.path("console.log") }

// Diagnose reads files only and never waits for the machine.
func (m *Machine) Diagnose(context.Context) vm.Diagnosis {
	d := vm.Diagnosis{State: "created", Console: readConsole(m.path("console.log")), Facts: map[string]string{
		"access": "full host access",
		"agent":  m.driver.cfg.AgentBinary,
	}}
	_ = trimConsole(m.path("console.log")) // it was read; cutting can wait
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	l, runs := m.current()
	switch {
	case closed:
		d.State = "gone"
	case l == nil:
	case !runs:
		d.State = "stopped"
		d.Facts["exit"] = string(l.exit.Reason)
		if l.exit.Detail != "" {
			d.Facts["exit_detail"] = l.exit.Detail
		}
	default:
		d.State = "running"
		d.Facts["pid"] = strconv.Itoa(l.proc.pid)
		if s, ok := readStat(l.proc.pid); ok && s.state == 'T' {
			d.State = "paused"
		}
		if fi, err := os.Stat(m.path("process.json")); err == nil {
			d.Since = fi.ModTime().Round(time.Millisecond)
		}
	}
	return d
}
