package engine

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

var names = [2]string{"stdout", "stderr"}

// drawOutput draws what a guest may send: text and other bytes, cut anywhere.
func drawOutput(t *rapid.T) []*agentv1.Output {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"a line\n", "é", "€uro\n", "😀", "\xff\xfe", "\xc3", "\x80"}),
		rapid.Map(rapid.IntRange(1, agentv1.MaxChunk), func(n int) string { return strings.Repeat("x", n) }),
		rapid.Map(rapid.IntRange(1, agentv1.MaxChunk/2), func(n int) string { return strings.Repeat("ö", n) }),
	)
	var out []*agentv1.Output
	var size [2]uint64
	for _, s := range rapid.SliceOfN(piece, 1, 40).Draw(t, "pieces") {
		i := rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "stream")
		for data := []byte(s); len(data) > 0; {
			n := len(data)
			if rapid.Bool().Draw(t, "cut") {
				n = rapid.IntRange(1, n).Draw(t, "at")
			}
			out = append(out, &agentv1.Output{
				Seq: uint64(len(out) + 1), Stream: agentv1.Stream(i + 1), Offset: size[i], Data: bytes.Clone(data[:n]),
			})
			size[i] += uint64(n)
			data = data[n:]
		}
	}
	return out
}

// draftAll makes a draft of each batch and returns all that would be stored.
func draftAll(t *rapid.T, out []*agentv1.Output, limit uint64, next func() int) ([]task.Chunk, task.Progress) {
	var p task.Progress
	var chunks []task.Chunk
	for len(out) > 0 {
		n := min(next(), len(out))
		d := draft{p: p, limit: limit, artifacts: names}
		for _, c := range out[:n] {
			before := bytes.Clone(c.GetData())
			if err := d.add(c); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(before, c.GetData()) {
				t.Fatal("the guest's message was written to")
			}
		}
		chunks, p, out = append(chunks, d.chunks...), d.p, out[n:]
	}
	return chunks, p
}

// join checks that chunks continue their artifacts and joins them.
func join(t *rapid.T, chunks []task.Chunk) [2]string {
	var got [2][]byte
	for _, c := range chunks {
		i := 0
		if c.ArtifactID == names[1] {
			i = 1
		}
		if c.Offset != uint64(len(got[i])) || len(c.Data) == 0 || len(c.Data) > agentv1.MaxChunk+utf8.UTFMax-1 {
			t.Fatalf("chunk of %d bytes at %d of %q after %d", len(c.Data), c.Offset, c.ArtifactID, len(got[i]))
		}
		got[i] = append(got[i], c.Data...)
	}
	return [2]string{string(got[0]), string(got[1])}
}

// How output is cut into batches changes nothing of what is stored, only how
// many events it makes, and never how text is shown.
func TestBatchesDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out := drawOutput(t)
		limit := rapid.OneOf(rapid.Just(uint64(1)<<40), rapid.Uint64Range(0, 100), rapid.Uint64Range(0, 1<<20)).Draw(t, "limit")
		one, p1 := draftAll(t, out, limit, func() int { return 1 })
		many, pn := draftAll(t, out, limit, func() int { return rapid.IntRange(1, 30).Draw(t, "batch") })
		if diff := cmp.Diff(p1, pn); diff != "" {
			t.Fatalf("progress depends on batches: %s", diff)
		}
		content := join(t, one)
		if content != join(t, many) || len(many) > len(one) {
			t.Fatalf("content depends on batches: %d events, %d one by one", len(many), len(one))
		}
		var all [2]string
		for _, c := range out {
			all[c.GetStream()-1] += string(c.GetData())
		}
		for i := range all {
			if whole := content[i] + string(pn.Carry[i]); !strings.HasPrefix(all[i], whole) || !pn.Overflow && whole != all[i] {
				t.Fatalf("%q is not what was written", names[i])
			}
		}
		if total := uint64(len(content[0]) + len(content[1])); total > limit || pn.Overflow && total != limit {
			t.Fatalf("%d bytes are kept, the limit is %d", total, limit)
		}
		if isText(one) != isText(many) {
			t.Fatal("batches change what is text")
		}
	})
}

// isText is how much of the content is shown as text.
func isText(chunks []task.Chunk) (n int) {
	for _, c := range chunks {
		if utf8.Valid(c.Data) {
			n += len(c.Data)
		}
	}
	return n
}

// A program that prints a line at a time makes an event of each only while it
// is slow.
func TestLinesAreJoined(t *testing.T) {
	d := draft{limit: 1 << 40, artifacts: names}
	var want strings.Builder
	for i := range 10_000 {
		line := strings.Repeat("=", i%80) + "\n"
		if err := d.add(&agentv1.Output{Seq: uint64(i + 1), Stream: agentv1.Stream_STREAM_STDOUT, Data: []byte(line)}); err != nil {
			t.Fatal(err)
		}
		want.WriteString(line)
	}
	var got strings.Builder
	for _, c := range d.chunks {
		got.Write(c.Data)
		if len(c.Data) > agentv1.MaxChunk {
			t.Errorf("an event has %d bytes", len(c.Data))
		}
	}
	if most := want.Len()/agentv1.MaxChunk + 1; got.String() != want.String() || len(d.chunks) > most {
		t.Errorf("%d events of %d bytes, want at most %d of %d", len(d.chunks), got.Len(), most, want.Len())
	}
	// The other stream stays where it came.
	for i, s := range []agentv1.Stream{agentv1.Stream_STREAM_STDERR, agentv1.Stream_STREAM_STDOUT} {
		before := len(d.chunks)
		if err := d.add(&agentv1.Output{Seq: uint64(10_001 + i), Stream: s, Data: []byte("!")}); err != nil {
			t.Fatal(err)
		}
		if len(d.chunks) != before+1 {
			t.Errorf("streams were joined: %d events", len(d.chunks))
		}
	}
}
