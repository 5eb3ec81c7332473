package invoke

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"time"
)

// Follower turns a task's events into output, each byte once, also when the
// stream breaks and is opened again.
type Follower struct {
	Client *Client
	// Output takes the next bytes of an artifact, named "stdout" for example.
	Output func(name string, data []byte) error
	// Began is called once, when the task has an id. May be nil.
	Began func(id string)
	// Lost is called when a stream broke and before it is opened again. May
	// be nil.
	Lost func(err error)
	// Patience is how long to look for the task after its stream broke.
	Patience time.Duration
	// Wait is the shortest pause between two attempts; 0 means 200 ms.
	Wait time.Duration

	task    Task
	message *Message
	out     map[string]*given // what went to Output, by artifact id
	last    string            // id of the newest event
	final   bool              // an event said so, so all output came before it
	alive   time.Time         // when the server last showed that it knows the task
	wait    time.Duration     // before the next attempt to open a stream
}

// given is what Output has got of one artifact.
type given struct {
	name  string
	bytes int64
	hash  hash.Hash
}

// Result is what came of a message: a task, or a mere message.
type Result struct {
	Task    *Task
	Message *Message
}

// Waits between attempts to find a task again.
const (
	firstWait = 200 * time.Millisecond
	lastWait  = 5 * time.Second
)

// maxArtifacts bounds what is remembered of a server's artifacts.
const maxArtifacts = 4096

var (
	errNoTask           = errors.New("server closed the stream without a task")
	errNotFollowable    = errors.New("server does not let the task be followed")
	errTooManyArtifacts = errors.New("server sent too many artifacts")
)

// Send sends a message and follows what comes of it until the task has ended
// or waits for somebody.
func (f *Follower) Send(ctx context.Context, m Message) (Result, error) {
	s, err := f.Client.Send(ctx, m)
	if err != nil {
		return Result{}, err
	}
	return f.follow(ctx, s)
}

// Resume follows a task that was begun before.
func (f *Follower) Resume(ctx context.Context, id string) (Result, error) {
	f.task.ID = id
	return f.follow(ctx, nil)
}

func (f *Follower) follow(ctx context.Context, s *Stream) (Result, error) {
	if f.out == nil { // it is kept from one message of a task to the next
		f.out = map[string]*given{}
	}
	f.last = cmp.Or(f.last, FromStart)
	f.Wait = cmp.Or(f.Wait, firstWait)
	f.alive, f.wait = time.Now(), f.Wait
	for {
		var err error
		if s != nil {
			err = f.drain(s)
			s.Close()
			switch {
			case f.message != nil:
				return Result{Message: f.message}, nil
			case f.settled() && (f.final || err == nil):
				return Result{Task: &f.task}, nil
			case ctx.Err() != nil:
				return Result{Task: &f.task}, fmt.Errorf("cannot follow task: %w", ctx.Err())
			case f.task.ID == "":
				return Result{}, either(err, errNoTask)
			case fatal(err):
				return Result{Task: &f.task}, err
			}
			if f.Lost != nil {
				f.Lost(either(err, io.ErrUnexpectedEOF))
			}
		}
		if f.wait > f.Wait { // the stream before brought nothing
			if err := pause(ctx, f.wait); err != nil {
				return Result{Task: &f.task}, err
			}
		}
		if s, err = f.reopen(ctx); err != nil {
			return Result{Task: &f.task}, err
		}
		if s == nil { // the task ended while nobody looked
			return Result{Task: &f.task}, nil
		}
	}
}

