package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// probeTimeout bounds one look at everything.
	probeTimeout = 5 * time.Second
	// probeAge is how old a look may be that is told again: anybody may ask,
	// and each look writes to the disk.
	probeAge = 2 * time.Second
	// leastSpace is the free space without which nothing can be stored, in bytes.
	leastSpace = 64 << 20
)

// health is what monitoring asks about.
type health struct {
	db interface {
		Probe(ctx context.Context) error
	}
	usable func(ctx context.Context) map[string]error // providers, and why not
	must   string                                     // the provider that machines are made with
	dir    string
	log    *slog.Logger
	ending atomic.Bool

	mu     sync.Mutex // held for one look
	at     time.Time
	last   report
	failed map[string]bool // checks of the last look
}

// report is the answer of readyz.
type report struct {
	Status string  `json:"status"` // ready, unavailable or stopping
	Checks []check `json:"checks"`
}

type check struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, failed, or absent for a provider that is not needed
	Detail string `json:"detail,omitempty"`
}

func newHealth(d *daemon) *health {
	return &health{
		db: d.db, dir: d.cfg.StateDir, must: providerLibvirt, log: d.log, failed: map[string]bool{},
		usable: func(ctx context.Context) map[string]error {
			all := map[string]error{}
			for name, driver := range d.drivers {
				caps, err := driver.Capabilities(ctx)
				if err == nil && !caps.Available {
					err = fmt.Errorf("%s", caps.Reason)
				}
				all[name] = err
			}
			return all
		},
	}
}

// healthz says that the process serves requests.
func (*health) healthz(w http.ResponseWriter, _ *http.Request) {
	writeStatus(w, http.StatusOK, "ok", "")
}

// readyz says whether machines can be made and tasks stored. Why not is told
// in general words: anybody may ask.
func (h *health) readyz(w http.ResponseWriter, r *http.Request) {
	report := h.look(r.Context())
	code := http.StatusOK
	if report.Status != "ready" {
		code = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "5")
	}
	writeJSON(w, code, report)
}

// look finds out how things are, or says how they were a moment ago.
func (h *health) look(ctx context.Context) report {
	if h.ending.Load() {
		return report{Status: "stopping", Checks: []check{{Name: "process", Status: "failed", Detail: "the daemon is shutting down"}}}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) < probeAge {
		return h.last
	}
	// What one client finds out is told to others: its leaving must not count.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	rep := report{Status: "ready", Checks: []check{
		h.verdict(ctx, "database", h.db.Probe(ctx), "it takes no writes; see the daemon's log"),
		h.verdict(ctx, "disk", space(h.dir), fmt.Sprintf("less than %d MiB are free in the state directory", leastSpace>>20)),
	}}
	providers := h.usable(ctx)
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		c := h.verdict(ctx, "provider "+name, providers[name], "it cannot make machines; see sandboxctl doctor")
		if name != h.must && c.Status == "failed" {
			c.Status = "absent"
		}
		rep.Checks = append(rep.Checks, c)
	}
	for _, c := range rep.Checks {
		if c.Status == "failed" {
			rep.Status = "unavailable"
		}
	}
	h.at, h.last = time.Now(), rep
	return rep
}

// verdict says in general words how a look went. The cause is in the log, once.
func (h *health) verdict(ctx context.Context, name string, err error, detail string) check {
	switch failed := h.failed[name]; {
	case err != nil && !failed:
		h.log.WarnContext(ctx, "not ready", "check", name, "error", err)
	case err == nil && failed:
		h.log.InfoContext(ctx, "ready again", "check", name)
	}
	h.failed[name] = err != nil
	if err != nil {
		return check{Name: name, Status: "failed", Detail: detail}
	}
	return check{Name: name, Status: "ok"}
}

// space fails when there is too little of it.
func space(dir string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("cannot measure %q: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < leastSpace { //nolint:gosec // block counts fit
		return fmt.Errorf("%d bytes are free", free)
	}
	return nil
}

func writeStatus(w http.ResponseWriter, code int, status, detail string) {
	body := map[string]string{"status": status}
	if detail != "" {
		body["detail"] = detail
	}
	writeJSON(w, code, body)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client has gone: nobody to tell
}
