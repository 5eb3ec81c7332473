package engine

import (
	"errors"
	"fmt"
	"testing"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// booted is a guest that says which boot of its machine it is.
type booted struct {
	Guest
	nonce string
}

func (b booted) Hello() *agentv1.HelloResponse {
	return &agentv1.HelloResponse{BootNonce: []byte(b.nonce)}
}

// TestNeverStarted: a command is started later only if the guest of the very
// boot it was dispatched to never knew it, and nothing of it has come.
func TestNeverStarted(t *testing.T) {
	var mute struct{ Guest } // one that cannot tell
	for name, c := range map[string]struct {
		g    Guest
		boot string
		seq  uint64
		want bool
	}{
		"the same boot":                {booted{nonce: "a"}, "a", 0, true},
		"another boot":                 {booted{nonce: "b"}, "a", 0, false},
		"the same, and output came":    {booted{nonce: "a"}, "a", 1, false},
		"nobody noted the boot":        {booted{nonce: "a"}, "", 0, false},
		"neither noted nor told":       {booted{}, "", 0, false},
		"a guest that cannot tell":     {mute, "a", 0, false},
		"no guest":                     {nil, "a", 0, false},
		"a guest that does not say it": {booted{}, "a", 0, false},
	} {
		w := &worker{run: task.Run{Boot: []byte(c.boot), Progress: task.Progress{AfterSeq: c.seq}}}
		if got := w.neverStarted(c.g); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestNotStarted: only these say that nothing runs; every other error leaves it
// open.
func TestNotStarted(t *testing.T) {
	fault := func(code string) error {
		return fmt.Errorf("cannot start: %w", &instance.Fault{Blame: instance.Guest, Code: code, Err: errors.New("boom")})
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fault(agentlink.CodeRunNotStarted), true}, {fault(agentlink.CodeInvalid), true},
		{fault(agentlink.CodeRunExists), true}, {fault(agentlink.CodeBusy), true},
		{fault(agentlink.CodeUnresponsive), false}, {fault(agentlink.CodeRunLost), false}, {fault(agentlink.CodeProtocol), false},
		{fault(agentlink.CodeUnreachable), false}, {fault(""), false}, {vm.ErrGone, false}, {errors.New("boom"), false},
	} {
		if got := notStarted(c.err); got != c.want {
			t.Errorf("%v: %t", c.err, got)
		}
	}
}
