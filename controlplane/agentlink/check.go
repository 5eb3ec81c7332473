package agentlink

import (
	"math"
	"strings"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// Bounds on what Hello may hold.
const (
	nonceSize    = 16
	maxBootMarks = 64
	maxWord      = 128
	maxTitle     = 256
)

// printable cuts s to n bytes and replaces what could disturb a log or page.
func printable(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}

// checkHello bounds the answer and makes its texts printable, in place.
func checkHello(h *agentv1.HelloResponse) error {
	if len(h.GetBootNonce()) != nonceSize {
		return lie("boot nonce has %d bytes, want %d", len(h.GetBootNonce()), nonceSize)
	}
	if len(h.GetBootMarks()) > maxBootMarks {
		return lie("%d boot marks, at most %d are allowed", len(h.GetBootMarks()), maxBootMarks)
	}
	h.AgentVersion = printable(h.GetAgentVersion(), maxWord)
	h.Kernel = printable(h.GetKernel(), maxWord)
	h.OsRelease = printable(h.GetOsRelease(), maxTitle)
	h.Containment = printable(h.GetContainment(), maxWord)
	for _, m := range h.GetBootMarks() {
		if m == nil {
			return lie("boot mark is empty")
		}
		m.Name = printable(m.GetName(), maxWord)
		if err := checkDuration("boot mark", m.GetSinceKernel()); err != nil {
			return err
		}
	}
	return checkDuration("uptime", h.GetUptime())
}

func checkDuration(name string, d *durationpb.Duration) error {
	if d == nil {
		return nil
	}
	if d.CheckValid() != nil || d.AsDuration() < 0 {
		return lie("%s is not a duration", name)
	}
	return nil
}

func checkTime(name string, t *timestamppb.Timestamp) error {
	if t != nil && t.CheckValid() != nil {
		return lie("%s is not a time", name)
	}
	return nil
}

// checkState checks the state of the run wanted ("" means any).
func checkState(st *agentv1.RunState, wanted string) error {
	switch {
	case st == nil:
		return lie("run state is missing")
	case wanted != "" && st.GetRunId() != wanted:
		return lie("state of run %s instead of %q", guestText(st.GetRunId()), wanted)
	case len(st.GetRunId()) == 0 || len(st.GetRunId()) > maxWord:
		return lie("run id has %d bytes", len(st.GetRunId()))
	case st.GetAckedSeq() > st.GetLastSeq():
		return lie("acknowledged output %d is beyond the last %d", st.GetAckedSeq(), st.GetLastSeq())
	case st.GetRunning() && st.GetExited() != nil:
		return lie("run both runs and has ended")
	case !st.GetRunning() && st.GetExited() == nil:
		return lie("run has ended without saying how")
	}
	if err := checkTime("start of run", st.GetStartedAt()); err != nil {
		return err
	}
	if e := st.GetExited(); e != nil {
		return checkExited(e)
	}
	return nil
}

// checkExited checks what can be checked without having seen the output.
func checkExited(e *agentv1.Exited) error {
	if e == nil {
		return lie("end of run is empty")
	}
	if _, ok := agentv1.Exited_Cause_name[int32(e.GetCause())]; !ok || e.GetCause() == agentv1.Exited_CAUSE_UNSPECIFIED {
		return lie("cause of end is %d", int32(e.GetCause()))
	}
	if e.GetCode() < 0 || e.GetCode() > math.MaxUint8 {
		return lie("exit code is %d", e.GetCode())
	}
	if e.GetSignal() < 0 || e.GetSignal() > 64 {
		return lie("signal is %d", e.GetSignal())
	}
	if err := checkTime("end of run", e.GetEndedAt()); err != nil {
		return err
	}
	return checkDuration("CPU time", e.GetCpuTime())
}

func checkStats(s *agentv1.StatsResponse) error {
	if s == nil {
		return lie("stats are missing")
	}
	if l := s.GetLoad1(); math.IsNaN(l) || math.IsInf(l, 0) || l < 0 {
		return lie("load is not a number")
	}
	if s.GetMemoryAvailable() > s.GetMemoryTotal() || s.GetDiskAvailable() > s.GetDiskTotal() {
		return lie("more is available than there is")
	}
	if err := checkDuration("uptime", s.GetUptime()); err != nil {
		return err
	}
	if err := checkDuration("CPU time", s.GetCpuBusy()); err != nil {
		return err
	}
	return checkTime("guest time", s.GetTime())
}

// output checks the order of one run's output as it arrives: sequence
// numbers without a gap, offsets without a gap in each stream, and totals at
// the end. Pure.
type output struct {
	seq    uint64 // newest chunk taken
	start  uint64 // chunk before the first one taken
	stream [3]struct {
		known bool // whether next is known
		next  uint64
	}
}

// newOutput begins after chunk seq. Offsets are known only from the very
// beginning; otherwise the first chunk of a stream sets them.
func newOutput(seq uint64) *output {
	o := &output{seq: seq, start: seq}
	for i := range o.stream {
		o.stream[i].known = seq == 0
	}
	return o
}

// take checks the next chunk and moves on.
func (o *output) take(c *agentv1.Output) error {
	n := uint64(len(c.GetData()))
	switch {
	case c == nil:
		return lie("output is empty")
	case c.GetSeq() != o.seq+1:
		return lie("output %d follows %d", c.GetSeq(), o.seq)
	case n == 0 || n > agentv1.MaxChunk:
		return lie("output %d has %d bytes, want 1 to %d", c.GetSeq(), n, agentv1.MaxChunk)
	case c.GetStream() != agentv1.Stream_STREAM_STDOUT && c.GetStream() != agentv1.Stream_STREAM_STDERR:
		return lie("output %d is of stream %d", c.GetSeq(), int32(c.GetStream()))
	case c.GetOffset() > math.MaxInt64-n:
		return lie("output %d is at offset %d", c.GetSeq(), c.GetOffset())
	}
	s := &o.stream[c.GetStream()]
	if s.known && c.GetOffset() != s.next {
		return lie("output %d is at offset %d, want %d", c.GetSeq(), c.GetOffset(), s.next)
	}
	s.known = true
	s.next = c.GetOffset() + n
	o.seq = c.GetSeq()
	return nil
}

// finish checks the end against all that was taken.
func (o *output) finish(e *agentv1.Exited) error {
	if err := checkExited(e); err != nil {
		return err
	}
	if e.GetLastSeq() != o.seq {
		return lie("run ended after output %d, but %d came", e.GetLastSeq(), o.seq)
	}
	totals := map[agentv1.Stream]uint64{
		agentv1.Stream_STREAM_STDOUT: e.GetStdoutBytes(),
		agentv1.Stream_STREAM_STDERR: e.GetStderrBytes(),
	}
	for id, total := range totals {
		if s := o.stream[id]; s.known && s.next != total {
			return lie("run ended after %d bytes of stream %d, but %d came", total, int32(id), s.next)
		}
	}
	return nil
}
