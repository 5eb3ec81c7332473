package command

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// modelChunk is what a host has been shown.
type modelChunk struct {
	stream agentv1.Stream
	offset uint64
	data   []byte
}

// Whatever the order of writes, reads, acknowledgements and new attachments,
// a host that stores what it is shown has every byte of both streams once and
// in order, a shown chunk never changes, and the log keeps to its limit.
func TestOutputLogLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(agentv1.MinOutputBuffer, 4*agentv1.MinOutputBuffer).Draw(t, "limit")
		log := outputLog{limit: limit}
		written := map[agentv1.Stream][]byte{}
		shown := map[uint64]modelChunk{}
		var cursor, acked uint64
		next := byte(0)
		show := func() bool {
			c, ok := log.after(cursor)
			if !ok {
				return false
			}
			if old, seen := shown[c.seq]; seen && (old.stream != c.stream || old.offset != c.offset || !bytes.Equal(old.data, c.data)) {
				t.Fatalf("chunk %d has changed", c.seq)
			}
			if c.seq != max(cursor, acked)+1 || len(c.data) == 0 || len(c.data) > agentv1.MaxChunk {
				t.Fatalf("chunk %d of %d bytes after %d", c.seq, len(c.data), cursor)
			}
			shown[c.seq] = modelChunk{c.stream, c.offset, bytes.Clone(c.data)}
			cursor = c.seq
			return true
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(1, 10), rapid.IntRange(1, agentv1.MaxChunk)).Draw(t, "n")
				stream := rapid.SampledFrom([]agentv1.Stream{agentv1.Stream_STREAM_STDOUT, agentv1.Stream_STREAM_STDERR}).Draw(t, "stream")
				if !log.room(n) {
					t.Skip("full")
				}
				data := bytes.Repeat([]byte{next}, n)
				next++
				log.append(stream, data)
				written[stream] = append(written[stream], data...)
				clear(data) // the log must have its own
			},
			"read": func(t *rapid.T) {
				if !show() {
					t.Skip("nothing new")
				}
			},
			"ack": func(t *rapid.T) {
				seq := rapid.Uint64Range(0, log.last+2).Draw(t, "seq")
				_, err := log.ack(seq)
				if (err != nil) != (seq > uint64(len(shown))) {
					t.Fatalf("ack %d with %d shown: %v", seq, len(shown), err)
				}
				if err == nil {
					acked = max(acked, seq)
				}
			},
			"attach": func(t *rapid.T) {
				cursor = rapid.Uint64Range(acked, max(acked, uint64(len(shown)))).Draw(t, "cursor")
			},
			"": func(t *rapid.T) {
				if most := max(limit, agentv1.MaxChunk+chunkCost); log.cost > most {
					t.Fatalf("the log keeps %d, at most %d", log.cost, most)
				}
				cost := 0
				for _, c := range log.chunks {
					cost += len(c.data) + chunkCost
				}
				if cost != log.cost || log.acked != acked || uint64(len(log.chunks)) != log.last-log.acked {
					t.Fatalf("accounts: cost %d of %d, acked %d of %d, %d chunks", log.cost, cost, log.acked, acked, len(log.chunks))
				}
			},
		})
		for show() {
		}
		got := map[agentv1.Stream][]byte{}
		for seq := uint64(1); seq <= log.last; seq++ {
			c := shown[seq]
			if c.offset != uint64(len(got[c.stream])) {
				t.Fatalf("chunk %d at %d, want %d", seq, c.offset, len(got[c.stream]))
			}
			got[c.stream] = append(got[c.stream], c.data...)
		}
		for stream, want := range written {
			if !bytes.Equal(got[stream], want) {
				t.Fatalf("%v: %d bytes of %d", stream, len(got[stream]), len(want))
			}
		}
	})
}

