package serve_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"path"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

func end(data []byte) *agentv1.FileEnd {
	sum := sha256.Sum256(data)
	return &agentv1.FileEnd{Size: uint64(len(data)), Sha256: sum[:]}
}

// put writes a file. A failed Send is learnt of by CloseAndRecv.
func (a agent) put(ctx context.Context, h *agentv1.PutFileHeader, data []byte, last *agentv1.FileEnd) error {
	s, err := a.PutFile(ctx)
	if err != nil {
		return err
	}
	_ = s.Send(&agentv1.PutFileRequest{Request: &agentv1.PutFileRequest_Header{Header: h}})
	for rest := data; len(rest) > 0; {
		n := min(len(rest), agentv1.MaxChunk)
		_ = s.Send(&agentv1.PutFileRequest{Request: &agentv1.PutFileRequest_Data{Data: rest[:n]}})
		rest = rest[n:]
	}
	if last != nil {
		_ = s.Send(&agentv1.PutFileRequest{Request: &agentv1.PutFileRequest_Commit{Commit: last}})
	}
	_, err = s.CloseAndRecv()
	return err
}

func (a agent) get(ctx context.Context, req *agentv1.GetFileRequest) ([]byte, error) {
	s, err := a.GetFile(ctx, req)
	if err != nil {
		return nil, err
	}
	var data []byte
	for {
		m, err := s.Recv()
		if err != nil {
			return nil, err
		}
		if e := m.GetEnd(); e != nil {
			sum := sha256.Sum256(data)
			if e.GetSize() != uint64(len(data)) || !bytes.Equal(sum[:], e.GetSha256()) {
				return nil, errors.New("the end does not fit")
			}
			_, err := s.Recv()
			if !errors.Is(err, io.EOF) {
				return nil, errors.New("something came after the end")
			}
			return data, nil
		}
		data = append(data, m.GetData()...)
	}
}

func TestFilesGoThereAndBack(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		dir := path.Join(a.dir, uuid.NewString())
		for _, size := range []int{0, 1, 3<<20 + 17} {
			data := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(data)
			h := &agentv1.PutFileHeader{Root: a.dir, Path: path.Base(dir) + "/file", MakeParents: true, Mode: 0o600}
			if err := a.put(t.Context(), h, data, end(data)); err != nil {
				t.Fatal(err)
			}
			got, err := a.get(t.Context(), &agentv1.GetFileRequest{Root: dir, Path: "file", MaxBytes: uint64(size)})
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes: %d came back, %v", size, len(got), err)
			}
		}
		h := &agentv1.PutFileHeader{Root: dir, Path: "file"}
		for name, c := range map[string]struct {
			err  error
			want codes.Code
		}{
			"no commit":  {a.put(t.Context(), h, []byte("x"), nil), codes.DataLoss},
			"wrong end":  {a.put(t.Context(), h, []byte("x"), end([]byte("y"))), codes.DataLoss},
			"outside":    {a.put(t.Context(), &agentv1.PutFileHeader{Root: dir, Path: "../x"}, nil, end(nil)), codes.InvalidArgument},
			"no parents": {a.put(t.Context(), &agentv1.PutFileHeader{Root: dir, Path: "a/x"}, nil, end(nil)), codes.NotFound},
			"no user":    {a.put(t.Context(), &agentv1.PutFileHeader{Root: dir, Path: "x", User: "no-such-user"}, nil, end(nil)), codes.InvalidArgument},
		} {
			if status.Code(c.err) != c.want {
				t.Errorf("%s: %v", name, c.err)
			}
		}
		if _, err := a.get(t.Context(), &agentv1.GetFileRequest{Root: dir, Path: "file", MaxBytes: 5}); status.Code(err) != codes.OutOfRange {
			t.Errorf("larger than asked for: %v", err)
		}
		if got, err := a.get(t.Context(), &agentv1.GetFileRequest{Root: dir, Path: "file"}); err != nil || len(got) != 3<<20+17 {
			t.Errorf("after failed writes: %d bytes, %v", len(got), err)
		}
		if _, err := a.get(t.Context(), &agentv1.GetFileRequest{Root: dir, Path: "none"}); status.Code(err) != codes.NotFound {
			t.Errorf("missing: %v", err)
		}
	})
}

func (a agent) unpack(ctx context.Context, h *agentv1.PutArchiveHeader, data []byte, last *agentv1.FileEnd) (*agentv1.PutArchiveResponse, error) {
	s, err := a.PutArchive(ctx)
	if err != nil {
		return nil, err
	}
	_ = s.Send(&agentv1.PutArchiveRequest{Request: &agentv1.PutArchiveRequest_Header{Header: h}})
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 1000)
		_ = s.Send(&agentv1.PutArchiveRequest{Request: &agentv1.PutArchiveRequest_Data{Data: rest[:n]}})
		rest = rest[n:]
	}
	if last != nil {
		_ = s.Send(&agentv1.PutArchiveRequest{Request: &agentv1.PutArchiveRequest_Commit{Commit: last}})
	}
	return s.CloseAndRecv()
}

func TestArchive(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, name := range []string{"one", "dir/two"} {
			if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(name))}); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, name); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		data := append(buf.Bytes(), make([]byte, 8192)...) // tar pads to its blocking factor
		root := path.Join(a.dir, uuid.NewString(), "new")
		got, err := a.unpack(t.Context(), &agentv1.PutArchiveHeader{Root: root}, data, end(data))
		if err != nil || got.GetEntries() != 2 || got.GetBytes() != 10 {
			t.Fatalf("%v %v", got, err)
		}
		if text, err := a.get(t.Context(), &agentv1.GetFileRequest{Root: root, Path: "dir/two"}); err != nil || string(text) != "dir/two" {
			t.Errorf("%q %v", text, err)
		}
		for name, c := range map[string]struct {
			last *agentv1.FileEnd
			h    *agentv1.PutArchiveHeader
			want codes.Code
		}{
			"no commit":    {nil, &agentv1.PutArchiveHeader{Root: root}, codes.DataLoss},
			"wrong end":    {end(nil), &agentv1.PutArchiveHeader{Root: root}, codes.DataLoss},
			"too many":     {end(data), &agentv1.PutArchiveHeader{Root: root, MaxEntries: 1}, codes.OutOfRange},
			"too large":    {end(data), &agentv1.PutArchiveHeader{Root: root, MaxBytes: 9}, codes.OutOfRange},
			"bad root":     {end(data), &agentv1.PutArchiveHeader{Root: "relative"}, codes.InvalidArgument},
			"root is file": {end(data), &agentv1.PutArchiveHeader{Root: root + "/one"}, codes.FailedPrecondition},
		} {
			if _, err := a.unpack(t.Context(), c.h, data, c.last); status.Code(err) != c.want {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestStats(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		a.start(t, sh("sleep 300"))
		s, err := a.Stats(t.Context(), &agentv1.StatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if s.GetRunsActive() < 1 || s.GetMemoryTotal() == 0 || s.GetMemoryAvailable() > s.GetMemoryTotal() || s.GetDiskTotal() < s.GetDiskAvailable() ||
			s.GetDiskTotal() == 0 || s.GetCpuBusy().AsDuration() <= 0 || s.GetUptime().AsDuration() <= 0 || s.GetTime().AsTime().Year() < 2024 {
			t.Errorf("stats: %v", s)
		}
	})
}
