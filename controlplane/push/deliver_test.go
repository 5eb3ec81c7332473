package push_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

func TestDelivery(t *testing.T) {
	hook := newReceiver(t, nil)
	r := newRig(t, nil)
	r.task("t")
	h, err := r.s.Create(t.Context(), task.System(), "t", push.Registration{
		ID: "mine", Version: "1.0", URL: hook.url, Token: "tok", Scheme: "Bearer", Credentials: "cred",
	}, 0)
	if err != nil || h.ID != "mine" || h.Token != "" || h.Credentials != "" || h.Scheme != "Bearer" {
		t.Fatalf("%+v, %v", h, err)
	}
	r.move("t", task.Working)
	var p task.Progress
	r.must(r.tasks.output(t.Context(), "t", &p, "one"))
	r.must(r.tasks.output(t.Context(), "t", &p, "skip"))
	r.must(r.tasks.output(t.Context(), "t", &p, "two"))
	r.move("t", task.Completed)
	if got := r.done("t"); got.Delivered != 6 || got.Failures != 0 {
		t.Errorf("progress is %+v", got)
	}
	want := []wire{
		{"1.0", "t", 1, task.Submitted, ""}, {"1.0", "t", 2, task.Working, ""}, {"1.0", "t", 3, "", "one"},
		{"1.0", "t", 5, "", "two"}, {"1.0", "t", 6, task.Completed, ""},
	}
	got := hook.all()
	if len(got) != len(want) {
		t.Fatalf("got %d deliveries, not %d: %+v", len(got), len(want), got)
	}
	for i, q := range got {
		if q.wire != want[i] {
			t.Errorf("delivery %d is %+v, not %+v", i, q.wire, want[i])
		}
		for name, value := range map[string]string{
			"Content-Type": "application/a2a+json", "Authorization": "Bearer cred", "A2A-Notification-Token": "tok",
			"X-A2A-Notification-Token": "tok", "Idempotency-Key": fmt.Sprintf(`"t/%d"`, q.Seq),
		} {
			if q.header.Get(name) != value {
				t.Errorf("delivery %d has %s %q", i, name, q.header.Get(name))
			}
		}
	}
}

// TestRetries breaks deliveries in every way: what was taken is in order and
// whole all the same, and no event is tried before the one before it was taken.
func TestRetries(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	hook := newReceiver(t, func(int, wire) int {
		return []int{204, 200, 299, 0, 302, 404, 500, 503}[random.IntN(8)]
	})
	r := newRig(t, nil)
	r.task("t")
	r.hook("t", hook.url)
	r.move("t", task.Working)
	var p task.Progress
	for i := range 40 {
		r.must(r.tasks.output(t.Context(), "t", &p, fmt.Sprint("chunk ", i)))
	}
	r.move("t", task.Failed)
	r.done("t")
	next := uint64(1)
	tries := 0
	for _, q := range hook.all() {
		tries++
		if q.Seq != next {
			t.Fatalf("event %d is tried while %d was not taken", q.Seq, next)
		}
		if q.status/100 == 2 {
			next++
		}
	}
	if next != 44 || tries < 60 {
		t.Errorf("%d events were taken in %d tries", next-1, tries)
	}
}

func TestBackoff(t *testing.T) {
	hook := newReceiver(t, func(n int, _ wire) int {
		if n <= 12 {
			return 500
		}
		return 200
	})
	r := newRig(t, func(c *push.Config) { c.Jitter = func() float64 { return 1 } })
	r.task("t")
	r.hook("t", hook.url)
	r.move("t", task.Completed)
	r.done("t")
	want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300}
	r.clock.mu.Lock()
	defer r.clock.mu.Unlock()
	if len(r.clock.pauses) != len(want) {
		t.Fatalf("pauses are %v", r.clock.pauses)
	}
	for i, d := range r.clock.pauses {
		if d != want[i]*time.Second {
			t.Errorf("pause %d is %v, not %v s", i, d, int(want[i]))
		}
	}
}