func either(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// outputError is a failure to write what came: no new stream mends it.
type outputError struct{ error }

func (e outputError) Unwrap() error { return e.error }

func fatal(err error) bool {
	var (
		out     outputError
		refused *Error
	)
	return errors.As(err, &out) || errors.As(err, &refused) || errors.Is(err, errFrameTooLong)
}

func (f *Follower) settled() bool {
	return Terminal(f.task.Status.State) || f.task.Status.State == InputRequired || f.task.Status.State == AuthRequired
}

// drain reads a stream to its end. The end itself is no error.
func (f *Follower) drain(s *Stream) error {
	for {
		e, err := s.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.take(e); err != nil {
			return err
		}
	}
}

func (f *Follower) take(e Event) error {
	f.alive = time.Now()
	f.last = cmp.Or(e.ID, f.last)
	if e.Task == nil {
		f.wait = f.Wait // a stream that brings something is worth opening again at once
	}
	switch {
	case e.Task != nil:
		return f.snapshot(*e.Task)
	case e.Message != nil:
		f.message = e.Message
	case e.Artifact != nil:
		return f.chunk(e.Artifact)
	case e.StatusUpdate != nil:
		f.task.Status = e.StatusUpdate.Status
		f.final = f.settled()
		if f.task.Metadata == nil {
			f.task.Metadata = map[string]json.RawMessage{}
		}
		maps.Copy(f.task.Metadata, e.StatusUpdate.Metadata)
	}
	return nil
}

// snapshot takes a whole task and gives out what is new in its artifacts.
func (f *Follower) snapshot(t Task) error {
	if f.task.ID != "" && t.ID != f.task.ID {
		return outputError{fmt.Errorf("server showed task %q instead of %q", t.ID, f.task.ID)}
	}
	begun := f.task.Status.State != ""
	f.task = t
	if !begun && f.Began != nil {
		f.Began(t.ID)
	}
	for _, a := range t.Artifacts {
		if err := f.catchUp(a); err != nil {
			return err
		}
	}
	f.task.Artifacts = nil // given out; the rest of the task is kept
	return nil
}

// artifact returns what is known of an artifact.
func (f *Follower) artifact(a Artifact) (*given, error) {
	g := f.out[a.ArtifactID]
	if g == nil {
		if len(f.out) >= maxArtifacts {
			return nil, outputError{errTooManyArtifacts}
		}
		g = &given{name: cmp.Or(a.Name, a.ArtifactID), hash: sha256.New()}
		f.out[a.ArtifactID] = g
	}
	return g, nil
}

// catchUp gives out what an artifact has beyond the bytes already out.
func (f *Follower) catchUp(a Artifact) error {
	g, err := f.artifact(a)
	if err != nil {
		return err
	}
	return f.from(g, 0, a)
}

// chunk gives out the next bytes of an artifact. Its offset, if it has one,
// tells what of it is out already and whether something is missing.
func (f *Follower) chunk(c *Chunk) error {
	g, err := f.artifact(c.Artifact)
	if err != nil {
		return err
	}
	offset := g.bytes
	switch {
	case c.Metadata.Offset != nil:
		offset = *c.Metadata.Offset
	case !c.Append:
		offset = 0 // a new version of it; what is longer in it can be shown
	}
	if offset > g.bytes {
		return outputError{fmt.Errorf("output %q lacks bytes %d to %d", g.name, g.bytes, offset)}
	}
	if err := f.from(g, offset, c.Artifact); err != nil {
		return err
	}
	if !c.LastChunk || c.Metadata.SHA256 == "" {
		return nil
	}
	if sum := hex.EncodeToString(g.hash.Sum(nil)); sum != c.Metadata.SHA256 {
		return outputError{fmt.Errorf("output %q was damaged on its way: it has the SHA-256 %s, want %s", g.name, sum, c.Metadata.SHA256)}
	}
	return nil
}

// from gives out the parts of an artifact, the first of which stands at
// offset, without the bytes already out.
func (f *Follower) from(g *given, offset int64, a Artifact) error {
	skip := g.bytes - offset
	for _, p := range a.Parts {
		data := p.Bytes()
		n := min(skip, int64(len(data)))
		skip -= n
		if data = data[n:]; len(data) == 0 {
			continue
		}
		g.bytes += int64(len(data))
		g.hash.Write(data)
		if f.Output == nil {
			continue
		}
		if err := f.Output(g.name, data); err != nil {
			return outputError{err}
		}
	}
	return nil
}

// reopen subscribes to the task again, for as long as patience lasts. It
// returns no stream when the task has ended meanwhile.
func (f *Follower) reopen(ctx context.Context) (*Stream, error) {
	for {
		s, err := f.Client.Subscribe(ctx, f.task.ID, f.last)
		if err == nil {
			f.wait = min(2*f.wait, lastWait)
			return s, nil
		}
		if clientError(err) {
			// It has ended, or is gone: the task itself tells.
			var t *Task
			if t, _, err = f.Client.Task(ctx, f.task.ID); err == nil {
				if err := f.snapshot(*t); err != nil {
					return nil, err
				}
				f.alive = time.Now()
				if f.settled() {
					return nil, nil // as documented: it has ended
				}
				err = errNotFollowable
			}
			if clientError(err) {
				return nil, err
			}
		}
		if time.Since(f.alive) > f.Patience {
			return nil, fmt.Errorf("cannot find task %q again within %v: %w", f.task.ID, f.Patience, err)
		}
		if err := pause(ctx, f.wait); err != nil {
			return nil, err
		}
		f.wait = min(2*f.wait, lastWait)
	}
}

// clientError reports whether the server answered that the request is wrong,
// which the same request will be again.
func clientError(err error) bool {
	var answer *Error
	return errors.As(err, &answer) && answer.HTTPStatus < http.StatusInternalServerError
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot follow task: %w", ctx.Err())
	}
}
