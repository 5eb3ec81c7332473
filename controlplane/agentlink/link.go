// Package agentlink is the host end of the link to the agent inside one
// machine: it dials, makes sure that the right machine answered, starts and
// follows runs across broken connections, moves files, and says whose fault a
// failure is.
//
// It must not know what a run is for, what a task is, or how a driver reaches
// its guest: it gets a Dialer. Nothing that comes from the guest is trusted:
// lengths, counts, order and totals are checked, text is quoted.
//
//	Connect ── session ──(breaks)── dial, Hello ── session ── … ── Close or vm.ErrGone
//
// One session is one connection. gRPC never reconnects by itself here, since
// every connection must begin with Hello: the machine may be another one.
package agentlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// Dialer opens one connection to the agent's port. It fails fast when nobody
// listens there yet and returns vm.ErrGone when nobody ever will again.
type Dialer func(ctx context.Context) (net.Conn, error)

// Options of a link. Zero durations mean the defaults.
type Options struct {
	// InstanceID is the machine that must answer. Required.
	InstanceID instance.ID
	// HostVersion is told to the guest, for its log.
	HostVersion string
	Log         *slog.Logger
	// DialTimeout bounds one attempt to dial. Default 10 s.
	DialTimeout time.Duration
	// HelloTimeout bounds the handshake on one connection. Default 30 s.
	HelloTimeout time.Duration
	// CallTimeout bounds one call, and one step of a transfer, when the
	// guest does not answer. Default 60 s.
	CallTimeout time.Duration
	// Keepalive is how long a silent connection may be dead before it is
	// probed, and again how long the probe waits. Default and minimum 10 s.
	Keepalive time.Duration
	// MaxBackoff bounds the pause between attempts, which starts at 1 ms.
	// Default 250 ms.
	MaxBackoff time.Duration
}

func (o *Options) fill() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.DialTimeout, 10*time.Second)
	def(&o.HelloTimeout, 30*time.Second)
	def(&o.CallTimeout, 60*time.Second)
	def(&o.Keepalive, 10*time.Second)
	def(&o.MaxBackoff, 250*time.Millisecond)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Link is a lasting connection to one agent. Safe for concurrent use.
type Link struct {
	dial Dialer
	opts Options
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	cur     *session      // nil while there is no connection
	changed chan struct{} // closed and replaced whenever cur or err changes
	hello   *agentv1.HelloResponse
	err     error // set once the link has ended
}

// Connect dials until the agent of the right machine has answered. It ends
// early when dial says vm.ErrGone, when another machine answers, or when the
// agent speaks no version of ours; otherwise it retries until ctx ends.
// The link lives on after ctx: Close it.
func Connect(ctx context.Context, dial Dialer, opts Options) (*Link, error) {
	if _, err := instance.ParseID(opts.InstanceID.String()); err != nil {
		return nil, err
	}
	opts.fill()
	l := &Link{dial: dial, opts: opts, done: make(chan struct{}), changed: make(chan struct{})}
	// A machine that boots answers any moment: that is worth more attempts
	// than one that went away.
	s, err := l.establish(ctx, newBackoff(min(opts.MaxBackoff, bootBackoff)))
	if err != nil {
		return nil, err
	}
	lctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.set(s, nil)
	go l.keep(lctx, s)
	return l, nil
}

// Hello is what the agent said of itself on the newest connection. Read only.
// Its texts are printable and bounded.
func (l *Link) Hello() *agentv1.HelloResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hello
}

// Done is closed once the link has ended for good: by Close, because the
// machine is gone, or because another machine answered. Err says which.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err says why the link has ended; nil while it has not.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Connected reports whether there is a connection right now.
func (l *Link) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cur != nil
}

// State reports whether there is a connection right now, and gives a channel
// that is closed with the next change of that.
func (l *Link) State() (connected bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cur != nil, l.changed
}

// Close ends the link and waits until nothing of it is left. Runs go on in
// the guest. Idempotent.
func (l *Link) Close() error {
	l.mu.Lock()
	if l.err == nil {
		l.setLocked(nil, ErrClosed)
	}
	l.mu.Unlock()
	l.stop()
	<-l.done
	return nil
}