func TestRetryAfter(t *testing.T) {
	var n atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) {
		case 1:
			w.Header().Set("Retry-After", "42")
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2:
			w.Header().Set("Retry-After", "65000") // beyond what we wait
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(srv.Close)
	r := newRig(t, nil)
	r.task("t")
	r.hook("t", srv.URL)
	r.move("t", task.Completed)
	r.done("t")
	r.clock.mu.Lock()
	defer r.clock.mu.Unlock()
	if p := r.clock.pauses; len(p) != 2 || p[0] != 42*time.Second || p[1] != 5*time.Minute {
		t.Errorf("pauses are %v", p)
	}
}

func TestGiveUp(t *testing.T) {
	for name, c := range map[string]struct {
		limits   push.Limits
		status   int
		failures int
	}{
		"tries": {push.Limits{MaxTries: 7}, 500, 7},
		"age":   {push.Limits{FirstRetry: time.Minute, MaxRetry: time.Minute, MaxAge: 10 * time.Minute, MaxTries: 100}, 500, 0},
		"gone":  {push.Limits{}, http.StatusGone, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var status atomic.Int32
			status.Store(int32(c.status)) //nolint:gosec // a status
			hook := newReceiver(t, func(int, wire) int { return int(status.Load()) })
			r := newRig(t, func(cfg *push.Config) { cfg.Limits = c.limits })
			r.task("t")
			reg := push.Registration{
				ID: "h", Version: "1.0", URL: hook.url, Token: "the-token", Scheme: "Bearer", Credentials: "the-credentials",
			}
			_, err := r.s.Create(t.Context(), task.System(), "t", reg, 0)
			r.must(err)
			p := r.stored("t", func(p push.Progress) bool { return p.State == push.GaveUp })
			if p.Delivered != 0 || p.Cause != fmt.Sprint("status ", c.status) || c.failures > 0 && p.Failures != c.failures || p.Failures < 1 {
				t.Errorf("progress is %+v", p)
			}
			if name == "age" && p.Failures > 21 { // pauses are half a minute at least
				t.Errorf("it was tried %d times in ten minutes", p.Failures)
			}
			if len(hook.all()) != p.Failures {
				t.Error("a try was not counted")
			}
			log := r.log.String()
			if !strings.Contains(log, "webhook given up") || !strings.Contains(log, "task=t") {
				t.Errorf("the log says %q", log)
			}
			for _, secret := range []string{"the-token", "the-credentials", "in-the-query", "/hook"} {
				if strings.Contains(log, secret) {
					t.Errorf("the log has %q", secret)
				}
			}
			// It stays given up, also in the next service, until it is registered anew.
			r.move("t", task.Completed)
			r.close()
			r.open()
			status.Store(200)
			_, err = r.s.Create(t.Context(), task.System(), "t", reg, push.FromNow)
			r.must(err)
			r.done("t")
			if got := hook.all(); len(got) != 2 || got[0].Seq != 1 || got[1].Seq != 2 {
				t.Errorf("after it was registered again it got %+v", got)
			}
		})
	}
}

