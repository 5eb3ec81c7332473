package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// tries bounds the search for one point.
const tries = 40

// TestKillAtEveryPoint kills the daemon at every point that the journal of a
// create, a stop and a delete has. Afterwards the request has been carried out
// once, also for a client that asks again because it got no answer.
func TestKillAtEveryPoint(t *testing.T) {
	for _, kind := range []string{"create", "stop", "delete"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := &hunt{world: newWorld(t, rig.Options{}), kind: kind, hits: map[string]int{}}
			r.shoot()
		})
	}
}

// hunt kills daemons until each point was one's last.
type hunt struct {
	*world
	kind   string
	points []string
	hits   map[string]int
	shots  int
}

// point names what an event records.
func point(e event) string {
	return strings.Join(strings.Fields(strings.Join([]string{e.Type, e.Message, e.Reason, e.State}, " ")), " ")
}

// shoot learns the points from one request that nothing disturbs, and goes on
// until each of them was the last thing that a killed daemon had stored.
//
// To stop at a point, the daemon is killed when the point is told. Where it is
// too fast for that, it is killed a few writes to its log after an earlier
// one was told.
func (r *hunt) shoot() {
	r.learn()
	for at, p := range r.points {
		for n := 0; r.hits[p] == 0 && n < tries; n++ {
			back := (n + 1) / 2 % 3
			r.shot(at-back, n/6*back+back*(1+n%4))
		}
		r.want(r.hits[p] > 0, "no daemon died at %q in %d shots: %v", p, r.shots, r.hits)
	}
	r.Logf("%d shots: %v", r.shots, r.hits)
}

func (r *hunt) name() string {
	if r.kind == "stop" {
		return "victim"
	}
	return fmt.Sprintf("victim-%d", r.shots)
}

// demand makes the request.
func (r *hunt) demand(key string) answer {
	switch r.kind {
	case "create":
		return r.ask(http.MethodPost, "/instances", r.order(r.name()), key)
	case "delete":
		return r.ask(http.MethodDelete, "/instances/"+r.name(), nil, key)
	}
	return r.ask(http.MethodPost, "/instances/"+r.name()+":"+r.kind, nil, key)
}

func (r *hunt) learn() {
	if r.kind != "create" {
		r.works(r.name())
	}
	op := r.succeed(r.demand(unique()))
	for _, e := range r.events() {
		if e.Operation == op.ID && e.Type != "instance.created" { // stored in one step with its operation
			r.points = append(r.points, point(e))
		}
	}
	r.want(len(r.points) > 5, "the journal has the points %q only", r.points)
	r.clear()
}

// clear makes room for the next shot.
func (r *hunt) clear() {
	if r.kind == "create" {
		r.remove(r.name())
	}
	r.shots++
}

// shot kills the daemon some writes after it told a point, -1 being that the
// request was sent, and looks what has become of the request.
func (r *hunt) shot(at, writes int) {
	if r.kind != "create" {
		r.works(r.name())
	}
	before := r.events()
	log := r.watchLog()
	stream := r.follow(before[len(before)-1].Seq)
	key := unique()
	asked := make(chan answer, 1)
	go func() { asked <- r.demand(key) }()
	if at >= 0 {
		stream.await(r.points[at])
	}
	for range writes {
		log.next(3 * time.Millisecond)
	}
	r.check(r.d.Kill())
	died := time.Now()
	stream.close()
	log.close()
	first := <-asked
	r.launch()

	hit, id := "", ""
	for _, e := range r.events()[len(before):] {
		if e.Operation != "" && !e.At.After(died) {
			hit, id = point(e), e.Operation
		}
	}
	when := fmt.Sprintf("shot %d at %q", r.shots, hit)
	r.hits[hit]++
	again := r.succeed(r.demand(key))
	r.want(id == "" || again.ID == id, "%s: asked again, it began %s beside %s", when, again.ID, id)
	if first.err == nil {
		var op operation
		r.want(json.Unmarshal(first.body, &op) == nil && op.ID == again.ID, "%s: the answer was %s, and %s when asked again", when, first, again.ID)
	}
	n := 0
	for _, e := range r.events()[len(before):] {
		if e.Type == "operation.created" && e.Message == "instance."+r.kind {
			n++
		}
	}
	r.want(n == 1, "%s: it was begun %d times", when, n)
	i, _ := r.find(r.name())
	r.want(i.State == map[string]string{"create": "running", "stop": "stopped", "delete": ""}[r.kind], "%s: afterwards it is %q", when, i.State)
	r.want(i.Restarts == 0 || r.kind == "stop", "%s: it was started %d times", when, i.Restarts+1)
	r.consistent(when)
	if r.kind == "create" {
		r.works(r.name())
	}
	r.clear()
}

// stream is what a client hears who follows the events.
type stream struct {
	w     *world
	heard chan string
	stop  context.CancelFunc
}

// follow follows the events behind one.
func (w *world) follow(after uint64) *stream {
	w.Helper()
	ctx, cancel := context.WithCancel(w.wake())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/api/v1/events/stream?after=%d", w.d.URL, after), http.NoBody)
	w.check(err)
	req.Header.Set("Authorization", "Bearer "+w.token)
	resp, err := client().Do(req)
	w.check(err)
	s := &stream{w: w, heard: make(chan string, 1024), stop: cancel}
	go func() {
		defer close(s.heard)
		defer resp.Body.Close()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			data, ok := strings.CutPrefix(lines.Text(), "data:")
			var e event
			if ok && json.Unmarshal([]byte(data), &e) == nil {
				s.heard <- point(e)
			}
		}
	}()
	return s
}

// await returns when the point was told, or when it is too late for that.
func (s *stream) await(p string) {
	s.w.Helper()
	for {
		select {
		case heard, ok := <-s.heard:
			if !ok || heard == p || strings.HasPrefix(heard, "operation.ended") {
				return
			}
		case <-s.w.Context().Done():
			return
		}
	}
}

func (s *stream) close() {
	s.stop()
	for range s.heard { // until its goroutine has ended
	}
}

// walWatch sees every write to the database's log.
type walWatch struct {
	w  *world
	fd int
}

func (w *world) watchLog() *walWatch {
	w.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	w.check(err)
	_, err = unix.InotifyAddWatch(fd, filepath.Join(w.d.StateDir, "sandbox.db-wal"), unix.IN_MODIFY)
	w.check(err)
	return &walWatch{w, fd}
}

// next waits for a write, but not for long.
func (l *walWatch) next(most time.Duration) {
	l.w.Helper()
	fds := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor fits
	if n, err := unix.Poll(fds, int(most.Milliseconds())); err != nil || n == 0 {
		return // a signal is as good as a write
	}
	buf := make([]byte, 4096)
	_, _ = unix.Read(l.fd, buf) // what matters is that it came
}

func (l *walWatch) close() { l.w.check(unix.Close(l.fd)) }
