package initramfs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// The bytes of a segment are a contract with the kernel; they are spelled out
// here, field by field, so that a change is seen for what it is.
func TestBootConfigSegmentGolden(t *testing.T) {
	want := "070701" + // magic
		"00000001" + "00008180" + // inode, mode: a regular file, 0600
		"00000000" + "00000000" + "00000001" + "00000000" + // uid, gid, links, mtime
		"0000000d" + // size
		"00000000" + "00000000" + "00000000" + "00000000" + // devices
		"0000000c" + "00000000" + // name with its zero byte, check
		"config.json\x00" + "\x00\x00" + // padded to 4 with the header's 110
		"{\"version\":1}" + "\x00\x00\x00" +
		"070701" + "00000000" + "00000000" + "00000000" + "00000000" + "00000001" + "00000000" + "00000000" +
		"00000000" + "00000000" + "00000000" + "00000000" + "0000000b" + "00000000" + "TRAILER!!!\x00" + "\x00\x00\x00"
	if got := string(BootConfigSegment([]byte(`{"version":1}`))); got != want {
		t.Errorf("segment is\n%q, want\n%q", got, want)
	}
}

func TestBootConfigNameIsTheContracts(t *testing.T) {
	if got := "/" + bootConfigName; got != agentv1.BootConfigPath {
		t.Errorf("the segment holds %q, the agent looks for %q", got, agentv1.BootConfigPath)
	}
}

func entries() []Entry {
	return []Entry{
		{Name: "init", Mode: 0o755, Data: []byte("\x7fELF")},
		{Name: "proc", Mode: 0o755, Dir: true},
		{Name: "modules", Mode: 0o755, Dir: true},
		{Name: "modules/02-b.ko", Mode: 0o644, Data: bytes.Repeat([]byte("b"), 4097)},
		{Name: "modules/01-a.ko", Mode: 0o644},
	}
}

func TestWriteGolden(t *testing.T) {
	var got bytes.Buffer
	if err := Write(&got, entries()); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "small.cpio")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the archive has changed; if that is intended run: UPDATE_GOLDEN=1 go test ./images/initramfs")
	}
}

// An independent reader finds what was written, also behind a second archive.
func TestAnotherReaderAgrees(t *testing.T) {
	var archive bytes.Buffer
	if err := Write(&archive, entries()); err != nil {
		t.Fatal(err)
	}
	if archive.Len()%4 != 0 {
		t.Fatalf("the archive has %d bytes, not a multiple of 4", archive.Len())
	}
	var names []string
	r := cpio.NewReader(&archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Guid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s belongs to %d:%d and is of %v", h.Name, h.Uid, h.Guid, h.ModTime)
		}
		if h.Name == "modules/02-b.ko" && (len(data) != 4097 || h.Mode.Perm() != 0o644) {
			t.Errorf("%s has %d bytes and mode %v", h.Name, len(data), h.Mode)
		}
		if (h.Name == "proc") != h.Mode.IsDir() && h.Name == "proc" {
			t.Errorf("proc is not a directory")
		}
	}
	if got := strings.Join(names, " "); got != "init modules modules/01-a.ko modules/02-b.ko proc" {
		t.Errorf("names are %q, want them sorted", got)
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, bad := range map[string][]Entry{
		"absolute":   {{Name: "/init"}},
		"traversal":  {{Name: "../init"}},
		"unclean":    {{Name: "a//b"}},
		"empty":      {{Name: ""}},
		"trailer":    {{Name: "TRAILER!!!"}},
		"zero byte":  {{Name: "a\x00b"}},
		"no parent":  {{Name: "modules/x.ko"}},
		"twice":      {{Name: "a"}, {Name: "a"}},
		"type bits":  {{Name: "a", Mode: 0o100644}},
		"dir's data": {{Name: "a", Dir: true, Data: []byte("x")}},
	} {
		if err := Write(io.Discard, bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// failing writes fail the archive, whichever write it is.
func TestWriteReportsFailures(t *testing.T) {
	var whole bytes.Buffer
	if err := Write(&whole, entries()); err != nil {
		t.Fatal(err)
	}
	for room := 0; room < whole.Len(); room += 53 {
		if err := Write(&full{room}, entries()); !errors.Is(err, errFull) {
			t.Fatalf("with room for %d bytes: error = %v", room, err)
		}
	}
}

var errFull = errors.New("full")

type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if len(p) > f.room {
		return f.room, errFull
	}
	f.room -= len(p)
	return len(p), nil
}