// TestRestart: what one service did not deliver the next one does.
func TestRestart(t *testing.T) {
	var down atomic.Bool
	hook := newReceiver(t, func(_ int, w wire) int {
		if w.Seq > 3 && down.Load() {
			return 503
		}
		return 200
	})
	down.Store(true)
	held := make(chan time.Time)
	r := newRig(t, func(c *push.Config) {
		c.After = func(time.Duration) <-chan time.Time { return held } // a pause does not end by itself
	})
	r.task("t")
	r.hook("t", hook.url)
	r.move("t", task.Working)
	var p task.Progress
	for i := range 5 {
		r.must(r.tasks.output(t.Context(), "t", &p, strconv.Itoa(i)))
	}
	p1 := r.stored("t", func(p push.Progress) bool { return p.Failures == 1 })
	if p1.Delivered != 3 || p1.NotBefore.Before(r.clock.Now()) || p1.Cause != "status 503" {
		t.Errorf("progress is %+v", p1)
	}
	hook.all()
	r.close()
	down.Store(false)
	pauses := make(chan time.Duration, 10)
	r.cfg.After = func(d time.Duration) <-chan time.Time { pauses <- d; return r.clock.After(d) }
	r.open()
	if d := <-pauses; d != p1.NotBefore.Sub(time.UnixMilli(1_700_000_000_000)) {
		t.Errorf("the next service waits %v before its first try", d)
	}
	r.move("t", task.Completed)
	r.done("t")
	for i, q := range hook.all() {
		if q.Seq != uint64(4+i) {
			t.Errorf("delivery %d after the restart is event %d", i, q.Seq)
		}
	}
	r.close()
	r.open() // nothing is left to do
	if got := hook.all(); len(got) != 0 {
		t.Errorf("delivered again: %+v", got)
	}
}

// TestSlowHook: a webhook that does not answer is in nobody's way: not of the
// log, not of another webhook of the task, not of another principal.
func TestSlowHook(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-release:
		case <-req.Context().Done():
		}
	}))
	t.Cleanup(func() { close(release); srv.Close() })
	fast := newReceiver(t, nil)
	r := newRig(t, func(c *push.Config) { c.Limits = push.Limits{Timeout: time.Hour, PerOwner: 2} })
	r.task("t")
	_, err := r.s.Create(t.Context(), task.System(), "t", push.Registration{ID: "slow", Version: "1.0", URL: srv.URL}, 0)
	r.must(err)
	_, err = r.s.Create(t.Context(), task.System(), "t", push.Registration{ID: "fast", Version: "1.0", URL: fast.url}, 0)
	r.must(err)
	r.move("t", task.Working)
	var p task.Progress
	for i := range 20 {
		r.must(r.tasks.output(t.Context(), "t", &p, strconv.Itoa(i)))
	}
	r.move("t", task.Completed)
	for seq := range uint64(23) {
		if q := fast.next(t); q.Seq != seq+1 {
			t.Fatalf("the fast webhook got event %d instead of %d", q.Seq, seq+1)
		}
	}
	// Now alice's slow webhooks have all her places; bob has his own.
	for i := range 4 {
		r.task(fmt.Sprint("a", i))
		r.hook(fmt.Sprint("a", i), srv.URL)
	}
	r.must(r.tasks.create(t.Context(), "b", "bob"))
	r.hook("b", fast.url)
	if q := fast.next(t); q.Task != "b" {
		t.Errorf("got %+v", q)
	}
}

func TestTimeout(t *testing.T) {
	stop := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stop }))
	t.Cleanup(func() { close(stop); srv.Close() })
	r := newRig(t, func(c *push.Config) { c.Limits = push.Limits{Timeout: 20 * time.Millisecond, MaxTries: 2} })
	r.task("t")
	r.hook("t", srv.URL)
	if p := r.stored("t", func(p push.Progress) bool { return p.State == push.GaveUp }); p.Cause != "timeout" {
		t.Errorf("progress is %+v", p)
	}
}

// TestEndlessAnswer: an answer is not read to its end.
func TestEndlessAnswer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(srv.Close)
	r := newRig(t, nil)
	r.task("t")
	r.hook("t", srv.URL)
	r.move("t", task.Completed)
	r.done("t")
}

