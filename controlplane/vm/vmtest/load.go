package vmtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
)

// bulk is a command that prints much and exits 7: every byte, in order.
func (s *suite) bulk(t *testing.T, l *agentlink.Link, dir string) {
	const piece = 1 << 20
	script := fmt.Sprintf("mkdir -p '%[1]s' && cd '%[1]s' && head -c %[2]d /dev/urandom >bulk && sha256sum <bulk >&2; "+
		"i=0; while [ $i -lt %[3]d ]; do cat bulk; i=$((i + 1)); done; rm bulk; exit 7", dir, piece, s.Bulk>>20)
	run := s.startScript(t, l, script, false)
	var first, rest bytes.Buffer
	var sum strings.Builder
	e, err := l.FollowRun(s.ctx(t), run, agentlink.FollowOptions{Sink: agentlink.Each(func(_ context.Context, c *agentv1.Output) error {
		data := c.GetData()
		if c.GetStream() == agentv1.Stream_STREAM_STDERR {
			sum.Write(data)
			return nil
		}
		n := min(piece-first.Len(), len(data))
		first.Write(data[:n])
		rest.Write(data[n:])
		for rest.Len() >= piece {
			if !bytes.Equal(rest.Next(piece), first.Bytes()) {
				return fmt.Errorf("output %d is in a piece that is not like the first", c.GetSeq())
			}
		}
		return nil
	})})
	if err != nil {
		t.Fatalf("cannot follow: %v", err)
	}
	if rest.Len() > 0 || e.GetStdoutBytes() != uint64(s.Bulk) || e.GetCode() != 7 {
		t.Errorf("ended as %v with %d bytes over", e, rest.Len())
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(first.Bytes())); !strings.HasPrefix(sum.String(), want) {
		t.Errorf("checksum is %q, want %s", sum.String(), want)
	}
}

// stubborn is a tree of children that ignore SIGTERM and leave the session:
// none of them is left after a cancel.
func (s *suite) stubborn(t *testing.T, l *agentlink.Link) {
	word := uuid.NewString()
	child := "trap : TERM HUP INT; : " + word + "; while :; do sleep 1000; done"
	run := s.startScript(t, l, "S=$(command -v setsid); for i in 1 2 3; do $S sh -c '"+child+"' & done; trap : TERM; "+
		"echo ready; while :; do wait; done", false)
	// The brackets keep the search from finding itself.
	search := fmt.Sprintf("grep -l '[%s]%s' /proc/[0-9]*/cmdline 2>/dev/null | wc -l", word[:1], word[1:])
	var out strings.Builder
	e, err := l.FollowRun(s.ctx(t), run, agentlink.FollowOptions{Sink: agentlink.Each(func(ctx context.Context, c *agentv1.Output) error {
		if out.Write(c.GetData()); out.String() == "ready\n" {
			return l.CancelRun(ctx, run, 50*time.Millisecond)
		}
		return nil
	})})
	if err != nil {
		t.Fatalf("cannot follow: %v", err)
	}
	if e.GetCause() != agentv1.Exited_CAUSE_CANCELED {
		t.Errorf("ended as %v", e)
	}
	if n := strings.TrimSpace(s.shell(t, l, search)); n != "0" {
		t.Errorf("%s processes are left", n)
	}
}
