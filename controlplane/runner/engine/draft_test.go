package engine

import (
	"bytes"
	"slices"
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
		rapid.Custom(drawMixture),
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

// drawMixture draws text with other bytes between, around the length from which
// text stands apart.
func drawMixture(t *rapid.T) string {
	text := rapid.Map(rapid.IntRange(0, 2*minText), func(n int) string { return strings.Repeat("x", n) })
	other := rapid.SampledFrom([]string{"", "\xff", "\xe9", "\xf0\x9f\x98", "\xc3", "ö", "€", "\xed\xa0\x80", strings.Repeat("\x80", minText)})
	var b strings.Builder
	for range rapid.IntRange(1, 8).Draw(t, "runs") {
		b.WriteString(text.Draw(t, "text") + other.Draw(t, "other"))
	}
	return "-" + b.String()
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
// many events it makes, and, but for guests that send many small pieces at once,
// never how text is shown.
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
		if len(many) < maxApart && isText(one) != isText(many) {
			t.Fatal("batches change what is text")
		}
	})
}

// However text and other bytes are mixed and cut, long enough text is text, and
// the events are not many.
func TestTextStaysText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out := drawOutput(t)
		limit := rapid.OneOf(rapid.Just(uint64(1)<<40), rapid.Uint64Range(0, 10_000)).Draw(t, "limit")
		chunks, _ := draftAll(t, out, limit, func() int { return rapid.IntRange(1, 30).Draw(t, "batch") })
		most, size := 2*len(names), 0 // what is left of a character may come by itself
		for _, c := range out {
			most += 1 + 2*((len(c.GetData())+utf8.UTFMax-1)/minText)
			size += len(c.GetData())
		}
		if len(chunks) > most {
			t.Fatalf("%d bytes in %d pieces make %d events, more than %d", size, len(out), len(chunks), most)
		}
		kept := join(t, chunks)
		var at [2]int
		for _, c := range out {
			i := c.GetStream() - 1
			for _, run := range longText(c.GetData()) {
				from, to := at[i]+run[0], at[i]+run[1]
				if shown := textBetween(chunks, names[i], from, to); to <= len(kept[i]) && shown != to-from {
					t.Fatalf("of the text from %d to %d of %s, %d bytes are text", from, to, names[i], shown)
				}
			}
			at[i] += len(c.GetData())
		}
	})
}

// longText finds the runs of text in one piece that are to stand apart,
// without the characters at their ends, which may belong to other pieces.
func longText(data []byte) (runs [][2]int) {
	from := 0
	for at := 0; at <= len(data); {
		r, n := utf8.DecodeRune(data[at:])
		if r != utf8.RuneError || n > 1 {
			at += n
			continue
		}
		if at-from >= minText {
			runs = append(runs, [2]int{from, at})
		}
		at++
		from = at
	}
	return runs
}

// textBetween is how much of a range of an artifact is shown as text.
func textBetween(chunks []task.Chunk, id string, from, to int) (n int) {
	for _, c := range chunks {
		start := int(c.Offset) //nolint:gosec // of a test
		if lo, hi := max(start, from), min(start+len(c.Data), to); c.ArtifactID == id && lo < hi && utf8.Valid(c.Data) {
			n += hi - lo
		}
	}
	return n
}

// One byte that is not text, and a limit within a character, take no text away.
func TestOneByteIsNotText(t *testing.T) {
	line := strings.Repeat("a line that somebody printed\n", 1000)
	for name, c := range map[string]struct {
		out   string
		limit uint64
		want  []string
	}{
		"within":    {line + "caf\xe9" + line, 1 << 20, []string{line + "caf", "\xe9", line}},
		"first":     {"\xff" + line, 1 << 20, []string{"\xff", line}},
		"last":      {line + "\xff", 1 << 20, []string{line, "\xff"}},
		"limit":     {"a 😀😀", 2 + 4 + 3, []string{"a 😀", "\xf0\x9f\x98"}},
		"far limit": {line + "ö", uint64(len(line)) + 1, []string{line, "\xc3"}},
		"short":     {"a\xffb", 1 << 20, []string{"a\xffb"}},
		"few":       {line + "\xffab\xff" + line, 1 << 20, []string{line, "\xffab\xff", line}},
	} {
		d := draft{limit: c.limit, artifacts: names}
		if err := d.add(&agentv1.Output{Seq: 1, Stream: agentv1.Stream_STREAM_STDOUT, Data: []byte(c.out)}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range d.chunks {
			got = append(got, string(c.Data))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
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

// A guest that sends single bytes by turns, of both streams or of text and other
// bytes, does not have a row stored for each.
func TestSingleBytesMakeFewEvents(t *testing.T) {
	for name, pieces := range map[string][]string{"streams": {"a", "b"}, "kinds": {"a", "a", "\xff", "\xff"}} {
		d := draft{limit: 1 << 40, artifacts: names}
		var want [2]string
		for i := range 2000 {
			data, stream := pieces[i%len(pieces)], i%2
			err := d.add(&agentv1.Output{Seq: uint64(i + 1), Stream: agentv1.Stream(stream + 1), Data: []byte(data)})
			if err != nil {
				t.Fatal(err)
			}
			want[stream] += data
		}
		var got [2]string
		for _, c := range d.chunks {
			i := slices.Index(names[:], c.ArtifactID)
			if c.Offset != uint64(len(got[i])) {
				t.Fatalf("%s: a chunk is at %d, not at %d", name, c.Offset, len(got[i]))
			}
			got[i] += string(c.Data)
		}
		if got != want {
			t.Errorf("%s: other bytes are stored than were written", name)
		}
		if most := maxApart + len(names); len(d.chunks) > most {
			t.Errorf("%s: 2000 bytes make %d events, more than %d", name, len(d.chunks), most)
		}
	}
}