func TestReplaceAndDelete(t *testing.T) {
	arrived := make(chan struct{}, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		arrived <- struct{}{}
		buf := make([]byte, 1)
		for { // the server notices that the client has gone once the body is read
			if _, err := req.Body.Read(buf); err != nil {
				break
			}
		}
		<-req.Context().Done()
	}))
	t.Cleanup(srv.Close)
	hook := newReceiver(t, nil)
	r := newRig(t, nil)
	r.task("t")
	old, err := r.s.Create(t.Context(), task.System(), "t", push.Registration{ID: "h", Version: "0.3", URL: srv.URL}, 0)
	r.must(err)
	<-arrived // a delivery is under way; the replacement ends it
	h, err := r.s.Create(t.Context(), task.System(), "t", push.Registration{ID: "h", Version: "1.0", URL: hook.url}, push.FromNow)
	r.must(err)
	if h.Serial == old.Serial {
		t.Error("a replacement is the same registration")
	}
	if q := hook.next(t); q.Seq != 1 || q.Version != "1.0" {
		t.Errorf("the replacement got %+v", q)
	}
	list, err := r.s.List(t.Context(), task.System(), "t")
	if err != nil || len(list) != 1 || list[0].URL != hook.url {
		t.Errorf("list is %+v, %v", list, err)
	}
	_, err = r.s.Create(t.Context(), task.System(), "t", push.Registration{ID: "h", Version: "1.0", URL: srv.URL}, push.FromNow)
	r.must(err)
	r.move("t", task.Working)
	<-arrived
	r.must(r.s.Delete(t.Context(), task.System(), "t", "h"))
	r.must(r.s.Delete(t.Context(), task.System(), "t", "h"))
	r.move("t", task.Completed)
	if list, err := r.s.List(t.Context(), task.System(), "t"); err != nil || len(list) != 0 {
		t.Errorf("list is %+v, %v", list, err)
	}
	if len(arrived) > 0 || len(hook.all()) > 0 {
		t.Error("something was delivered after the deletion")
	}
}

// TestFromNow: a webhook made later begins with what comes next, and with the
// end of a task that has ended.
func TestFromNow(t *testing.T) {
	hook := newReceiver(t, nil)
	r := newRig(t, nil)
	reg := push.Registration{Version: "1.0", URL: hook.url}
	r.task("t")
	r.move("t", task.Working)
	_, err := r.s.Create(t.Context(), task.System(), "t", reg, push.FromNow)
	r.must(err)
	r.move("t", task.Completed)
	r.done("t")
	if got := hook.all(); len(got) != 1 || got[0].State != task.Completed {
		t.Errorf("got %+v", got)
	}
	r.must(r.tasks.create(t.Context(), "ended", "alice"))
	r.move("ended", task.Failed)
	_, err = r.s.Create(t.Context(), task.System(), "ended", reg, push.FromNow)
	r.must(err)
	r.done("ended")
	if got := hook.all(); len(got) != 1 || got[0].State != task.Failed {
		t.Errorf("got %+v", got)
	}
}

