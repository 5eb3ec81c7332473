package conformance

import (
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// delivery is one request that a webhook got.
type delivery struct {
	header http.Header
	body   any
	raw    []byte
	taken  bool // answered with 2xx
}

// hook is a webhook on an address that the suite's servers may call.
type hook struct {
	url string

	mu      sync.Mutex
	got     []delivery
	changed chan struct{}
}

// hookAt listens on a host; answer says with which status, from the number of
// earlier deliveries.
func (x *trial) hookAt(host string, answer func(n int) int, header http.Header) *hook {
	x.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(x.Context(), "tcp", host+":0")
	x.check(err)
	h := &hook{url: "http://" + l.Addr().String() + "/hook", changed: make(chan struct{}, 1)}
	srv := &httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			raw, err := io.ReadAll(io.LimitReader(r.Body, maxEvent))
			if err != nil {
				return
			}
			d := delivery{header: r.Header.Clone(), raw: raw}
			_ = json.Unmarshal(raw, &d.body) // a body that is none shows as nil
			h.mu.Lock()
			code := answer(len(h.got))
			d.taken = code/100 == 2
			h.got = append(h.got, d)
			h.mu.Unlock()
			maps.Copy(w.Header(), header)
			w.WriteHeader(code)
			select {
			case h.changed <- struct{}{}:
			default:
			}
		})}}
	srv.Start()
	x.Cleanup(srv.Close)
	return h
}

func (x *trial) hook() *hook {
	x.Helper()
	return x.hookAt(hookHost, func(int) int { return http.StatusOK }, nil)
}

func (h *hook) deliveries() []delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]delivery(nil), h.got...)
}

// wait returns the deliveries once they are enough.
func (x *trial) wait(h *hook, enough func([]delivery) bool) []delivery {
	x.Helper()
	ctx := x.deadline()
	for {
		got := h.deliveries()
		if enough(got) {
			return got
		}
		select {
		case <-h.changed:
		case <-ctx.Done():
			x.Fatalf("the webhook got %d deliveries, the last %.300s", len(got), lastRaw(got))
		}
	}
}

func lastRaw(got []delivery) []byte {
	if len(got) == 0 {
		return nil
	}
	return got[len(got)-1].raw
}

// stateOf is the state that a delivery tells: of a StreamResponse, or of a task.
func (d delivery) state() string {
	if s := text(d.body, "statusUpdate", "status", "state"); s != "" {
		return s
	}
	if s := text(d.body, "task", "status", "state"); s != "" {
		return s
	}
	return text(d.body, "status", "state")
}

// finished reports whether the end of a task was taken.
func finished(got []delivery) bool {
	for _, d := range got {
		if s := d.state(); d.taken && (ended(s) || s == "completed" || s == "canceled" || s == "failed") {
			return true
		}
	}
	return false
}

// told are the deliveries that were taken, repetitions left out.
func told(got []delivery) (all []delivery) {
	seen := map[string]bool{}
	for _, d := range got {
		if key := d.header.Get("Idempotency-Key"); d.taken && !seen[key] {
			seen[key] = true
			all = append(all, d)
		}
	}
	return all
}
