package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// eventOfKind is the request behind an operation, and whether a policy made it.
func eventOfKind(kind string) (e instance.Event, policy bool) {
	switch kind {
	case kindCreate, kindStart:
		return instance.StartRequested, false
	case kindStop:
		return instance.StopRequested, false
	case kindRestart:
		return instance.RestartRequested, false
	case kindPause:
		return instance.PauseRequested, false
	case kindResume:
		return instance.ResumeRequested, false
	case kindDelete:
		return instance.DeleteRequested, false
	case kindExpire:
		return instance.Expired, true
	case kindIdle:
		return instance.IdleStopped, true
	case kindWake:
		return instance.Used, true
	}
	return "", false
}

// resumeOperations makes requests of the operations that an earlier process
// did not end, for the supervisors that go on with the work. What the stored
// phases show to have ended is ended here, truthfully.
func (f *Fleet) resumeOperations(
	ctx context.Context, unended []Operation, records []supervise.Record,
) map[instance.ID][]*supervise.Request {
	byID := map[instance.ID]*supervise.Record{}
	for i := range records {
		byID[records[i].ID] = &records[i]
	}
	pending := map[instance.ID][]*supervise.Request{}
	for _, op := range unended {
		t := tracker{f.ops, op.ID}
		r := byID[op.Instance]
		goesOn, fault := resumed(op, r)
		if !goesOn {
			t.End(ctx, fault)
			continue
		}
		e, policy := eventOfKind(op.Kind)
		why := byRequest
		if policy {
			why = r.Reason
		}
		pending[op.Instance] = append(pending[op.Instance], &supervise.Request{
			ID: op.ID, Event: e, Why: why, Track: t, Cancel: op.Canceling,
		})
	}
	return pending
}

// resumed says whether an operation goes on, and otherwise how it ended. r is
// nil when the instance is no more.
func resumed(op Operation, r *supervise.Record) (goesOn bool, end error) {
	e, policy := eventOfKind(op.Kind)
	switch {
	case e == "":
		return false, interrupted(op)
	case r == nil && (op.Kind == kindDelete || op.Kind == kindExpire):
		return false, nil
	case op.Canceling && canceled(op.Kind, r):
		return false, &instance.Fault{
			Blame: instance.Caller, Code: supervise.CodeCanceled, Err: errors.New("it was cancelled"),
		}
	case r == nil:
		return false, interrupted(op)
	case op.Kind == kindCreate:
		return resumedCreate(op, r)
	case op.Kind == kindRestart && r.Phase == instance.Running && answered(op):
		return false, nil
	case policy:
		return underWay(op.Kind, r), interrupted(op)
	}
	return true, nil
}

// resumedCreate: a create goes on only where it stands; repeating it as a
// start could begin what somebody has stopped since.
func resumedCreate(op Operation, r *supervise.Record) (goesOn bool, end error) {
	switch r.Phase {
	case instance.Provisioning, instance.Starting:
		return true, nil
	case instance.Failed:
		if r.Fault != nil {
			return false, r.Fault
		}
	case instance.Running, instance.Paused, instance.Stopping, instance.Stopped:
		if r.Guest != nil {
			return false, nil
		}
	case instance.Deleting:
	}
	return false, interrupted(op)
}

// canceled reports whether a record shows that a cancelled operation is undone,
// or is being undone. Otherwise it goes on, and is cancelled then.
func canceled(kind string, r *supervise.Record) bool {
	if r == nil {
		return true
	}
	switch r.Phase {
	case instance.Deleting: // a removal that has begun is not taken back
		return kind != kindDelete && kind != kindExpire
	case instance.Stopping, instance.Stopped:
		return (kind == kindStart || kind == kindRestart) && r.After == ""
	case instance.Provisioning, instance.Starting, instance.Running, instance.Paused, instance.Failed:
	}
	return false
}

// underWay reports whether a record shows that the work of a policy goes on.
func underWay(kind string, r *supervise.Record) bool {
	switch kind {
	case kindExpire:
		return r.Phase == instance.Deleting || r.Phase == instance.Stopping && r.After == instance.DeleteRequested
	case kindIdle:
		return r.Phase == instance.Stopping && r.Resting
	case kindWake:
		return r.Phase == instance.Starting
	}
	return false
}

// answered reports whether the journal shows that the machine had come up.
func answered(op Operation) bool {
	for _, s := range op.Steps {
		if s.Name == string(plan.StepAgent) && s.Mark == "did" {
			return true
		}
	}
	return false
}

// interrupted is the end of an operation whose outcome nobody knows better. The
// journal says where it was.
func interrupted(op Operation) error {
	err := errors.New("the control plane was restarted before this was done")
	for _, s := range slices.Backward(op.Steps) {
		if s.Mark == "failed" {
			err = fmt.Errorf("step %q failed: %s", s.Name, s.Cause)
			break
		}
	}
	return &instance.Fault{Blame: instance.Host, Code: "operation.interrupted", Hint: "ask for it again", Err: err}
}
