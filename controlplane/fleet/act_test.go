package fleet

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// TestRequestThatComesTooLateEnds: a request that its supervisor does not take
// any more must not stay open for ever.
func TestRequestThatComesTooLateEnds(t *testing.T) {
	now := time.Now()
	f := keeps(t, &ledger{}, 0, &now, nil)
	f.ops = newOperations(f.events, f.log, f.cfg.Now)
	s := supervise.New(supervise.Config{Log: slog.New(slog.DiscardHandler), Now: time.Now}, supervise.Record{ID: one, Phase: instance.Stopped})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ended)
	refused := 0
	for range 100 {
		if _, err := f.request(t.Context(), s, kindStart, &supervise.Request{Event: instance.StartRequested}); err != nil {
			refused++
		}
	}
	if open := len(f.ops.live); refused == 0 || open != 100-refused {
		t.Errorf("%d of 100 were refused, and %d are open", refused, open)
	}
}
