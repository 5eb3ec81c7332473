package agentlink

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// Whatever a true agent says is taken, and any one change to it is not.
func TestOutputModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var chunks []*agentv1.Output
		totals := map[agentv1.Stream]uint64{}
		for i := range rapid.IntRange(1, 30).Draw(t, "chunks") {
			s := rapid.SampledFrom([]agentv1.Stream{stdout, stderr}).Draw(t, "stream")
			n := rapid.IntRange(1, 5).Draw(t, "bytes")
			chunks = append(chunks, &agentv1.Output{Seq: uint64(i + 1), Stream: s, Offset: totals[s], Data: make([]byte, n)})
			totals[s] += uint64(n)
		}
		e := exited0(uint64(len(chunks)), totals[stdout], totals[stderr])
		check := func(o *output, chunks []*agentv1.Output, e *agentv1.Exited) error {
			for _, c := range chunks {
				if err := o.take(c); err != nil {
					return err
				}
			}
			return o.finish(e)
		}
		if err := check(newOutput(0), chunks, e); err != nil {
			t.Fatal(err)
		}
		from := rapid.IntRange(0, len(chunks)).Draw(t, "from")
		if err := check(newOutput(uint64(from)), chunks[from:], e); err != nil {
			t.Fatalf("from %d: %v", from, err)
		}
		i := rapid.IntRange(0, len(chunks)-1).Draw(t, "changed")
		c := proto.CloneOf(chunks[i])
		wrong := append(append(append([]*agentv1.Output{}, chunks[:i]...), c), chunks[i+1:]...)
		switch rapid.IntRange(0, 4).Draw(t, "change") {
		case 0:
			c.Seq += uint64(rapid.IntRange(1, 9).Draw(t, "by"))
		case 1:
			c.Offset += uint64(rapid.IntRange(1, 9).Draw(t, "by"))
		case 2:
			c.Data = append(c.Data, 0)
		case 3:
			wrong = append(append([]*agentv1.Output{}, chunks[:i]...), chunks[i+1:]...)
		case 4:
			c.Stream = stdout + stderr - c.Stream
			if c.Offset == totals[c.Stream] && i == len(chunks)-1 {
				break // the totals find it
			}
		}
		if check(newOutput(0), wrong, e) == nil {
			t.Fatalf("chunk %d of %d is wrong and was taken: %v", i, len(chunks), wrong)
		}
	})
}

// Input reaches a guest whole and in order however often the link breaks,
// whatever part of what was sent the guest has taken by then.
func TestInputModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := make([]byte, rapid.IntRange(0, 3*agentv1.StdinWindow).Draw(t, "size"))
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		begin := rapid.IntRange(0, len(data)).Draw(t, "taken before")
		start := rapid.IntRange(0, begin).Draw(t, "offset")
		in := newInput(&trickle{bytes.NewReader(data[start:]), rapid.IntRange(1, agentv1.MaxChunk).Draw(t, "read size")}, uint64(start))
		defer in.close()
		guest := append([]byte(nil), data[:begin]...) // taken into the pipe
		for over := false; !over; {
			if err := in.attach(uint64(len(guest))); err != nil {
				t.Fatal(err)
			}
			sent := len(guest)
			for range rapid.IntRange(1, 50).Draw(t, "steps") {
				c, wake := in.next()
				if c == nil {
					if sent-len(guest) == agentv1.StdinWindow || sent == len(data) {
						break
					}
					<-wake
					continue
				}
				if int(c.GetOffset()) != sent || !bytes.Equal(c.GetData(), data[sent:sent+len(c.GetData())]) {
					t.Fatalf("%d bytes at %d, want those at %d", len(c.GetData()), c.GetOffset(), sent)
				}
				if sent += len(c.GetData()); sent-len(guest) > agentv1.StdinWindow {
					t.Fatalf("%d bytes in flight", sent-len(guest))
				}
				if c.GetEof() != (sent == len(data)) && c.GetEof() {
					t.Fatalf("end of input after %d of %d bytes", sent, len(data))
				}
				if c.GetEof() {
					guest, over = data[:sent], true
					break
				}
				if rapid.Bool().Draw(t, "accept") {
					n := rapid.IntRange(len(guest), sent).Draw(t, "accepted")
					guest = append(guest, data[len(guest):n]...)
					if err := in.accept(uint64(n)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if in.accept(uint64(sent)+1) == nil {
				t.Fatal("input that was not sent was taken")
			}
		}
	})
}

// trickle reads a little at a time.
type trickle struct {
	r io.Reader
	n int
}

func (r *trickle) Read(p []byte) (int, error) { return r.r.Read(p[:min(len(p), r.n)]) }

// FuzzReceive feeds what a guest may send, decoded from arbitrary bytes: it
// must end, without a panic, and hand out nothing out of order.
func FuzzReceive(f *testing.F) {
	frame := func(msgs ...*agentv1.AttachResponse) []byte {
		var b []byte
		for _, m := range msgs {
			body, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			b = append(binary.AppendUvarint(b, uint64(len(body))), body...)
		}
		return b
	}
	f.Add(frame(out(1, stdout, 0, "ab"), out(2, stderr, 0, "c"), took(3), end(exited0(2, 2, 1))), true)
	f.Add(frame(out(1, stdout, 0, ""), runs()), false)
	f.Add(frame(end(exited0(0, 0, 0))), false)
	f.Fuzz(func(t *testing.T, data []byte, withInput bool) {
		var seq uint64
		var size [3]uint64
		fl := &follower{runID: testRun, what: "fuzz", out: newOutput(0)}
		b := newBatcher(Each(func(_ context.Context, o *agentv1.Output) error {
			if o.GetSeq() != seq+1 || o.GetOffset() != size[o.GetStream()] {
				t.Errorf("chunk %d at %d", o.GetSeq(), o.GetOffset())
			}
			seq++
			size[o.GetStream()] += uint64(len(o.GetData()))
			return nil
		}), func(uint64, int) {}, func() {})
		go b.run(t.Context())
		if withInput {
			fl.in = newInput(bytes.NewReader(nil), 0)
		}
		recv := func() (*agentv1.AttachResponse, error) {
			n, k := binary.Uvarint(data)
			if k <= 0 || n > uint64(len(data)-k) {
				return nil, io.EOF
			}
			m := &agentv1.AttachResponse{}
			body := data[k : k+int(n)]
			data = data[k+int(n):]
			return m, proto.Unmarshal(body, m)
		}
		e, err := fl.receive(t.Context(), recv, b)
		if serr := b.finish(); serr != nil {
			t.Errorf("storing failed: %v", serr)
		}
		if err == nil && (e.GetLastSeq() != seq || e.GetStdoutBytes() != size[stdout] || e.GetStderrBytes() != size[stderr]) {
			t.Fatalf("believed %v after %d chunks", e, seq)
		}
	})
}