func TestSingleBytesDoNotOutgrowTheLog(t *testing.T) {
	t.Parallel()
	log := outputLog{limit: agentv1.MinOutputBuffer}
	n := 0
	for ; log.room(1); n++ {
		log.append(agentv1.Stream_STREAM_STDOUT, []byte{'x'})
		log.after(log.last - 1) // shown at once, so none is joined
	}
	if most := agentv1.MinOutputBuffer / chunkCost; n > most {
		t.Errorf("%d chunks, at most %d", n, most)
	}
}

// Whatever is repeated, cut or late, the pipe gets the input once, in order,
// and the queue keeps to its window.
func TestInputQueueTakesEveryByteOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(0, 3*agentv1.StdinWindow).Draw(t, "total")
		input := make([]byte, total)
		for i := range input {
			input[i] = byte(i>>8) ^ byte(i)
		}
		var q inputQueue
		var piped []byte
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				from := rapid.IntRange(0, total).Draw(t, "from")
				n := rapid.IntRange(0, min(agentv1.MaxChunk, total-from)).Draw(t, "n")
				eof := from+n == total && rapid.Bool().Draw(t, "eof")
				before := q.end()
				err := q.push(uint64(from), input[from:from+n], eof)
				if uint64(from) > before && err == nil {
					t.Fatal("a gap was taken")
				}
				if uint64(from+n) <= before && err != nil && !eof {
					t.Fatalf("a repeat was refused: %v", err)
				}
			},
			"pipe": func(t *rapid.T) {
				front := q.front()
				n := rapid.IntRange(0, len(front)).Draw(t, "n")
				piped = append(piped, front[:n]...)
				q.take(n)
			},
			"": func(t *rapid.T) {
				if len(q.queued) > agentv1.StdinWindow {
					t.Fatalf("%d bytes are queued", len(q.queued))
				}
				if uint64(len(piped)) != q.accepted || !bytes.Equal(piped, input[:len(piped)]) {
					t.Fatal("the pipe has got something else")
				}
				if q.finished() && len(piped) != total {
					t.Fatalf("finished after %d of %d bytes", len(piped), total)
				}
			},
		})
	})
}

func TestInputQueueRefuses(t *testing.T) {
	t.Parallel()
	q := inputQueue{}
	if err := q.push(0, []byte("abc"), true); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"after the end":  q.push(3, []byte("d"), false),
		"an earlier end": q.push(0, []byte("a"), true),
		"too long":       q.push(0, make([]byte, agentv1.MaxChunk+1), false),
		"overflow":       q.push(1<<64-1, []byte("ab"), false),
	} {
		if err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if err := q.push(0, []byte("abc"), true); err != nil {
		t.Errorf("a repeat of the end: %v", err)
	}
}

// Whatever happens in whatever order, a run that is not gone has a deadline,
// every cause is decided once, nothing is killed before its time, and the
// ladder ends in kill if the box does not empty.
func TestLadder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		ms := func(label string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(t, label)) * time.Millisecond
		}
		timeout, grace, linger := ms("timeout", 5000)+1, ms("grace", 5000), ms("linger", 5000)
		l := newLadder(now, timeout, grace)
		began, terminated := now, time.Time{}
		var first ladderReason
		decided := false
		see := func(act action) {
			switch act {
			case doTerminate:
				if !terminated.IsZero() || l.exited {
					t.Fatal("terminated twice, or after the end of the main process")
				}
				terminated = now
			case doKill:
				if terminated.IsZero() && !l.exited {
					t.Fatal("killed what was not asked to end")
				}
			case doNothing:
			}
			if l.reason != reasonItself && !decided {
				first, decided = l.reason, true
			}
			if decided && l.reason != first {
				t.Fatal("the cause has changed")
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) { now = now.Add(ms("passes", 3000)); see(l.due(now)) },
			"due": func(t *rapid.T) {
				if l.state == stateGone {
					t.Skip("gone")
				}
				if l.deadline.After(now) {
					now = l.deadline
				}
				if act := l.due(now); act == doNothing {
					t.Fatalf("nothing is done at the deadline in state %d", l.state)
				} else {
					see(act)
				}
			},
			"cancel": func(t *rapid.T) { see(l.cancel(now, ms("cancel grace", 2000))) },
			"exit": func(t *rapid.T) {
				if l.exited {
					t.Skip("it has")
				}
				see(l.mainExited(now, linger))
				if terminated.IsZero() && l.reason != reasonItself {
					t.Fatal("a run that ended by itself has another cause")
				}
			},
			"": func(t *rapid.T) {
				if l.state != stateGone && l.deadline.IsZero() {
					t.Fatalf("no deadline in state %d", l.state)
				}
				if l.state == stateRunning && l.deadline != began.Add(timeout) {
					t.Fatal("the timeout has moved")
				}
			},
		})
		for range 3 {
			if l.deadline.After(now) {
				now = l.deadline
			}
			l.due(now)
		}
		if l.state != stateKilling {
			t.Fatalf("three deadlines later the state is %d", l.state)
		}
		l.empty()
		if act := l.due(now.Add(time.Hour)); act != doNothing || l.cancel(now, 0) != doNothing {
			t.Fatal("something is done to a run that is gone")
		}
	})
}

