package command

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// TestExitOf: how a run ended, by what is known of it. One that we ended never
// looks like one that ended by itself, nor one whose child was out of memory
// like one that was itself.
func TestExitOf(t *testing.T) {
	const (
		exited, signaled, timeout = agentv1.Exited_CAUSE_EXITED, agentv1.Exited_CAUSE_SIGNALED, agentv1.Exited_CAUSE_TIMEOUT
		canceled, oom, lost       = agentv1.Exited_CAUSE_CANCELED, agentv1.Exited_CAUSE_OOM, agentv1.Exited_CAUSE_LOST
	)
	out := usage{oomKilled: true}
	for name, c := range map[string]struct {
		reason ladderReason
		status procExit
		used   usage
		cause  agentv1.Exited_Cause
		code   int32
		signal int32
	}{
		"well":                        {reasonItself, procExit{}, usage{}, exited, 0, 0},
		"with a code":                 {reasonItself, procExit{code: 3}, usage{}, exited, 3, 0},
		"by a signal":                 {reasonItself, procExit{signal: unix.SIGSEGV}, usage{}, signaled, 139, 11},
		"killed by somebody":          {reasonItself, procExit{signal: unix.SIGKILL}, usage{}, signaled, 137, 9},
		"out of memory":               {reasonItself, procExit{signal: unix.SIGKILL}, out, oom, 137, 9},
		"well, a child out of memory": {reasonItself, procExit{}, out, exited, 0, 0},
		"a code, a child out of it":   {reasonItself, procExit{code: 1}, out, exited, 1, 0},
		"a signal, a child out of it": {reasonItself, procExit{signal: unix.SIGTERM}, out, signaled, 143, 15},
		"nobody knows how":            {reasonItself, procExit{lost: true}, usage{}, lost, 137, 9},
		"too late, and obeys":         {reasonTimeout, procExit{}, usage{}, timeout, 143, 15},
		"too late":                    {reasonTimeout, procExit{signal: unix.SIGKILL}, out, timeout, 137, 9},
		"canceled, and obeys":         {reasonCancel, procExit{code: 1}, usage{}, canceled, 143, 15},
		"canceled":                    {reasonCancel, procExit{signal: unix.SIGKILL}, out, canceled, 137, 9},
		"canceled, nobody knows how":  {reasonCancel, procExit{lost: true}, usage{}, canceled, 143, 15},
	} {
		r := newRun("r", nil, bounds{})
		r.log.append(stdout, []byte("four"))
		c.used.cpu, c.used.memoryPeak = time.Second, 5
		e := r.exitOf(ladder{reason: c.reason}, c.status, c.used)
		if e.GetCause() != c.cause || e.GetCode() != c.code || e.GetSignal() != c.signal {
			t.Errorf("%s: %v, want %v, code %d, signal %d", name, e, c.cause, c.code, c.signal)
		}
		if e.GetLastSeq() != 1 || e.GetStdoutBytes() != 4 || e.GetStderrBytes() != 0 || e.GetCpuTime().AsDuration() != time.Second ||
			e.GetMemoryPeak() != 5 || !e.GetEndedAt().IsValid() {
			t.Errorf("%s: %v", name, e)
		}
	}
}
