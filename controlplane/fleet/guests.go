package fleet

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// Bounds of one archive put into a guest.
const (
	maxArchiveBytes   = 8 << 30
	maxArchiveEntries = 1 << 20
)

// readyTimeout bounds the wait of a request for a machine that is starting.
const readyTimeout = 2 * time.Minute

// Link returns the link to an instance's agent, waiting for a machine that is
// just starting or was put to rest.
func (f *Fleet) Link(ctx context.Context, id instance.ID) (*agentlink.Link, error) {
	s, err := f.findID(id)
	if err != nil {
		return nil, err
	}
	defer s.Use()()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return s.Link(ctx)
}

// Guest is Link for those who run work: its error wraps vm.ErrGone when no
// waiting will bring the machine's runs back.
func (f *Fleet) Guest(ctx context.Context, id instance.ID) (*agentlink.Link, error) {
	link, err := f.Link(ctx, id)
	if err == nil {
		return link, nil
	}
	s, findErr := f.findID(id)
	if findErr != nil {
		return nil, fmt.Errorf("%w: %w", vm.ErrGone, err)
	}
	switch s.Record().Phase {
	case instance.Stopping, instance.Stopped, instance.Failed, instance.Deleting:
		return nil, fmt.Errorf("%w: %w", vm.ErrGone, err)
	case instance.Provisioning, instance.Starting, instance.Running, instance.Paused:
	}
	return nil, err
}

// Plan returns what was decided about an instance, and its name.
func (f *Fleet) Plan(ctx context.Context, id instance.ID) (plan.Plan, error) {
	s, err := f.find(ctx, id.String())
	if err != nil {
		return plan.Plan{}, err
	}
	return s.Record().Plan, nil
}

// PutArchive unpacks a tar stream into the guest, below a directory that must
// lie in the workspace of the instance. An empty path means the workspace.
func (f *Fleet) PutArchive(ctx context.Context, ref, dir string, tar io.Reader) (entries int, bytes int64, err error) {
	s, err := f.find(ctx, ref)
	if err != nil {
		return 0, 0, err
	}
	ws := s.Record().Plan.Workspace
	if dir == "" {
		dir = ws.Path
	}
	if !within(ws.Path, dir) {
		return 0, 0, &instance.Fault{
			Blame: instance.Caller, Code: "path.outside", Hint: "choose a directory in the workspace",
			Err: fmt.Errorf("path %q: not in the workspace %q of %q", dir, ws.Path, ref),
		}
	}
	defer s.Use()()
	waitCtx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	link, err := s.Link(waitCtx)
	if err != nil {
		return 0, 0, err
	}
	res, err := link.PutArchive(ctx, &agentv1.PutArchiveHeader{
		Root: path.Clean(dir), User: ws.User, MaxBytes: maxArchiveBytes, MaxEntries: maxArchiveEntries,
	}, tar)
	if err != nil {
		return 0, 0, err
	}
	return int(res.GetEntries()), int64(res.GetBytes()), nil //nolint:gosec // bounded by the limits above
}

// within reports whether the absolute path dir is root or below it, lexically.
func within(root, dir string) bool {
	dir = path.Clean(dir)
	return path.IsAbs(dir) && (dir == root || root == "/" || strings.HasPrefix(dir, root+"/"))
}

// Log returns the console and what the hypervisor says of an instance.
func (f *Fleet) Log(ctx context.Context, ref string) (Log, error) {
	s, err := f.find(ctx, ref)
	if err != nil {
		return Log{}, err
	}
	d := s.Diagnose(ctx)
	l := Log{State: d.State, Console: d.Console, Hypervisor: d.Hypervisor, Facts: d.Facts}
	if fault := s.Record().Fault; l.Console == "" && fault != nil {
		l.Console = fault.Console
	}
	return l, nil
}
