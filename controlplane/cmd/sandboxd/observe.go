package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/metrics"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
)

// The surfaces as metrics and the log name them.
const (
	surfaceManagement = "management"
	surfaceA2A        = "a2a"
)

// metricsConfig says who may read the metrics without a token.
type metricsConfig struct {
	Listen string // empty: nobody
}

func (c *metricsConfig) flags(f *pflag.FlagSet) {
	f.StringVar(&c.Listen, "metrics-listen", "", "serve /metrics without a token at this `address` of loopback, such as 127.0.0.1:9420 "+
		"(with a token it is always served)")
}

func (c *metricsConfig) complete() error {
	if c.Listen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	addr, aerr := netip.ParseAddr(host)
	if err != nil || aerr != nil || !addr.IsLoopback() {
		return fmt.Errorf("--metrics-listen %q: want an address of loopback with a port, such as 127.0.0.1:9420", c.Listen)
	}
	return nil
}

// newMetrics makes the metrics of the daemon's parts. They are told also while
// it ends.
func newMetrics(ctx context.Context, d *daemon) *metrics.Metrics {
	return metrics.New(context.WithoutCancel(ctx), version, d.log, storeSource(d.db), linkSource(d.fleet))
}

func storeSource(db *sqlite.DB) metrics.Source {
	return metrics.Source{
		Name: "store",
		Families: []metrics.Family{
			{Name: "instances", Help: "Instances by provider and phase.", Labels: []string{"provider", "phase"}},
			{Name: "operations", Help: "Operations that are kept, by kind and state.", Labels: []string{"kind", "state"}},
			{Name: "tasks", Help: "Tasks that are kept, by state.", Labels: []string{"state"}},
			{Name: "push_webhooks", Help: "Webhooks by state.", Labels: []string{"state"}},
			{Name: "push_outbox_events", Help: "Events that active webhooks have still to be told."},
		},
		Read: func(ctx context.Context) ([]metrics.Sample, error) {
			c, err := db.Counts(ctx)
			if err != nil {
				return nil, err
			}
			samples := []metrics.Sample{{Family: "push_outbox_events", Value: float64(c.Undelivered)}}
			for family, counts := range map[string][]sqlite.Count{"instances": c.Instances, "operations": c.Operations} {
				for _, n := range counts {
					samples = append(samples, metrics.Sample{Family: family, Labels: []string{n.Kind, n.State}, Value: float64(n.N)})
				}
			}
			for family, counts := range map[string][]sqlite.Count{"tasks": c.Tasks, "push_webhooks": c.Webhooks} {
				for _, n := range counts {
					samples = append(samples, metrics.Sample{Family: family, Labels: []string{n.State}, Value: float64(n.N)})
				}
			}
			return samples, nil
		},
	}
}

func linkSource(f *fleet.Fleet) metrics.Source {
	return metrics.Source{
		Name: "links",
		Families: []metrics.Family{
			{Name: "agent_links", Help: "Running machines by whether their agent answers.", Labels: []string{"state"}},
		},
		Read: func(context.Context) ([]metrics.Sample, error) {
			up, silent := f.Links()
			return []metrics.Sample{
				{Family: "agent_links", Labels: []string{"up"}, Value: float64(up)},
				{Family: "agent_links", Labels: []string{"silent"}, Value: float64(silent)},
			}, nil
		},
	}
}

// seen hands on what the management surface has answered.
func seen(m *metrics.Metrics) func(management.Seen) {
	return func(s management.Seen) {
		m.Observe(metrics.Request{
			Surface: surfaceManagement, Route: s.Route, Method: s.Method, Status: s.Status, Took: s.Took, Stream: s.Stream,
		})
	}
}

// needs lets only principals with a scope pass.
func needs(scope auth.Scope, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, _ := auth.FromContext(r.Context()); !p.Has(scope) {
			refuse(w, http.StatusForbidden, "auth.scope", "The token does not allow this",
				fmt.Sprintf("the token of %q lacks the scope %q", p.Name, scope), "use a token that has it")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// serveMetrics serves the metrics to this host without a token, if that was
// asked for, until stop.
func (d *daemon) serveMetrics(ctx context.Context) (stop func() error, err error) {
	if d.cfg.Metrics.Listen == "" {
		return func() error { return nil }, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", d.cfg.Metrics.Listen)
	if err != nil {
		return nil, listenFault(d.cfg.Metrics.Listen, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", d.metrics.Handler())
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	d.log.InfoContext(ctx, "serving metrics without a token", "address", l.Addr().String())
	return func() error {
		err := server.Close()
		if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
		return err
	}, nil
}
