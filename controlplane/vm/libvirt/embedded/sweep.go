package embedded

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Swept says what a sweep did, for the log.
type Swept struct {
	// Kept are the names of machines that a new driver will find again.
	Kept []string
	// Dropped are status files that would have misled the driver, and why.
	Dropped []string
	// Killed are hypervisor processes that no status file speaks for.
	Killed []string
}

// status is what libvirt keeps about a running machine.
type status struct {
	XMLName xml.Name `xml:"domstatus"`
	PID     int      `xml:"pid,attr"`
	Domain  struct {
		Name string `xml:"name"`
		UUID string `xml:"uuid"`
	} `xml:"domain"`
}

const (
	maxStatus = 4 << 20
	killLimit = 10 * time.Second
)

// Sweep removes what a killed process left in libvirt's root and what libvirt
// must not see when it connects:
//
//   - a status file with pid 0 becomes a machine that can be neither ended nor
//     made again;
//   - a status file whose pid now belongs to another process makes libvirt
//     kill that process, be it the same machine's in the state directory that
//     this one was copied from;
//   - hypervisors without a status file, capability probes among them, run for
//     ever.
//
// It may only run under the claim and before libvirt connects.
func Sweep(ctx context.Context, root *Root) (Swept, error) {
	var s Swept
	kept, err := s.statuses(root)
	if err != nil {
		return s, err
	}
	if err := s.strays(ctx, root, kept); err != nil {
		return s, err
	}
	return s, leftovers(root.Dir, kept)
}

// statuses drops status files that are not proven by a live hypervisor and
// returns the uuids, by name, of those that are.
func (s *Swept) statuses(root *Root) (map[string]string, error) {
	dir := filepath.Join(root.Dir, "run", "qemu")
	kept := map[string]string{}
	files, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot sweep %q: %w", dir, err)
	}
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".xml")
		if !ok {
			continue
		}
		st, why := prove(root, filepath.Join(dir, f.Name()), name)
		if why == "" {
			kept[name] = st.Domain.UUID
			s.Kept = append(s.Kept, name)
			continue
		}
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
			return nil, fmt.Errorf("cannot sweep: %w", err)
		}
		s.Dropped = append(s.Dropped, fmt.Sprintf("%q: %s", name, why))
	}
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".pid")
		if _, live := kept[name]; !ok || live || name == "driver" {
			continue
		}
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("cannot sweep: %w", err)
		}
	}
	return kept, nil
}

// prove reads a status file and returns why it must go, or "".
func prove(root *Root, path, name string) (status, string) {
	var st status
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxStatus {
		return st, "cannot be read"
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return st, "cannot be read"
	}
	if err := xml.Unmarshal(raw, &st); err != nil {
		return st, "is not a machine's status"
	}
	if st.Domain.Name != name {
		return st, "names another machine"
	}
	if st.PID <= 0 {
		return st, "its hypervisor was never started"
	}
	args, err := cmdline(st.PID)
	if err != nil || len(args) == 0 {
		return st, fmt.Sprintf("its hypervisor (pid %d) is gone", st.PID)
	}
	p := Process{PID: st.PID, Args: args}
	if !p.IsMachine(st.Domain.Name, st.Domain.UUID) {
		return st, fmt.Sprintf("pid %d is another process now", st.PID)
	}
	if p.elsewhere(root) {
		return st, fmt.Sprintf("pid %d belongs to another state directory, of which this one is a copy", st.PID)
	}
	return st, ""
}

// strays kills hypervisors that were started from this root, as their
// arguments show, or use its files although it has been moved since, and that no
// status file speaks for.
func (s *Swept) strays(ctx context.Context, root *Root, kept map[string]string) error {
	marks := root.marks()
	stray := func(p Process) bool {
		if p.PID == os.Getpid() {
			return false
		}
		name, uuid := p.machine()
		moved := func() bool { return name != "" && p.elsewhere(root) && p.uses(root.StateDir) }
		if !p.mentions(marks) && !moved() {
			return false
		}
		known, ok := kept[name]
		return !ok || known != uuid
	}
	found, err := Processes(stray)
	if err != nil {
		return err
	}
	for _, p := range found {
		if err := end(ctx, p.PID, stray); err != nil {
			return fmt.Errorf("cannot end stray hypervisor: %w", err)
		}
		name, _ := p.machine()
		s.Killed = append(s.Killed, fmt.Sprintf("pid %d (%q)", p.PID, name))
	}
	return nil
}

// end kills one process and waits for its end.
func end(ctx context.Context, pid int, still func(Process) bool) error {
	f, err := OpenPIDFD(pid, still)
	if err != nil {
		return nil //nolint:nilerr // it has ended already, which is what was wanted
	}
	defer func() { _ = f.Close() }()
	if err := KillPIDFD(f); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	return AwaitPIDFD(ctx, f)
}

// leftovers removes the directories of ended probes and machines.
func leftovers(root string, kept map[string]string) error {
	traces, err := Traces(root, "")
	if err != nil {
		return err
	}
	for _, path := range traces {
		if live(filepath.Base(path), kept) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("cannot sweep: %w", err)
		}
	}
	return nil
}

// maxShortName is where libvirt cuts a machine's name in a directory's.
const maxShortName = 20

// Traces returns the directories that libvirt has made for machines beneath
// its root and may leave there; those of probes too, when name is empty.
func Traces(root, name string) ([]string, error) {
	if name = name[:min(len(name), maxShortName)]; name == "" {
		name = "*"
	}
	patterns := []string{"domain-*-" + name, "channel/target/domain-*-" + name, "ram/*-" + name}
	if name == "*" {
		patterns = append(patterns, "qmp-*")
	}
	var found []string
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(root, "lib", "qemu", pattern))
		if err != nil {
			return nil, fmt.Errorf("cannot look for traces of machines: %w", err)
		}
		found = append(found, paths...)
	}
	return found, nil
}

// live reports whether a directory, "[domain-]<id>-<name>", is that of a
// machine that runs.
func live(entry string, kept map[string]string) bool {
	_, name, ok := strings.Cut(strings.TrimPrefix(entry, "domain-"), "-")
	if !ok || strings.HasPrefix(entry, "qmp-") {
		return false
	}
	for full := range kept {
		if full[:min(len(full), maxShortName)] == name {
			return true
		}
	}
	return false
}