// TestStopOnce: a tree stands still when each of it was told, and has stopped.
func TestStopOnce(t *testing.T) {
	const nobody = 1 << 30 // beyond every pid
	table := func(stopped, newborn bool) []process {
		all := []process{{pid: nobody, ppid: 1}, {pid: nobody + 1, ppid: nobody, stopped: stopped}, {pid: nobody + 2, ppid: nobody + 1, zombie: true}}
		if newborn {
			all = append(all, process{pid: nobody + 3, ppid: nobody + 1, stopped: true})
		}
		return all
	}
	told := map[int]bool{}
	for i, c := range []struct{ stopped, newborn, all bool }{
		{false, false, false}, // it is told now
		{false, false, false}, // and is in the midst of something yet
		{true, true, false},   // of a fork: that one is told now
		{true, true, true},
	} {
		if got := stopOnce(table(c.stopped, c.newborn), nobody, told); got != c.all {
			t.Errorf("look %d: %t, want %t", i+1, got, c.all)
		}
	}
	if len(told) != 2 || !told[nobody+1] || !told[nobody+3] {
		t.Errorf("told were %v", told)
	}
}

func TestDescendants(t *testing.T) {
	t.Parallel()
	table := []process{{pid: 1}, {pid: 10, ppid: 1}, {pid: 11, ppid: 10}, {pid: 12, ppid: 11}, {pid: 13, ppid: 11, zombie: true},
		{pid: 14, ppid: 13}, {pid: 20, ppid: 1}, {pid: 30, ppid: 31}, {pid: 31, ppid: 30}}
	got := descendants(table, 10)
	want := map[int]bool{11: true, 12: true, 14: true}
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for _, pid := range got {
		if !want[pid] {
			t.Errorf("%d is none", pid)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) b) S 1 12 12 0 -1"))
	f.Add([]byte("12 (x\n) Z 1"))
	f.Add([]byte(") "))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, ok := parseStat(7, data); ok && p.pid != 7 {
			t.Error("another pid")
		}
	})
}

func TestParseStatIsNotFooledByNames(t *testing.T) {
	t.Parallel()
	p, ok := parseStat(12, []byte("12 (evil) S 999 (x) Z 5 12 12"))
	if !ok || p.ppid != 5 || !p.zombie {
		t.Errorf("%+v %v", p, ok)
	}
}

func TestCheckID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"0190a0a0-0000-7000-8000-000000000001":  true,
		"0190A0A0-0000-7000-8000-000000000001":  false,
		"../../../../../../../../../etc/passwd": false,
		"0190a0a000000-7000-8000-000000000001":  false,
		"":                                      false,
	} {
		if err := checkID(id); (err == nil) != want {
			t.Errorf("%q: %v", id, err)
		}
	}
}
