package main

import (
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/answer"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/metrics"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
)

// a2aSurface names, measures and logs the requests to instances.
func (d *daemon) a2aSurface(next http.Handler) http.Handler {
	p := a2aPaths{domain: d.cfg.Surface.Domain}
	return request.Identify(d.metrics.InFlight(surfaceA2A, d.metrics.Measure(surfaceA2A, p.route, d.access(p, next))))
}

// unknown counts and logs the requests to the management surface that nobody
// known has made: they end before it.
func (d *daemon) unknown(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &answer.Recorder{ResponseWriter: w}
		next.ServeHTTP(rec, r)
		if rec.Status != http.StatusUnauthorized {
			return
		}
		took := time.Since(start)
		d.metrics.Observe(metrics.Request{Surface: surfaceManagement, Method: r.Method, Status: rec.Status, Took: took})
		d.log.InfoContext(r.Context(), "request without a known token",
			"surface", surfaceManagement, "method", r.Method, "remote", r.RemoteAddr, "duration", took)
	})
}

// access writes one line for each request: reads that went well at level
// debug, all others at level info.
func (d *daemon) access(p a2aPaths, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &answer.Recorder{ResponseWriter: w}
		defer func() {
			level := slog.LevelInfo
			if r.Method == http.MethodGet && rec.Status < http.StatusBadRequest {
				level = slog.LevelDebug
			}
			attrs := []slog.Attr{
				slog.String("surface", surfaceA2A), slog.String("method", r.Method), slog.String("route", p.route(r)),
				slog.Int("status", rec.Status), slog.Duration("duration", time.Since(start)),
			}
			id, task := p.names(r)
			if id != "" {
				attrs = append(attrs, slog.String("instance", id))
			}
			if task != "" {
				attrs = append(attrs, slog.String("task", task))
			}
			d.log.LogAttrs(r.Context(), level, "request", attrs...)
		}()
		next.ServeHTTP(rec, r)
	})
}

// a2aPaths reads the paths of the A2A surface, as far as metrics and the log
// need them.
type a2aPaths struct{ domain string }

// taskForm is what may stand in the log of a task's id.
var taskForm = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// below splits a request's path into the instance and the rest.
func (p a2aPaths) below(r *http.Request) (id, rest string) {
	if p.domain != "" {
		if id, ok := a2a.VirtualHost(r.Host, p.domain); ok {
			return string(id), r.URL.Path
		}
	}
	id, rest, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, "/agents/"), "/")
	return id, "/" + rest
}

// names returns the instance and the task that a path names, where they are
// of the right form.
func (p a2aPaths) names(r *http.Request) (id, task string) {
	id, rest := p.below(r)
	if _, err := instance.ParseID(id); err != nil {
		id = ""
	}
	_, rest, ok := strings.Cut(rest, "/tasks/")
	if !ok {
		return id, ""
	}
	task, _, _ = strings.Cut(rest, "/")
	task, _, _ = strings.Cut(task, ":")
	if !taskForm.MatchString(task) {
		task = ""
	}
	return id, task
}

// a2aRoutes are the templates of paths below an instance, the first that
// matches counts. What no template matches is "other".
var a2aRoutes = []struct {
	form     *regexp.Regexp
	template string
}{
	{regexp.MustCompile(`^/?$`), "/"},
	{regexp.MustCompile(`^/\.well-known/[a-z-]+\.json$`), "/.well-known/{card}"},
	{regexp.MustCompile(`^(/v1)?/messages?:send$`), "/message:send"},
	{regexp.MustCompile(`^(/v1)?/messages?:stream$`), "/message:stream"},
	{regexp.MustCompile(`^(/v1)?/tasks$`), "/tasks"},
	{regexp.MustCompile(`^(/v1)?/tasks/[^/:]+$`), "/tasks/{task}"},
	{regexp.MustCompile(`^(/v1)?/tasks/[^/:]+:cancel$`), "/tasks/{task}:cancel"},
	{regexp.MustCompile(`^(/v1)?/tasks/[^/:]+:subscribe$`), "/tasks/{task}:subscribe"},
	{regexp.MustCompile(`^(/v1)?/tasks/[^/]+/artifacts/[^/]+$`), "/tasks/{task}/artifacts/{artifact}"},
	{regexp.MustCompile(`^(/v1)?/tasks/[^/]+/pushNotificationConfigs(/.*)?$`), "/tasks/{task}/pushNotificationConfigs"},
	{regexp.MustCompile(`^(/v1)?/(extendedAgentCard|card)$`), "/extendedAgentCard"},
}

func (p a2aPaths) route(r *http.Request) string {
	_, rest := p.below(r)
	for _, one := range a2aRoutes {
		if one.form.MatchString(rest) {
			return one.template
		}
	}
	return "other"
}
