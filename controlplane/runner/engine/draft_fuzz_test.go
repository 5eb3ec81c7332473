package engine

import (
	"bytes"
	"testing"
	"unicode/utf8"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// FuzzDraft: whatever a guest writes, in whatever pieces and transactions, is
// stored byte for byte up to the limit, and text is shown as text throughout.
func FuzzDraft(f *testing.F) {
	f.Add([]byte("a line\nö€😀"), uint8(0), uint16(9))
	f.Add([]byte("\xf0\x9f\x98"), uint8(1), uint16(3))
	f.Add([]byte("\xc3\xff\x80\xe2\x82\xacx"), uint8(2), uint16(1000))
	f.Fuzz(func(t *testing.T, out []byte, cut uint8, limit uint16) {
		var p task.Progress
		var stored []byte
		for at := 0; at < len(out); {
			d := draft{p: p, limit: uint64(limit), artifacts: names}
			for range 1 + cut%3 { // in one transaction
				n := min(int(cut)+1, len(out)-at)
				piece := bytes.Clone(out[at : at+n])
				if err := d.add(&agentv1.Output{Seq: p.AfterSeq + 1, Stream: agentv1.Stream_STREAM_STDOUT, Data: piece}); err != nil {
					t.Fatal(err)
				}
				if at += n; at == len(out) {
					break
				}
			}
			for _, c := range d.chunks {
				if c.ArtifactID != names[0] || c.Offset != uint64(len(stored)) || len(c.Data) == 0 {
					t.Fatalf("chunk %+v after %d bytes", c, len(stored))
				}
				// Only what the limit leaves of a character is none.
				if utf8.Valid(out) && !utf8.Valid(c.Data) && (len(out) <= int(limit) || len(c.Data) >= utf8.UTFMax) {
					t.Fatalf("of the text %q, %q is shown as bytes", out, c.Data)
				}
				stored = append(stored, c.Data...)
			}
			p = d.p
		}
		want := out[:min(len(out), int(limit))]
		if got := append(stored, p.Carry[0]...); !bytes.Equal(got, want) || len(p.Carry[0]) >= utf8.UTFMax {
			t.Fatalf("%q is stored as %q with %q to come, the limit is %d", out, stored, p.Carry[0], limit)
		}
		if p.Overflow != (len(out) > int(limit)) || p.Received[0] != uint64(len(out)) {
			t.Fatalf("of %d bytes, with the limit %d: %+v", len(out), limit, p)
		}
	})
}
