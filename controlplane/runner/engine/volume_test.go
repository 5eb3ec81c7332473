package engine_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestVolume: a command prints 64 MiB and exits 7; every byte is there, with
// the right digest.
func TestVolume(t *testing.T) {
	r := newRig(t, nil)
	const size = 64 << 20
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	id := r.submit("cat " + path + "; exit 7").ID
	for c := r.Changed(id); c != nil; c = r.Changed(id) {
		<-c
	}
	rec, err := r.db.Task(t.Context(), task.System(), id, task.View{Inline: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if o := outcome(t, rec); o.ExitCode == nil || *o.ExitCode != 7 || o.StdoutBytes != size {
		t.Errorf("outcome is %+v", o)
	}
	sum := sha256.Sum256(data)
	if got := string(rec.Artifacts[0].Metadata["sha256"]); got != `"`+hex.EncodeToString(sum[:])+`"` {
		t.Errorf("digest is %s", got)
	}
	inlined := 0
	for _, p := range rec.Artifacts[0].Parts {
		inlined += len(p.Raw)
	}
	if inlined > 1<<20 || string(rec.Artifacts[0].Metadata["truncated"]) != "true" {
		t.Errorf("%d bytes are inlined, %s", inlined, rec.Artifacts[0].Metadata)
	}
	for offset := uint64(0); offset < size; {
		b, err := r.db.ReadArtifact(t.Context(), task.System(), id, "stdout", offset)
		if err != nil || len(b) == 0 || len(b) > 1<<20 || !bytes.Equal(b, data[offset:offset+uint64(len(b))]) {
			t.Fatalf("at %d: %d bytes, %v", offset, len(b), err)
		}
		offset += uint64(len(b))
	}
}