func TestBounds(t *testing.T) {
	hook := newReceiver(t, nil)
	r := newRig(t, func(c *push.Config) { c.Limits.PerTask = 2 })
	r.task("t")
	r.hook("t", hook.url)
	h := r.hook("t", hook.url)
	reg := push.Registration{Version: "1.0", URL: hook.url}
	for id, room := range map[string]bool{"": false, "another": false, h.ID: true} {
		if err := r.s.Room(t.Context(), task.System(), "t", id); errors.Is(err, push.ErrTooMany) == room || err != nil && room {
			t.Errorf("room for %q: %v", id, err)
		}
	}
	if _, err := r.s.Create(t.Context(), task.System(), "t", reg, push.FromNow); !errors.Is(err, push.ErrTooMany) {
		t.Errorf("a third: %v", err)
	}
	reg.ID = h.ID
	if _, err := r.s.Create(t.Context(), task.System(), "t", reg, push.FromNow); err != nil {
		t.Errorf("a replacement: %v", err)
	}
	if _, err := r.s.Create(t.Context(), task.System(), "none", reg, push.FromNow); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("for no task: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, nil)
	r.task("t")
	const url = "http://127.0.0.1:1/"
	for field, regs := range map[string][]push.Registration{
		"url": {{}, {URL: "x"}, {URL: "https://10.0.0.1"}},
		"id":  {{URL: url, ID: "a/b"}, {URL: url, ID: ".."}, {URL: url, ID: "a\n"}, {URL: url, ID: strings.Repeat("x", 257)}, {URL: url, ID: "é"}},
		"token": {
			{URL: url, Token: "a\r\nX-Evil: 1"}, {URL: url, Token: "a\nb"}, {URL: url, Token: "a\x00"}, {URL: url, Token: " a"},
			{URL: url, Token: push.Secret(strings.Repeat("x", 8193))},
		},
		"authentication.scheme": {
			{URL: url, Credentials: "x"}, {URL: url, Scheme: "Bearer\r\nX"}, {URL: url, Scheme: "a b"}, {URL: url, Scheme: strings.Repeat("x", 65)},
		},
		"authentication.credentials": {
			{URL: url, Scheme: "Bearer", Credentials: "x\r\nHost: evil"}, {URL: url, Scheme: "Bearer", Credentials: "x\ry"},
			{URL: url, Scheme: "Bearer", Credentials: "x\u2028y"},
		},
	} {
		for _, reg := range regs {
			var refusal *push.Refusal
			if _, err := r.s.Create(t.Context(), task.System(), "t", reg, 0); !errors.As(err, &refusal) || refusal.Field != field {
				t.Errorf("%+v: %v, want a refusal of %s", reg, err, field)
			}
		}
	}
	if list, err := r.s.List(t.Context(), task.System(), "t"); err != nil || len(list) != 0 {
		t.Errorf("stored %+v, %v", list, err)
	}
}

// TestStoredHeaders: what got into the database by another way still ends no
// header line.
func TestStoredHeaders(t *testing.T) {
	hook := newReceiver(t, nil)
	r := newRig(t, nil)
	r.task("t")
	_, err := r.db.Webhooks().Put(t.Context(), task.System(), push.Hook{
		TaskID: "t", ID: "h", Version: "1.0", URL: hook.url, Token: "a\r\nX-Evil: 1", CreatedAt: time.Now(),
	}, 0, 16)
	r.must(err)
	r.must(r.s.Start(t.Context()))
	if p := r.stored("t", func(p push.Progress) bool { return p.State == push.GaveUp }); p.Cause != "credentials refused" {
		t.Errorf("progress is %+v", p)
	}
	if got := hook.all(); len(got) != 0 {
		t.Errorf("delivered %+v", got)
	}
}

func TestSecretsDoNotShow(t *testing.T) {
	h := push.Hook{Token: "hidden-1", Credentials: "hidden-2"}
	for _, f := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if s := fmt.Sprintf(f, h); strings.Contains(s, "hidden") || strings.Contains(s, "68696464656e") {
			t.Errorf("%s shows %s", f, s)
		}
	}
}

// faulty is a store that fails now and then.
type faulty struct {
	push.Store
	n atomic.Int32
}

func (f *faulty) Save(ctx context.Context, serial int64, p push.Progress) error {
	if f.n.Add(1)%2 == 1 {
		return errors.New("the disk is full")
	}
	return f.Store.Save(ctx, serial, p)
}

// TestStoreTrouble: a store that fails makes deliveries repeat, not stop.
func TestStoreTrouble(t *testing.T) {
	hook := newReceiver(t, nil)
	r := newRig(t, nil)
	r.s.Close()
	cfg := r.cfg
	cfg.Store = &faulty{Store: r.db.Webhooks()}
	r.s = push.New(context.WithoutCancel(t.Context()), cfg)
	r.task("t")
	r.hook("t", hook.url)
	r.move("t", task.Working)
	r.move("t", task.Completed)
	r.done("t")
	seen := map[uint64]bool{}
	for _, q := range hook.all() {
		seen[q.Seq] = true
	}
	if len(seen) != 3 {
		t.Errorf("delivered %v", seen)
	}
}
