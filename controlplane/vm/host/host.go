// Package host is a driver whose machines are processes of the host: the real
// agent, serving on a unix socket. It lets every layer above the driver be
// tested fast, and gives workloads FULL ACCESS TO THE HOST with the rights of
// the daemon's user: it isolates nothing and is never a default.
//
// It knows processes and files. It must not know libvirt, loadouts or tasks.
//
//	<state dir>/machines/<id>/  spec.json     who it is
//	                            boot.json     the agent's configuration
//	                            process.json  pid and start time, while it runs
//	                            exit.json     how it ended
//	                            agent.sock, console.log
//	                            disk/         survives a restart
package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// name is the runtime/v1 provider name and the driver of our handles.
const name = "host"

const handleVersion = 1

// errClosed is returned by everything after Close of the driver.
var errClosed = errors.New("host driver is closed")

// Config of a driver.
type Config struct {
	// StateDir holds all machines. It is created if missing.
	StateDir string
	// AgentBinary is the path of sandbox-agent.
	AgentBinary string
	Log         *slog.Logger
}

// Driver makes machines that are processes. It implements vm.Driver.
type Driver struct {
	cfg    Config
	closed chan struct{}

	mu       sync.Mutex // held while machines are made, found and removed
	machines map[instance.ID]*Machine
}

var _ vm.Driver = (*Driver)(nil)

// New opens the state directory and removes what an earlier process left half
// made or half removed. Machines are found again by Recover and List.
func New(cfg Config) (*Driver, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("cannot use state directory %q: %w", cfg.StateDir, err)
	}
	if cfg.AgentBinary, err = filepath.Abs(cfg.AgentBinary); err != nil {
		return nil, fmt.Errorf("cannot use agent %q: %w", cfg.AgentBinary, err)
	}
	cfg.StateDir = dir
	d := &Driver{cfg: cfg, closed: make(chan struct{}), machines: map[instance.ID]*Machine{}}
	if err := os.MkdirAll(d.root(), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make state directory: %w", err)
	}
	entries, err := os.ReadDir(d.root())
	if err != nil {
		return nil, fmt.Errorf("cannot read state directory: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			if err := os.RemoveAll(filepath.Join(d.root(), e.Name())); err != nil {
				return nil, fmt.Errorf("cannot remove remains of a machine: %w", err)
			}
		}
	}
	return d, nil
}

func (d *Driver) root() string              { return filepath.Join(d.cfg.StateDir, "machines") }
func (d *Driver) dir(id instance.ID) string { return filepath.Join(d.root(), id.String()) }
func (d *Driver) hidden(id instance.ID) string {
	return filepath.Join(d.root(), ".removed-"+id.String())
}

// DiskDir is the directory of a machine that survives its restarts. It is the
// one place where a workload may leave files that Close removes.
func (d *Driver) DiskDir(id instance.ID) string { return filepath.Join(d.dir(id), "disk") }

func (d *Driver) isClosed() bool {
	select {
	case <-d.closed:
		return true
	default:
		return false
	}
}

// Capabilities says that machines of this kind isolate nothing.
func (d *Driver) Capabilities(context.Context) (vm.Capabilities, error) {
	c := vm.Capabilities{
		Driver:      name,
		RuntimeKind: "host",
		Available:   true,
		Vsock:       "unix",
		VsockReason: "the agent is a process of this host, with full host access",
		Versions:    map[string]string{},
		Operations:  []string{"instance.start", "instance.stop", "instance.pause", "instance.resume", "instance.destroy"},
	}
	if err := d.usable(); err != nil {
		c.Available = false
		c.Reason = err.Error()
		c.Remedy = "make build"
	}
	return c, nil
}

// usable reports why no machine can be made.
func (d *Driver) usable() error {
	fi, err := os.Stat(d.cfg.AgentBinary)
	if err != nil {
		return fmt.Errorf("cannot use agent: %w", err)
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("cannot use agent %q: not an executable file", d.cfg.AgentBinary)
	}
	return nil
}

// identity is spec.json.
type identity struct {
	ID   instance.ID `json:"id"`
	Name string      `json:"name"`
}

// handle is what a vm.Handle of ours holds.
type handle struct {
	ID instance.ID `json:"id"`
}

func newHandle(id instance.ID) (vm.Handle, error) {
	data, err := json.Marshal(handle{id})
	if err != nil {
		return vm.Handle{}, fmt.Errorf("cannot make handle: %w", err)
	}
	return vm.Handle{Driver: name, Version: handleVersion, Data: data}, nil
}

