package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// TestSumIgnoresPieces: output of a run comes in pieces of any size.
func TestSumIgnoresPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "data")
		var whole, pieces Sum
		_, _ = whole.Write(data)
		for rest := data; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			if got, err := pieces.Write(rest[:n]); got != n || err != nil {
				t.Fatalf("Write took %d of %d bytes, %v", got, n, err)
			}
			rest = rest[n:]
		}
		if whole.Value() != pieces.Value() {
			t.Fatalf("%x in one piece, %x in several", whole.Value(), pieces.Value())
		}
	})
}

// TestSumSeesDamage: what channels do to data.
func TestSumSeesDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "data")
		sum := func(b []byte) uint64 {
			var s Sum
			_, _ = s.Write(b)
			return s.Value()
		}
		i := rapid.IntRange(0, len(data)-1).Draw(t, "place")
		flipped := bytes.Clone(data)
		flipped[i] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		for name, bad := range map[string][]byte{
			"a flipped bit": flipped, "a cut end": data[:i], "a zero more": append(bytes.Clone(data), 0),
		} {
			if sum(bad) == sum(data) {
				t.Errorf("%s is not seen", name)
			}
		}
	})
}

func TestSendReceive(t *testing.T) {
	const size, seed = 5 * ChunkSize, 42
	var stream bytes.Buffer
	sent, err := Send(&stream, size, seed)
	if err != nil || stream.Len() != size {
		t.Fatalf("sent %d bytes, %v", stream.Len(), err)
	}
	data := bytes.Clone(stream.Bytes())
	if got, err := Receive(&stream, size); err != nil || got != sent {
		t.Errorf("received %x, %v, want %x", got, err, sent)
	}
	// Two chunks in the wrong order are of the same bytes.
	swapped := bytes.Clone(data)
	copy(swapped[ChunkSize:], data[2*ChunkSize:3*ChunkSize])
	copy(swapped[2*ChunkSize:], data[ChunkSize:2*ChunkSize])
	if got, err := Receive(bytes.NewReader(swapped), size); err != nil || got == sent {
		t.Errorf("swapped chunks give the same checksum (%v)", err)
	}
	if _, err := Receive(bytes.NewReader(data[:size-1]), size); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a short stream gives %v", err)
	}
	if other, err := Send(io.Discard, size, seed+1); err != nil || other == sent {
		t.Errorf("another seed gives the same data (%v)", err)
	}
}

func TestRequests(t *testing.T) {
	want := Request{Op: OpSource, Size: 3 * ChunkSize, Seed: 7}
	var stream bytes.Buffer
	if err := WriteRequest(&stream, want); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRequest(&stream); err != nil || got != want {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := ReadRequest(&stream); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the stream gives %v", err)
	}
	if err := WriteAnswer(&stream, 1<<60+5); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadAnswer(&stream); err != nil || got != 1<<60+5 {
		t.Errorf("read answer %d, %v", got, err)
	}
}

// FuzzReadRequest: the guest must not be made to hang or allocate by noise.
func FuzzReadRequest(f *testing.F) {
	f.Add([]byte{1, 0, 0, 1})
	f.Add(append([]byte{2, 0, 0, 1}, make([]byte, 13)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ReadRequest(bytes.NewReader(data))
		if err == nil && (r.Size > MaxSize || r.Size%ChunkSize != 0 || r.Op == 0 || r.Op > OpSum) {
			t.Errorf("took %+v", r)
		}
	})
}
