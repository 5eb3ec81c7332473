package agentlink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// patience ends a transfer that makes no step for a while.
type patience struct {
	timer   *time.Timer
	step    time.Duration
	expired atomic.Bool
}

func newPatience(step time.Duration, cancel context.CancelFunc) *patience {
	p := &patience{step: step}
	p.timer = time.AfterFunc(step, func() { p.expired.Store(true); cancel() })
	return p
}

func (p *patience) moved() { p.timer.Reset(p.step) }
func (p *patience) stop()  { p.timer.Stop() }

// attempt does a whole transfer over one connection.
type attempt func(ctx context.Context, c agentv1.AgentClient, p *patience) error

// transfer runs f on a connection with a context that ends when f makes no
// step in time, and repeats it on the next connection while again agrees.
func (l *Link) transfer(ctx context.Context, what string, f attempt, again func() bool) error {
	b := newBackoff(l.opts.MaxBackoff)
	for n := 1; ; n++ {
		sctx, stop := context.WithTimeout(ctx, l.opts.CallTimeout)
		s, err := l.session(sctx)
		stop()
		switch {
		case err != nil && sctx.Err() != nil:
			return ended(ctx, what, false)
		case err != nil:
			return fmt.Errorf("cannot %s: %w", what, err)
		}
		tctx, cancel := context.WithCancel(ctx)
		p := newPatience(l.opts.CallTimeout, cancel)
		err = f(tctx, s.client, p)
		p.stop()
		cancel()
		var known *instance.Fault
		switch {
		case err == nil || errors.As(err, &known):
			return err
		case ctx.Err() != nil, p.expired.Load():
			return ended(ctx, what, true)
		case !errors.Is(err, errBroken):
			return err
		}
		s.kill()
		if n > maxFutile || !again() {
			return fault(instance.Host, CodeUnreachable, "try again", fmt.Errorf("cannot %s: %w", what, err))
		}
		if b.wait(ctx) != nil {
			return ended(ctx, what, false)
		}
	}
}

// answer turns the error of a transfer's stream into ours.
func answer(what string, err error) error {
	if isLost(err) || errors.Is(err, io.EOF) {
		return errBroken
	}
	return statusFault(what, err, meanings{
		codes.NotFound: func(msg string) error {
			return fault(instance.Caller, CodeFileMissing, "", fmt.Errorf("cannot %s: not found in the machine: %s", what, msg))
		},
		codes.OutOfRange: func(msg string) error {
			return fault(instance.Caller, CodeFileTooLarge, "", fmt.Errorf("cannot %s: over the bound: %s", what, msg))
		},
		codes.PermissionDenied: func(msg string) error {
			return fault(instance.Caller, CodeFileRefused, "", fmt.Errorf("cannot %s: refused: %s", what, msg))
		},
		codes.FailedPrecondition: func(msg string) error {
			return fault(instance.Guest, CodeFileRefused, "", fmt.Errorf("cannot %s: %s", what, msg))
		},
	})
}

// upload is what PutFile and PutArchive have in common.
type upload struct {
	send   func(data []byte, end *agentv1.FileEnd) error
	finish func() error // closes and returns the agent's verdict
}

// push sends all of r in chunks and then proves completeness.
func push(r io.Reader, what string, u upload, p *patience) error {
	hash := sha256.New()
	var size uint64
	chunk := make([]byte, agentv1.MaxChunk)
	for {
		p.stop() // a slow source is not the guest's fault
		n, err := io.ReadFull(r, chunk)
		p.moved()
		if n > 0 {
			hash.Write(chunk[:n])
			size += uint64(n)
			// io.EOF means that the agent has its verdict already.
			if serr := u.send(chunk[:n], nil); errors.Is(serr, io.EOF) {
				return u.early(what)
			} else if serr != nil {
				return answer(what, serr)
			}
			p.moved()
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return fault(instance.Caller, CodeInput, "", fmt.Errorf("cannot %s: cannot read the data: %w", what, err))
		}
	}
	if err := u.send(nil, &agentv1.FileEnd{Size: size, Sha256: hash.Sum(nil)}); err != nil && !errors.Is(err, io.EOF) {
		return answer(what, err)
	}
	if err := u.finish(); err != nil {
		return answer(what, err)
	}
	return nil
}

// early explains why the agent ended the call before all data was sent.
func (u upload) early(what string) error {
	if err := u.finish(); err != nil {
		return answer(what, err)
	}
	return lie("it answered before all data was sent")
}

// rewind returns how to repeat the sending of r: only if it can seek.
func rewind(r io.Reader) func() bool {
	s, ok := r.(io.Seeker)
	if !ok {
		return func() bool { return false }
	}
	start, err := s.Seek(0, io.SeekCurrent)
	if err != nil {
		return func() bool { return false }
	}
	return func() bool {
		_, err := s.Seek(start, io.SeekStart)
		return err == nil
	}
}

