package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// Machine is one agent process and its files. It implements vm.Instance,
// vm.Stopper and vm.Pauser.
type Machine struct {
	driver *Driver
	spec   identity
	dir    string

	act sync.Mutex // held by Start, Stop, Close, Pause and Resume

	mu     sync.Mutex
	life   *life // the newest one; nil: never started
	closed bool
}

var (
	_ vm.Instance = (*Machine)(nil)
	_ vm.Stopper  = (*Machine)(nil)
	_ vm.Pauser   = (*Machine)(nil)
)

// life is one run of the agent, from start to end.
type life struct {
	proc    *process      // nil: it had ended before we came
	ended   chan struct{} // closed once exit is set
	watched chan struct{} // closed once the watcher has gone
	exit    vm.Exit
	ours    bool // ended by Stop or Close; guarded by Machine.mu
}

func (m *Machine) path(file string) string { return filepath.Join(m.dir, file) }
func (m *Machine) config() string          { return m.path("boot.json") }

// openMachine takes over what is in a machine's directory.
func openMachine(d *Driver, spec identity) (*Machine, error) {
	m := &Machine{driver: d, spec: spec, dir: d.dir(spec.ID)}
	s, known, err := m.search()
	if err != nil {
		return nil, err
	}
	if s != nil {
		p, err := hold(*s)
		if err == nil {
			m.begin(p)
			return m, nil
		}
		if !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, unix.ESRCH) {
			return nil, err
		}
		known = true
	}
	if !known {
		return m, nil // never started
	}
	l := &life{ended: make(chan struct{}), watched: make(chan struct{})}
	if err := readJSON(m.path("exit.json"), &l.exit); err != nil {
		l.exit = vm.Exit{Reason: vm.ExitUnknown, Detail: "the agent ended while nobody watched"}
	}
	close(l.ended)
	close(l.watched)
	m.life = l
	return m, nil
}

// search looks for the machine's process: as recorded, or, when that is not it
// and nobody has seen it end, by its command line. known says that it was
// started once.
func (m *Machine) search() (s *stat, known bool, err error) {
	var r record
	recorded := readJSON(m.path("process.json"), &r)
	if recorded == nil {
		now, ok := readStat(r.PID)
		if ok && r.Boot == bootID() && now.start == r.Start && now.alive() && worksIn(r.PID, m.dir) {
			return &now, true, nil
		}
	}
	known = !errors.Is(recorded, fs.ErrNotExist)
	switch _, err := os.Stat(m.path("exit.json")); {
	case err == nil:
		return nil, true, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, known, fmt.Errorf("cannot find process of machine %q: %w", m.spec.ID, err)
	}
	for _, s := range processes() {
		if s.alive() && hasArgument(s.pid, m.config()) && worksIn(s.pid, m.dir) {
			err := writeJSON(m.path("process.json"), record{PID: s.pid, Start: s.start, Boot: bootID()})
			return &s, true, err
		}
	}
	return nil, known, nil
}

// begin watches a process. Called while nobody else knows of m or with mu held.
func (m *Machine) begin(p *process) {
	l := &life{proc: p, ended: make(chan struct{}), watched: make(chan struct{})}
	m.life = l
	go m.watch(l)
}

// watch waits for the end of the process, or for the driver to let go.
func (m *Machine) watch(l *life) {
	defer close(l.watched)
	defer l.proc.release()
	if err := l.proc.wait(); err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			m.driver.cfg.Log.Error("lost sight of machine", "instance", m.spec.ID.String(), "error", err)
		}
		return // it goes on without us
	}
	ws, known := reap(l.proc.pid)
	m.mu.Lock()
	defer m.mu.Unlock()
	l.exit = m.explain(ws, known, l.ours)
	if err := writeJSON(m.path("exit.json"), l.exit); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.driver.cfg.Log.Warn("cannot keep the end of a machine", "instance", m.spec.ID.String(), "error", err)
	}
	close(l.ended)
}

// explain says how the process ended.
func (m *Machine) explain(ws unix.WaitStatus, known, ours bool) vm.Exit {
	switch {
	case ours:
		return vm.Exit{Reason: vm.ExitDestroyed}
	case known && ws.Signaled():
		return vm.Exit{Reason: vm.ExitKilled, Detail: "signal " + ws.Signal().String()}
	case known && ws.ExitStatus() != 0:
		return vm.Exit{Reason: vm.ExitPanic, Detail: "the agent ended with status " + strconv.Itoa(ws.ExitStatus())}
	case known:
		return vm.Exit{Reason: vm.ExitPowerOff}
	}
	// Not our child, so nobody tells us its status. An agent that ends in
	// order removes its socket, one that dies cannot.
	if _, err := os.Lstat(m.path("agent.sock")); errors.Is(err, fs.ErrNotExist) {
		return vm.Exit{Reason: vm.ExitPowerOff}
	}
	return vm.Exit{Reason: vm.ExitKilled, Detail: "the agent died"}
}

