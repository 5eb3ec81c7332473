package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/identity"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/workspace"
)

// Ways to contain a run, as Hello names them.
const (
	ContainmentCgroup    = "cgroup2"
	ContainmentSubreaper = "subreaper"
)

// Options say where a table runs things.
type Options struct {
	// CgroupMount is a cgroup v2 mount, or a group delegated to the agent.
	// Empty: runs are contained by a subreaper.
	CgroupMount string
	// ReserveMemory is kept from all runs together, in bytes; 0: nothing is.
	ReserveMemory uint64
	// Accounts is the directory of passwd and group. Empty: /etc.
	Accounts string
}

// Table is all runs of one agent. Safe for concurrent use.
type Table struct {
	opt         Options
	containment string
	newBox      func(id string) box
	budget      uint64 // bytes of output buffers over all runs
	wg          sync.WaitGroup

	mu      sync.Mutex
	closing bool
	runs    map[string]*entry
	order   []string // ids, oldest first
}

// entry is one place in the table. run is set once ready is closed; when the
// start has failed the entry is gone by then and err says why.
type entry struct {
	spec  *agentv1.RunSpec
	ready chan struct{}
	run   *Run
	err   error
}

// NewTable makes an empty table. Processes that an earlier agent has left in
// the control group are killed and their runs are known as lost.
func NewTable(opt Options) (*Table, error) {
	if opt.Accounts == "" {
		opt.Accounts = "/etc"
	}
	t := &Table{opt: opt, runs: map[string]*entry{}, containment: ContainmentSubreaper}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("cannot read the size of memory: %w", err)
	}
	t.budget = max(info.Totalram*uint64(info.Unit)/4, agentv1.MaxOutputBuffer)
	if opt.CgroupMount == "" {
		t.newBox = func(string) box { return newShimBox() }
		return t, nil
	}
	tree, err := openCgroupTree(opt.CgroupMount, opt.ReserveMemory)
	if err != nil {
		return nil, err
	}
	left, err := tree.sweep()
	if err != nil {
		return nil, err
	}
	t.containment = ContainmentCgroup
	t.newBox = tree.newBox
	ready := make(chan struct{})
	close(ready)
	for _, id := range left {
		if checkID(id) == nil {
			t.runs[id] = &entry{ready: ready, run: lostRun(id)}
			t.order = append(t.order, id)
		}
	}
	return t, nil
}

// Containment is how runs are held: ContainmentCgroup or ContainmentSubreaper.
func (t *Table) Containment() string { return t.containment }