// keep is the owner of the connection: it waits for the end of each session
// and brings up the next.
func (l *Link) keep(ctx context.Context, s *session) {
	defer close(l.done)
	b := newBackoff(l.opts.MaxBackoff)
	var said quiet
	for {
		since := time.Now()
		s.await(ctx)
		l.set(nil, nil)
		s.close()
		if ctx.Err() != nil {
			return
		}
		// A guest that greets and hangs up must not make us spin.
		if time.Since(since) > time.Second {
			b.reset()
		} else if b.wait(ctx) != nil {
			return
		}
		if breaks, say := said.again(time.Now()); say {
			l.opts.Log.Info("agent link broke, dialing again", "instance", l.opts.InstanceID.String(), "breaks", breaks)
		}
		next, err := l.establish(ctx, b)
		if err != nil {
			if ctx.Err() == nil {
				l.set(nil, err)
				l.opts.Log.Info("agent link ended", "instance", l.opts.InstanceID.String(), "reason", err.Error())
			}
			return
		}
		if !bytes.Equal(next.hello.GetBootNonce(), s.hello.GetBootNonce()) {
			level := slog.LevelDebug
			if said.lost(time.Now()) {
				level = slog.LevelWarn
			}
			l.opts.Log.Log(ctx, level, "agent started anew, its runs are lost", "instance", l.opts.InstanceID.String())
		}
		s = next
		l.set(s, nil)
	}
}

// quiet keeps a guest that breaks its link over and over from filling the log.
// The zero value has said nothing yet.
type quiet struct {
	breaks     int // since one was last told
	told, anew time.Time
}

// quietFor is how long nothing is said after something was.
const quietFor = time.Minute

// again counts a break of the link, and reports whether it is told of, and of
// how many.
func (q *quiet) again(now time.Time) (breaks int, say bool) {
	q.breaks++
	if !q.told.IsZero() && now.Sub(q.told) < quietFor {
		return q.breaks, false
	}
	breaks, q.breaks, q.told = q.breaks, 0, now
	return breaks, true
}

// lost reports whether another start of the agent is told of.
func (q *quiet) lost(now time.Time) bool {
	if !q.anew.IsZero() && now.Sub(q.anew) < quietFor {
		return false
	}
	q.anew = now
	return true
}

// establish dials and greets until it succeeds, ctx ends, or no further
// attempt can succeed.
func (l *Link) establish(ctx context.Context, b *backoff) (*session, error) {
	for {
		s, err := l.open(ctx)
		if err == nil {
			return s, nil
		}
		var f *instance.Fault
		if errors.Is(err, vm.ErrGone) || errors.As(err, &f) {
			return nil, err
		}
		l.opts.Log.Debug("cannot reach agent yet", "instance", l.opts.InstanceID.String(), "err", err.Error())
		if werr := b.wait(ctx); werr != nil {
			return nil, fault(instance.Host, CodeUnreachable, "see the machine's state and console",
				fmt.Errorf("cannot reach agent of instance %q: %w (last attempt: %s)", l.opts.InstanceID, werr, err.Error()))
		}
	}
}

func (l *Link) set(s *session, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLocked(s, err)
}

func (l *Link) setLocked(s *session, err error) {
	l.cur = s
	if s != nil {
		l.hello = s.hello
	}
	if l.err == nil {
		l.err = err
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// session returns the present connection, waiting for one if need be.
func (l *Link) session(ctx context.Context) (*session, error) {
	for {
		l.mu.Lock()
		s, err, changed := l.cur, l.err, l.changed
		l.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case s != nil && !s.dead():
			return s, nil
		}
		// No connection, or one given up that keep has not put away yet.
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// backoff is a growing pause with jitter. Not safe for concurrent use.
type backoff struct {
	next, limit time.Duration
}

const (
	firstBackoff = time.Millisecond
	bootBackoff  = 40 * time.Millisecond
)

func newBackoff(limit time.Duration) *backoff {
	return &backoff{next: firstBackoff, limit: limit}
}

func (b *backoff) reset() { b.next = firstBackoff }

// wait pauses, or returns the error of ctx if that ends first.
func (b *backoff) wait(ctx context.Context) error {
	d := b.next/2 + rand.N(b.next)
	b.next = min(b.next*2, b.limit)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