// Create makes the machine's directory.
func (d *Driver) Create(ctx context.Context, spec vm.Spec) (vm.Instance, vm.Handle, error) {
	if _, err := instance.ParseID(spec.ID.String()); err != nil {
		return nil, vm.Handle{}, err
	}
	boot, err := agentv1.ParseBootConfig(spec.BootConfig)
	if err != nil {
		return nil, vm.Handle{}, err
	}
	if boot.InstanceID != spec.ID.String() {
		return nil, vm.Handle{}, fmt.Errorf("cannot create machine %q: its boot configuration is for %q", spec.ID, boot.InstanceID)
	}
	h, err := newHandle(spec.ID)
	if err != nil {
		return nil, vm.Handle{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.isClosed():
		return nil, vm.Handle{}, errClosed
	case ctx.Err() != nil:
		return nil, vm.Handle{}, fmt.Errorf("cannot create machine %q: %w", spec.ID, ctx.Err())
	}
	m, err := d.find(spec.ID)
	if err == nil {
		return m, h, nil
	}
	if !errors.Is(err, vm.ErrGone) {
		return nil, vm.Handle{}, err
	}
	if err := d.usable(); err != nil {
		return nil, vm.Handle{}, fmt.Errorf("%w: %w", vm.ErrUnavailable, err)
	}
	if err := d.prepare(spec); err != nil {
		return nil, vm.Handle{}, fmt.Errorf("cannot create machine %q: %w", spec.ID, err)
	}
	if m, err = d.find(spec.ID); err != nil {
		return nil, vm.Handle{}, err
	}
	return m, h, nil
}

// prepare fills a hidden directory and gives it its name at once.
func (d *Driver) prepare(spec vm.Spec) (err error) {
	tmp, err := os.MkdirTemp(d.root(), ".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := os.Mkdir(filepath.Join(tmp, "disk"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "boot.json"), spec.BootConfig, 0o600); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(tmp, "spec.json"), identity{spec.ID, spec.Name}); err != nil {
		return err
	}
	return os.Rename(tmp, d.dir(spec.ID))
}

// Recover finds a machine again by its directory and, if it runs, by its
// process's pid, start time and command line.
func (d *Driver) Recover(_ context.Context, h vm.Handle) (vm.Instance, error) {
	if h.Driver != name || h.Version != handleVersion {
		return nil, fmt.Errorf("cannot recover machine: handle is of driver %q, version %d", h.Driver, h.Version)
	}
	var data handle
	if err := json.Unmarshal(h.Data, &data); err != nil {
		return nil, fmt.Errorf("cannot recover machine: cannot read handle: %w", err)
	}
	if _, err := instance.ParseID(data.ID.String()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isClosed() {
		return nil, errClosed
	}
	m, err := d.find(data.ID)
	if err == nil {
		return m, nil
	}
	if _, there := os.Lstat(d.dir(data.ID)); there != nil {
		return nil, err
	}
	// Files that make no machine: whoever finds them in the list must be able
	// to have them removed.
	return openMachine(d, identity{ID: data.ID})
}

// find returns the machine with that directory. Called with mu held.
func (d *Driver) find(id instance.ID) (*Machine, error) {
	if m, ok := d.machines[id]; ok {
		return m, nil
	}
	var spec identity
	err := readJSON(filepath.Join(d.dir(id), "spec.json"), &spec)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot find machine %q: %w", id, vm.ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find machine %q: %w", id, err)
	}
	m, err := openMachine(d, spec)
	if err != nil {
		return nil, err
	}
	d.machines[id] = m
	return m, nil
}

// List returns every machine of the state directory.
func (d *Driver) List(context.Context) ([]vm.Found, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isClosed() {
		return nil, errClosed
	}
	entries, err := os.ReadDir(d.root())
	if err != nil {
		return nil, fmt.Errorf("cannot list machines: %w", err)
	}
	var all []vm.Found
	for _, e := range entries {
		id, err := instance.ParseID(e.Name())
		if err != nil || !e.IsDir() {
			continue // not ours
		}
		h, err := newHandle(id)
		if err != nil {
			return nil, err
		}
		f := vm.Found{ID: id, Handle: h}
		if m, err := d.find(id); err != nil {
			f.Note = "files without a usable machine: " + err.Error()
		} else {
			f.Running = m.running()
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b vm.Found) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return all, nil
}

// Close detaches from all machines; they go on.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isClosed() {
		return nil
	}
	close(d.closed)
	for _, m := range d.machines {
		m.detach()
	}
	return nil
}

// remove takes a machine's files away: out of sight at once, then for good.
func (d *Driver) remove(id instance.ID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.machines, id)
	err := os.Rename(d.dir(id), d.hidden(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot remove machine %q: %w", id, err)
	}
	if err := errors.Join(os.RemoveAll(d.hidden(id)), os.RemoveAll(d.dir(id))); err != nil {
		return fmt.Errorf("cannot remove machine %q: %w", id, err)
	}
	return nil
}

// writeJSON replaces a file as a whole.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("cannot read %q: %w", filepath.Base(path), err)
	}
	return nil
}
