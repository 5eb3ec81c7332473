package fleet

import (
	"errors"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// TestResumed: what becomes of an operation that an earlier process did not
// end, by what its instance's record shows.
func TestResumed(t *testing.T) {
	const goesOn, succeeded, canceled, interrupted = "goes on", "succeeded", supervise.CodeCanceled, "operation.interrupted"
	came := []OperationStep{{Name: string(plan.StepAgent), Mark: "began"}, {Name: string(plan.StepAgent), Mark: "did"}}
	record := func(p instance.Phase) *supervise.Record { return &supervise.Record{Phase: p} }
	answered := func(p instance.Phase) *supervise.Record {
		return &supervise.Record{Phase: p, Guest: &supervise.Guest{}}
	}
	after := func(p instance.Phase, e instance.Event) *supervise.Record {
		return &supervise.Record{Phase: p, After: e}
	}
	failed := record(instance.Failed)
	failed.Fault = &instance.Fault{Blame: instance.Guest, Code: "machine.ended", Err: errors.New("boom")}
	resting := record(instance.Stopping)
	resting.Resting = true
	for name, c := range map[string]struct {
		op   Operation
		r    *supervise.Record
		want string
	}{
		"of no kind we know": {Operation{Kind: "instance.fork"}, record(instance.Running), interrupted},

		"a delete that was done":   {Operation{Kind: kindDelete}, nil, succeeded},
		"an expiry that was done":  {Operation{Kind: kindExpire}, nil, succeeded},
		"a stop of what is gone":   {Operation{Kind: kindStop}, nil, interrupted},
		"a create of what is gone": {Operation{Kind: kindCreate}, nil, interrupted},
		"a delete":                 {Operation{Kind: kindDelete}, record(instance.Deleting), goesOn},
		"a delete not begun":       {Operation{Kind: kindDelete}, record(instance.Running), goesOn},

		"a cancelled create that is undone":      {Operation{Kind: kindCreate, Canceling: true}, nil, canceled},
		"a cancelled create being undone":        {Operation{Kind: kindCreate, Canceling: true}, record(instance.Deleting), canceled},
		"a cancelled create not undone":          {Operation{Kind: kindCreate, Canceling: true}, record(instance.Starting), goesOn},
		"a cancelled start that is undone":       {Operation{Kind: kindStart, Canceling: true}, record(instance.Stopped), canceled},
		"a cancelled start being undone":         {Operation{Kind: kindStart, Canceling: true}, record(instance.Stopping), canceled},
		"a cancelled restart, stopping":          {Operation{Kind: kindRestart, Canceling: true}, after(instance.Stopping, ""), canceled},
		"a cancelled restart that is to go on":   {Operation{Kind: kindRestart, Canceling: true}, after(instance.Stopping, instance.StartRequested), goesOn},
		"a cancelled create of one that stops":   {Operation{Kind: kindCreate, Canceling: true}, answered(instance.Stopping), succeeded},
		"a cancelled stop, which cannot be":      {Operation{Kind: kindStop, Canceling: true}, record(instance.Stopping), goesOn},
		"one that is not cancelled and stopping": {Operation{Kind: kindStart}, record(instance.Stopping), goesOn},

		"a create that makes files":               {Operation{Kind: kindCreate}, record(instance.Provisioning), goesOn},
		"a create that boots":                     {Operation{Kind: kindCreate}, record(instance.Starting), goesOn},
		"a create that came up":                   {Operation{Kind: kindCreate}, answered(instance.Running), succeeded},
		"a create that came up and stopped since": {Operation{Kind: kindCreate}, answered(instance.Stopped), succeeded},
		"a create stopped before it came up":      {Operation{Kind: kindCreate}, record(instance.Stopped), interrupted},
		"a create that failed":                    {Operation{Kind: kindCreate}, failed, "machine.ended"},
		"a create that is being removed":          {Operation{Kind: kindCreate}, record(instance.Deleting), interrupted},

		"a restart that came up":  {Operation{Kind: kindRestart, Steps: came}, record(instance.Running), succeeded},
		"a restart not begun":     {Operation{Kind: kindRestart}, record(instance.Running), goesOn},
		"a restart that comes up": {Operation{Kind: kindRestart, Steps: came[:1]}, record(instance.Running), goesOn},

		"an expiry that stops":           {Operation{Kind: kindExpire}, after(instance.Stopping, instance.DeleteRequested), goesOn},
		"an expiry that removes":         {Operation{Kind: kindExpire}, record(instance.Deleting), goesOn},
		"an expiry, and another's stop":  {Operation{Kind: kindExpire}, record(instance.Stopping), interrupted},
		"an expiry not begun":            {Operation{Kind: kindExpire}, record(instance.Running), interrupted},
		"a rest that stops":              {Operation{Kind: kindIdle}, resting, goesOn},
		"a rest, and another's stop":     {Operation{Kind: kindIdle}, record(instance.Stopping), interrupted},
		"a waking that starts":           {Operation{Kind: kindWake}, record(instance.Starting), goesOn},
		"a waking of what runs":          {Operation{Kind: kindWake}, record(instance.Running), interrupted},
		"a pause that nobody knows of":   {Operation{Kind: kindPause}, record(instance.Running), goesOn},
		"a start of what failed already": {Operation{Kind: kindStart}, failed, goesOn},
	} {
		on, err := resumed(c.op, c.r)
		got := succeeded
		switch {
		case on:
			got = goesOn
		case err != nil:
			got = instance.AsFault(err).Code
		}
		if got != c.want {
			t.Errorf("%s: %s (%v), want %s", name, got, err, c.want)
		}
	}
}

// TestInterruptedSaysWhere: the journal knows why better than nobody does.
func TestInterruptedSaysWhere(t *testing.T) {
	op := Operation{Steps: []OperationStep{{Name: "image", Mark: "did"}, {Name: "boot", Mark: "failed", Cause: "no room"}, {Name: "machine", Mark: "undone"}}}
	if got := interrupted(op).Error(); !strings.Contains(got, `step "boot" failed: no room`) {
		t.Errorf("%q", got)
	}
	if got := interrupted(Operation{}).Error(); got == "" || got == interrupted(op).Error() {
		t.Errorf("%q", got)
	}
}
