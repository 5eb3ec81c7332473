package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/identity"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/workspace"
)

// owner resolves who files are made for. The empty user is the agent itself.
func (s *service) owner(user string) (workspace.Owner, error) {
	if user == "" {
		return workspace.Owner{Keep: true}, nil
	}
	a, err := identity.Lookup(s.config.Accounts, user)
	if err != nil {
		return workspace.Owner{}, err
	}
	return workspace.Owner{UID: a.UID, GID: a.GID}, nil
}

// PutFile writes one file atomically.
func (s *service) PutFile(stream agentv1.Agent_PutFileServer) error {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetHeader() == nil {
		return status.Error(codes.InvalidArgument, "cannot put file: the first request must be header")
	}
	if err != nil {
		return err
	}
	h := first.GetHeader()
	who, err := s.owner(h.GetUser())
	if err != nil {
		return toStatus(err)
	}
	root, err := workspace.OpenRoot(h.GetRoot())
	if err != nil {
		return toStatus(err)
	}
	defer root.Close()
	w, err := root.Create(h.GetPath(), workspace.FileOptions{Mode: h.GetMode(), Owner: who, MakeParents: h.GetMakeParents()})
	if err != nil {
		return toStatus(err)
	}
	if err := receiveFile(stream, w); err != nil {
		return toStatus(err)
	}
	return stream.SendAndClose(&agentv1.PutFileResponse{})
}

// receiveFile takes the data of a file and its end. The writer is done then.
func receiveFile(stream agentv1.Agent_PutFileServer, w *workspace.Writer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			w.Abort()
			if errors.Is(err, io.EOF) {
				return status.Error(codes.DataLoss, "cannot put file: the stream ended without commit")
			}
			return err
		}
		switch r := req.GetRequest().(type) {
		case *agentv1.PutFileRequest_Data:
			if _, err := w.Write(r.Data); err != nil {
				w.Abort()
				return err
			}
		case *agentv1.PutFileRequest_Commit:
			return w.Commit(r.Commit.GetSize(), r.Commit.GetSha256())
		default:
			w.Abort()
			return status.Error(codes.InvalidArgument, "cannot put file: header comes first and once, then data, then commit")
		}
	}
}

// GetFile reads one regular file.
func (s *service) GetFile(req *agentv1.GetFileRequest, stream agentv1.Agent_GetFileServer) error {
	root, err := workspace.OpenRoot(req.GetRoot())
	if err != nil {
		return toStatus(err)
	}
	defer root.Close()
	r, err := root.Open(req.GetPath(), req.GetMaxBytes())
	if err != nil {
		return toStatus(err)
	}
	defer r.Close()
	buf := make([]byte, agentv1.MaxChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := stream.Send(&agentv1.GetFileResponse{Response: &agentv1.GetFileResponse_Data{Data: buf[:n]}}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return toStatus(err)
		}
	}
	size, sum := r.End()
	return stream.Send(&agentv1.GetFileResponse{Response: &agentv1.GetFileResponse_End{End: &agentv1.FileEnd{Size: size, Sha256: sum}}})
}

// PutArchive unpacks a tar stream.
func (s *service) PutArchive(stream agentv1.Agent_PutArchiveServer) error {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetHeader() == nil {
		return status.Error(codes.InvalidArgument, "cannot put archive: the first request must be header")
	}
	if err != nil {
		return err
	}
	h := first.GetHeader()
	who, err := s.owner(h.GetUser())
	if err != nil {
		return toStatus(err)
	}
	root, err := workspace.MakeRoot(h.GetRoot(), who)
	if err != nil {
		return toStatus(err)
	}
	defer root.Close()
	src := &archiveReader{stream: stream, sum: sha256.New()}
	got, err := root.Unpack(src, workspace.UnpackOptions{Owner: who, MaxBytes: h.GetMaxBytes(), MaxEntries: h.GetMaxEntries()})
	if err == nil {
		_, err = io.Copy(io.Discard, src) // padding after the last entry, then commit
	}
	if err != nil {
		return toStatus(err)
	}
	return stream.SendAndClose(&agentv1.PutArchiveResponse{Entries: got.Entries, Bytes: got.Bytes})
}

// archiveReader reads the data of an archive. It ends with io.EOF only when
// commit has come and holds.
type archiveReader struct {
	stream grpc.ClientStreamingServer[agentv1.PutArchiveRequest, agentv1.PutArchiveResponse]
	rest   []byte
	sum    hash.Hash
	size   uint64
	done   bool
}

func (r *archiveReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.done {
			return 0, io.EOF
		}
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *archiveReader) next() error {
	req, err := r.stream.Recv()
	if errors.Is(err, io.EOF) {
		return status.Error(codes.DataLoss, "cannot put archive: the stream ended without commit")
	}
	if err != nil {
		return err
	}
	switch q := req.GetRequest().(type) {
	case *agentv1.PutArchiveRequest_Data:
		r.rest = q.Data
		r.sum.Write(q.Data)
		r.size += uint64(len(q.Data))
		return nil
	case *agentv1.PutArchiveRequest_Commit:
		r.done = true
		if r.size != q.Commit.GetSize() || !bytes.Equal(r.sum.Sum(nil), q.Commit.GetSha256()) {
			return fmt.Errorf("cannot put archive: %w: size or sha256 differ from the promised ones", workspace.ErrIncomplete)
		}
		return nil
	default:
		return status.Error(codes.InvalidArgument, "cannot put archive: header comes first and once, then data, then commit")
	}
}

// Stats is a snapshot of the machine.
func (s *service) Stats(context.Context, *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	st, err := readStats()
	if err != nil {
		return nil, toStatus(err)
	}
	st.RunsActive = uint32(s.table.Active())
	return st, nil
}
