package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// How many watch, and how many events one sample has.
const (
	watcherCount = 200
	watchEvents  = 100
)

// arrival is one event at one watcher.
type arrival struct {
	at    time.Time
	event []byte // empty for a position without an event
}

// watchers are readers that tell of everything they read.
type watchers struct {
	seen   chan arrival
	ctx    context.Context //nolint:containedctx // ends with the first reader that fails
	cancel context.CancelCauseFunc
	all    sync.WaitGroup
}

func newWatchers(ctx context.Context) *watchers {
	w := &watchers{seen: make(chan arrival, 2*watcherCount)}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	return w
}

// start runs one reader until close.
func (w *watchers) start(read func(context.Context, func([]byte)) error) {
	w.all.Go(func() {
		err := read(w.ctx, func(event []byte) {
			select {
			case w.seen <- arrival{time.Now(), event}:
			case <-w.ctx.Done():
			}
		})
		w.cancel(fmt.Errorf("a watcher ends: %w", err))
	})
}

func (w *watchers) close() {
	w.cancel(nil)
	w.all.Wait()
}

// await waits until each watcher has told of something, the same for all, and
// returns it with the time of the last.
func (w *watchers) await(ctx context.Context) (last arrival, err error) {
	for i := range watcherCount {
		var a arrival
		select {
		case a = <-w.seen:
		case <-w.ctx.Done():
			return last, context.Cause(w.ctx)
		case <-ctx.Done():
			return last, ctx.Err()
		}
		if i > 0 && !bytes.Equal(a.event, last.event) {
			return last, fmt.Errorf("watchers got %.200q and %.200q", last.event, a.event)
		}
		if a.at.After(last.at) {
			last.at = a.at
		}
		last.event = a.event
	}
	return last, nil
}

// fanout measures how long an event takes to the last of many watchers.
func (b *bench) fanout(ctx context.Context) (s Section, err error) {
	s = Section{Name: sectionWatch, Title: fmt.Sprintf("an event to %d watchers of /api/v1/events/stream", watcherCount)}
	r, err := b.startRecords(ctx, 1)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	streams := newWatchers(ctx)
	defer streams.close()
	for range watcherCount {
		streams.start(r.follow)
	}
	began, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if first, err := streams.await(began); err != nil || len(first.event) > 0 {
		return s, errors.Join(err, errors.New("the streams do not begin with a position alone"))
	}
	var event []byte
	renew := func(ctx context.Context) (time.Time, error) {
		_, _, err := request(ctx, r.client, http.MethodPost, r.daemon.URL+"/api/v1/instances/"+template+":renew", r.header, `{"ttl":"4h"}`)
		if err != nil {
			return time.Time{}, err
		}
		last, err := streams.await(ctx)
		event = last.event
		return last.at, err
	}
	if _, err := renew(ctx); err != nil {
		return s, err
	}
	bare, err := openFanout(ctx, event)
	if err != nil {
		return s, err
	}
	defer bare.close()
	ours := quantileArm("sandboxd, from the request to the last watcher", watchEvents, repeated(renew))
	plain := quantileArm("bare TCP, from one byte to the last socket", watchEvents, repeated(bare.once))
	arms := []*arm{ours, plain}
	if err := b.rounds(ctx, s.Name, b.n, arms); err != nil {
		return s, err
	}
	s.Notes = []string{
		fmt.Sprintf("Each sample is a quantile of %d events of %d bytes, one after the other. All watchers are in this process.",
			watchEvents, len(event)),
		"sandboxd's request renews an instance, and has the event on disk before it tells it.",
	}
	return s, s.add(withTwins(arms), pair{"events / bare TCP: p50", ours, plain}, pair{"events / bare TCP: p99", ours.twin, plain.twin})
}

// repeated measures one event after the other, in seconds.
func repeated(once func(context.Context) (time.Time, error)) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) (took []float64, err error) {
		for range watchEvents {
			begin := time.Now()
			end, err := once(ctx)
			if err != nil {
				return nil, err
			}
			took = append(took, end.Sub(begin).Seconds())
		}
		return took, nil
	}
}

// follow reads the stream of events.
func (r *records) follow(ctx context.Context, tell func([]byte)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.daemon.URL+"/api/v1/events/stream?type=instance.renewed", http.NoBody)
	if err != nil {
		return err
	}
	req.Header = r.header
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the stream is answered %s", resp.Status)
	} else {
		err = splitEvents(resp.Body, tell)
	}
	return errors.Join(err, resp.Body.Close())
}

// splitEvents tells of every event of a stream, as it is written there; of a
// position or a comment that carries no data, it tells nothing but that it came.
func splitEvents(stream io.Reader, tell func([]byte)) error {
	var event []byte
	data := false
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		if len(line) > 1 {
			event = append(event, line...)
			data = data || bytes.HasPrefix(line, []byte("data:"))
			continue
		}
		if data {
			tell(append(event, line...))
		} else if bytes.HasPrefix(event, []byte("id:")) {
			tell(nil)
		}
		event, data = nil, false
	}
}

// tcpFanout writes the same bytes to many sockets for each byte it is sent.
type tcpFanout struct {
	*watchers
	trigger net.Conn
	ends    []net.Conn
}

// openFanout connects the sockets, both ends in this process. Close it.
func openFanout(ctx context.Context, event []byte) (f *tcpFanout, err error) {
	f = &tcpFanout{watchers: newWatchers(ctx)}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	var served []net.Conn
	for range watcherCount + 1 {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
		if err != nil {
			return f, err
		}
		f.ends = append(f.ends, c)
		s, err := listener.Accept()
		if err != nil {
			return f, err
		}
		f.ends, served = append(f.ends, s), append(served, s)
		if f.trigger == nil {
			f.trigger = c
			continue
		}
		f.start(func(_ context.Context, tell func([]byte)) error {
			for {
				got := make([]byte, len(event))
				if _, err := io.ReadFull(c, got); err != nil {
					return err
				}
				tell(got)
			}
		})
	}
	f.start(func(context.Context, func([]byte)) error { return serveFanout(served[0], served[1:], event) })
	return f, nil
}

func serveFanout(trigger io.Reader, to []net.Conn, event []byte) error {
	for {
		if _, err := io.ReadFull(trigger, make([]byte, 1)); err != nil {
			return err
		}
		for _, c := range to {
			if _, err := c.Write(event); err != nil {
				return err
			}
		}
	}
}

// once has the event written and returns when the last socket had it.
func (f *tcpFanout) once(ctx context.Context) (time.Time, error) {
	if _, err := f.trigger.Write([]byte{1}); err != nil {
		return time.Time{}, err
	}
	last, err := f.await(ctx)
	return last.at, err
}

func (f *tcpFanout) close() {
	f.cancel(nil)
	for _, c := range f.ends {
		_ = c.Close() // both ends are ours
	}
	f.watchers.close()
}