// Start starts a run, or answers the state of the run with this id when its
// spec is the same.
func (t *Table) Start(ctx context.Context, id string, spec *agentv1.RunSpec) (*agentv1.RunState, error) {
	if err := checkID(id); err != nil {
		return nil, refuse(Invalid, "RUN_ID", id, "cannot start run: %w", err)
	}
	b, err := checkSpec(spec)
	if err != nil {
		return nil, refuse(Invalid, "SPEC", id, "cannot start run: %w", err)
	}
	e, fresh, err := t.claim(id, spec, b)
	if err != nil {
		return nil, err
	}
	if fresh {
		t.begin(id, e, b)
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if e.err != nil {
		return nil, e.err
	}
	return e.run.State(), nil
}

// claim takes a place in the table, or finds the one that is taken.
func (t *Table) claim(id string, spec *agentv1.RunSpec, b bounds) (*entry, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.runs[id]; ok {
		// A lost run has no spec to compare; it must not run twice either.
		if e.spec != nil && !proto.Equal(e.spec, spec) {
			return nil, false, refuse(Conflict, "RUN_EXISTS", id, "cannot start run %s: it exists with another spec", id)
		}
		return e, false, nil
	}
	if t.closing {
		return nil, false, refuse(Precondition, "POWERING_OFF", id, "cannot start run %s: the machine is powering off", id)
	}
	if err := t.makeRoom(id, b.buffer); err != nil {
		return nil, false, err
	}
	e := &entry{spec: proto.CloneOf(spec), ready: make(chan struct{})}
	t.runs[id] = e
	t.order = append(t.order, id)
	t.wg.Add(1)
	return e, true, nil
}

// makeRoom evicts the oldest runs of which the host has everything, and says
// what to do when that is not enough.
func (t *Table) makeRoom(id string, buffer int) error {
	if len(t.runs) >= agentv1.MaxRuns {
		t.evictOne()
	}
	if len(t.runs) >= agentv1.MaxRuns {
		return refuse(Exhausted, "RUNS", id, "cannot start run %s: %d runs are kept; release ended ones with ReleaseRun", id, len(t.runs))
	}
	held := uint64(buffer)
	for _, e := range t.runs {
		held += e.held()
	}
	if held > t.budget {
		return refuse(Exhausted, "OUTPUT_BUFFERS", id,
			"cannot start run %s: output buffers of all runs would exceed %d bytes; release ended runs or ask for smaller buffers",
			id, t.budget)
	}
	return nil
}

// held is the memory an entry may use for output.
func (e *entry) held() uint64 {
	select {
	case <-e.ready:
	default:
		return uint64(max(e.spec.GetOutputBuffer(), agentv1.DefaultOutputBuffer))
	}
	if e.run == nil {
		return 0
	}
	e.run.mu.Lock()
	defer e.run.mu.Unlock()
	if e.run.ended != nil {
		return uint64(e.run.log.cost)
	}
	return uint64(e.run.bounds.buffer)
}

// evictOne forgets the oldest run that has ended and is fully acknowledged.
func (t *Table) evictOne() {
	for _, id := range t.order {
		e := t.runs[id]
		select {
		case <-e.ready:
		default:
			continue
		}
		e.run.mu.Lock()
		done := e.run.ended != nil && e.run.log.drained() && e.run.attached == nil
		e.run.mu.Unlock()
		if done {
			t.forget(id)
			return
		}
	}
}

func (t *Table) forget(id string) {
	delete(t.runs, id)
	if i := slices.Index(t.order, id); i >= 0 {
		t.order = slices.Delete(t.order, i, i+1)
	}
}

// begin launches a claimed run and leaves a supervisor with it.
func (t *Table) begin(id string, e *entry, b bounds) {
	run, start, err := t.launch(id, e.spec, b)
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(e.ready)
	if err != nil {
		e.err = err
		t.forget(id)
		t.wg.Done()
		return
	}
	e.run = run
	go func() {
		defer t.wg.Done()
		start()
	}()
	if t.closing { // Close has not seen this run
		t.wg.Go(func() { _ = run.cancel(durationpb.New(0)) })
	}
}

// launch starts the process of a run. What it returns runs its supervision.
func (t *Table) launch(id string, spec *agentv1.RunSpec, b bounds) (*Run, func(), error) {
	l, err := t.prepare(spec)
	if err != nil {
		return nil, nil, err
	}
	defer l.cwd.Close()
	ours, theirs, err := makePipes(spec.GetStdin())
	if err != nil {
		return nil, nil, refuse(Exhausted, "PIPES", id, "cannot make pipes for run %s: %w", id, err)
	}
	defer theirs.close()
	l.stdio = theirs
	run := newRun(id, spec, b)
	box := t.newBox(id)
	if err := box.launch(l); err != nil {
		ours.close()
		var r *Refusal
		if errors.As(err, &r) {
			return nil, nil, r
		}
		return nil, nil, refuse(Internal, ReasonStart, id, "cannot start run %s: %w", id, err)
	}
	return run, func() { run.supervise(box, ours) }, nil
}

// prepare resolves who, where and what.
func (t *Table) prepare(spec *agentv1.RunSpec) (launch, error) {
	account, err := identity.Lookup(t.opt.Accounts, spec.GetUser())
	if err != nil {
		return launch{}, refuse(Invalid, ReasonUser, spec.GetUser(), "cannot run as %q: %w", spec.GetUser(), err)
	}
	self := os.Geteuid()
	l := launch{
		Argv:       spec.GetArgv(),
		Env:        environment(spec, account.Home, account.Name),
		UID:        account.UID,
		GID:        account.GID,
		Groups:     account.Groups,
		Switch:     spec.GetUser() != "" && (self == 0 || account.UID != self),
		NoNewPrivs: account.UID != 0,
		memoryMax:  spec.GetMemoryMax(),
		pidsMax:    spec.GetPidsMax(),
	}
	if l.Switch && self != 0 {
		return launch{}, refuse(Precondition, ReasonUser, spec.GetUser(),
			"cannot run as %q: the agent runs as uid %d and cannot become another", spec.GetUser(), self)
	}
	root, err := workspace.OpenRoot(spec.GetRoot())
	if err != nil {
		return launch{}, refuse(Precondition, ReasonDirectory, spec.GetRoot(), "cannot use root directory: %w", err)
	}
	defer root.Close()
	l.cwd, err = root.OpenDir(spec.GetWorkingDir())
	if err != nil {
		kind := Precondition
		if errors.Is(err, workspace.ErrOutside) || errors.Is(err, workspace.ErrInvalid) {
			kind = Invalid
		}
		return launch{}, refuse(kind, ReasonDirectory, spec.GetWorkingDir(),
			"cannot use working directory %q: %w", spec.GetWorkingDir(), err)
	}
	if l.Path, err = findProgram(l.Argv[0], l.Env, l.cwd); err != nil {
		_ = l.cwd.Close()
		return launch{}, err
	}
	return l, nil
}

// Get finds a run.
func (t *Table) Get(id string) (*Run, error) {
	t.mu.Lock()
	e, ok := t.runs[id]
	t.mu.Unlock()
	if ok {
		<-e.ready // a start is short
		if e.run != nil {
			return e.run, nil
		}
	}
	return nil, refuse(NotFound, "RUN_NOT_FOUND", id, "cannot find run %q", id)
}

// Cancel starts the kill ladder of a run that may have ended.
func (t *Table) Cancel(id string, grace *durationpb.Duration) error {
	run, err := t.Get(id)
	if err != nil {
		return err
	}
	return run.cancel(grace)
}

// Release forgets a run that has ended. An unknown one is no error.
func (t *Table) Release(id string) error {
	run, err := t.Get(id)
	if err != nil {
		return nil //nolint:nilerr // a run that is not there has been released
	}
	select {
	case <-run.Done():
	default:
		return refuse(Precondition, "RUN_RUNNING", id, "cannot release run %s: it still runs", id)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.runs[id]; e != nil && e.run == run {
		t.forget(id)
	}
	return nil
}

// List gives the state of every run, oldest first.
func (t *Table) List() []*agentv1.RunState {
	var states []*agentv1.RunState
	for _, run := range t.all() {
		states = append(states, run.State())
	}
	return states
}

// Active counts the runs that have not ended.
func (t *Table) Active() int {
	n := 0
	for _, run := range t.all() {
		select {
		case <-run.Done():
		default:
			n++
		}
	}
	return n
}

// all lists the runs that have been started.
func (t *Table) all() []*Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	var runs []*Run
	for _, id := range t.order {
		e := t.runs[id]
		select {
		case <-e.ready:
			runs = append(runs, e.run)
		default:
		}
	}
	return runs
}

// Close refuses new runs, cancels all others and waits for their end. Each
// has at most grace between SIGTERM and SIGKILL.
func (t *Table) Close(grace time.Duration) {
	t.mu.Lock()
	t.closing = true
	t.mu.Unlock()
	for _, run := range t.all() {
		// The duration is ours and within bounds.
		_ = run.cancel(durationpb.New(min(grace, agentv1.MaxKillGrace)))
	}
	t.wg.Wait()
}