// detach lets go of the process without touching it.
func (m *Machine) detach() {
	m.mu.Lock()
	l := m.life
	m.mu.Unlock()
	if l == nil {
		return
	}
	if l.proc != nil {
		l.proc.stop()
	}
	<-l.watched
}

// current returns the newest life and whether it goes on.
func (m *Machine) current() (l *life, runs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.life == nil {
		return nil, false
	}
	select {
	case <-m.life.ended:
		return m.life, false
	default:
		return m.life, true
	}
}

func (m *Machine) running() bool {
	_, runs := m.current()
	return runs
}

// ready reports why nothing can be done with the machine.
func (m *Machine) ready(ctx context.Context, verb string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return fmt.Errorf("cannot %s machine %q: %w", verb, m.spec.ID, vm.ErrGone)
	case m.driver.isClosed():
		return errClosed
	case ctx.Err() != nil:
		return fmt.Errorf("cannot %s machine %q: %w", verb, m.spec.ID, ctx.Err())
	}
	return nil
}

// Start starts the agent in a session of its own, so that it outlives us.
func (m *Machine) Start(ctx context.Context) error {
	m.act.Lock()
	defer m.act.Unlock()
	if err := m.ready(ctx, "start"); err != nil {
		return err
	}
	l, runs := m.current()
	if runs {
		return nil
	}
	if l != nil {
		<-l.watched
	}
	p, err := m.spawn()
	if err != nil {
		return fmt.Errorf("cannot start machine %q: %w", m.spec.ID, err)
	}
	if err := ctx.Err(); err != nil {
		// Given up meanwhile: nothing of the attempt stays.
		defer p.release()
		defer func() { _, _ = reap(p.pid) }()
		kerr := killTree(context.WithoutCancel(ctx), p.stat)
		return errors.Join(fmt.Errorf("cannot start machine %q: %w", m.spec.ID, err), kerr, os.Remove(m.path("process.json")))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin(p)
	return nil
}

// spawn starts the process and records it.
func (m *Machine) spawn() (*process, error) {
	for _, old := range []string{"agent.sock", "exit.json", "process.json"} {
		if err := os.Remove(m.path(old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if err := trimConsole(m.path("console.log")); err != nil {
		return nil, err
	}
	console, err := os.OpenFile(m.path("console.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	// The absolute path of the configuration tells the process from others;
	// the socket's is relative, since the kernel takes no more than 107 bytes.
	cmd := exec.Command(m.driver.cfg.AgentBinary, //nolint:noctx // it outlives us
		"serve", "--listen", "unix:agent.sock", "--config", m.config())
	cmd.Dir = m.dir
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	// From here on the process is ours by its descriptor, not by os.Process.
	abandon := func(err error) (*process, error) {
		kerr := cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return nil, errors.Join(err, kerr)
	}
	s, ok := readStat(pid)
	if !ok {
		return abandon(errors.New("cannot read the state of the agent's process"))
	}
	p, err := hold(s)
	if err != nil {
		return abandon(err)
	}
	if err := writeJSON(m.path("process.json"), record{PID: pid, Start: s.start, Boot: bootID()}); err != nil {
		p.release()
		return abandon(err)
	}
	if err := cmd.Process.Release(); err != nil {
		p.release()
		return abandon(err)
	}
	return p, nil
}

// Wait waits for the end of the newest life.
func (m *Machine) Wait(ctx context.Context) (vm.Exit, error) {
	l, _ := m.current()
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if l == nil && closed {
		return vm.Exit{Reason: vm.ExitDestroyed}, nil
	}
	if l == nil {
		return vm.Exit{}, fmt.Errorf("cannot wait for machine %q: it was never started", m.spec.ID)
	}
	select {
	case <-l.ended:
		return l.exit, nil
	default:
	}
	select {
	case <-l.ended:
		return l.exit, nil
	case <-ctx.Done():
		return vm.Exit{}, fmt.Errorf("cannot wait for machine %q: %w", m.spec.ID, ctx.Err())
	case <-m.driver.closed:
		return vm.Exit{}, errClosed
	}
}

// Dial connects to the agent's socket, which stands for its port.
func (m *Machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if err := m.ready(ctx, "dial"); err != nil {
		return nil, err
	}
	l, runs := m.current()
	switch {
	case l == nil:
		return nil, fmt.Errorf("cannot dial machine %q: it was never started", m.spec.ID)
	case !runs:
		return nil, fmt.Errorf("cannot dial machine %q: %w", m.spec.ID, vm.ErrGone)
	case port != agentv1.Port:
		return nil, fmt.Errorf("cannot dial port %d of machine %q: %w", port, m.spec.ID, unix.ECONNREFUSED)
	}
	// Through a descriptor, since the path may be longer than an address.
	dir, err := os.OpenFile(m.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot dial machine %q: %w", m.spec.ID, err)
	}
	defer dir.Close()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/agent.sock", dir.Fd()))
	if err != nil {
		return nil, fmt.Errorf("cannot dial machine %q: %w", m.spec.ID, err)
	}
	return c, nil
}