// PutFile writes one regular file atomically. When a connection breaks it
// starts over if r is an io.Seeker, and fails with CodeUnreachable otherwise.
func (l *Link) PutFile(ctx context.Context, h *agentv1.PutFileHeader, r io.Reader) error {
	what := fmt.Sprintf("put file %q", h.GetPath())
	return l.transfer(ctx, what, func(ctx context.Context, c agentv1.AgentClient, p *patience) error {
		stream, err := c.PutFile(ctx)
		if err != nil {
			return answer(what, err)
		}
		err = stream.Send(&agentv1.PutFileRequest{Request: &agentv1.PutFileRequest_Header{Header: h}})
		if err != nil && !errors.Is(err, io.EOF) {
			return answer(what, err)
		}
		return push(r, what, upload{
			send: func(data []byte, end *agentv1.FileEnd) error {
				if end != nil {
					return stream.Send(&agentv1.PutFileRequest{Request: &agentv1.PutFileRequest_Commit{Commit: end}})
				}
				return stream.Send(&agentv1.PutFileRequest{Request: &agentv1.PutFileRequest_Data{Data: data}})
			},
			finish: func() error { _, err := stream.CloseAndRecv(); return err },
		}, p)
	}, rewind(r))
}

// PutArchive unpacks the tar stream r below a directory of the guest. As for
// broken connections see PutFile.
func (l *Link) PutArchive(ctx context.Context, h *agentv1.PutArchiveHeader, r io.Reader) (*agentv1.PutArchiveResponse, error) {
	what := fmt.Sprintf("unpack archive below %q", h.GetRoot())
	var resp *agentv1.PutArchiveResponse
	err := l.transfer(ctx, what, func(ctx context.Context, c agentv1.AgentClient, p *patience) error {
		stream, err := c.PutArchive(ctx)
		if err != nil {
			return answer(what, err)
		}
		err = stream.Send(&agentv1.PutArchiveRequest{Request: &agentv1.PutArchiveRequest_Header{Header: h}})
		if err != nil && !errors.Is(err, io.EOF) {
			return answer(what, err)
		}
		return push(r, what, upload{
			send: func(data []byte, end *agentv1.FileEnd) error {
				if end != nil {
					return stream.Send(&agentv1.PutArchiveRequest{Request: &agentv1.PutArchiveRequest_Commit{Commit: end}})
				}
				return stream.Send(&agentv1.PutArchiveRequest{Request: &agentv1.PutArchiveRequest_Data{Data: data}})
			},
			finish: func() (err error) { resp, err = stream.CloseAndRecv(); return err },
		}, p)
	}, rewind(r))
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// GetFile copies one regular file of at most req.MaxBytes to w and checks it
// against the size and digest the agent sent last. What w got is to be
// thrown away when an error is returned.
func (l *Link) GetFile(ctx context.Context, req *agentv1.GetFileRequest, w io.Writer) (*agentv1.FileEnd, error) {
	what := fmt.Sprintf("get file %q", req.GetPath())
	if req.GetMaxBytes() == 0 {
		return nil, fault(instance.Caller, CodeInvalid, "", fmt.Errorf("cannot %s: no bound on its size was given", what))
	}
	var end *agentv1.FileEnd
	err := l.transfer(ctx, what, func(ctx context.Context, c agentv1.AgentClient, p *patience) error {
		stream, err := c.GetFile(ctx, req)
		if err != nil {
			return answer(what, err)
		}
		end, err = pull(stream.Recv, w, what, req.GetMaxBytes(), p)
		return err
	}, func() bool { return false })
	if err != nil {
		return nil, err
	}
	return end, nil
}

// pull writes a file's chunks to w until its end has been proven.
func pull(recv func() (*agentv1.GetFileResponse, error), w io.Writer, what string, limit uint64, p *patience) (*agentv1.FileEnd, error) {
	hash := sha256.New()
	var size uint64
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return nil, lie("file ended without its size and digest")
		}
		if err != nil {
			return nil, answer(what, err)
		}
		p.moved()
		switch r := m.GetResponse().(type) {
		case *agentv1.GetFileResponse_Data:
			n := len(r.Data)
			if n == 0 || n > agentv1.MaxChunk {
				return nil, lie("file data has %d bytes, want 1 to %d", n, agentv1.MaxChunk)
			}
			if size += uint64(n); size > limit {
				return nil, lie("file has more than the %d bytes asked for", limit)
			}
			hash.Write(r.Data)
			if _, err := w.Write(r.Data); err != nil {
				return nil, fault(instance.Caller, CodeInput, "", fmt.Errorf("cannot %s: cannot store the data: %w", what, err))
			}
			p.moved()
		case *agentv1.GetFileResponse_End:
			if r.End.GetSize() != size || !bytes.Equal(r.End.GetSha256(), hash.Sum(nil)) {
				return nil, lie("file does not match its own size and digest")
			}
			return r.End, nil
		default:
			return nil, lie("unexpected message %T", r)
		}
	}
}
