package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// soundFor is how long a look at the store counts: whoever asks often must not
// keep it busy.
const soundFor = 10 * time.Second

// soundness is what is known of the store.
type soundness struct {
	mu    sync.Mutex
	known bool
	at    time.Time
	err   error
}

func (s *soundness) check(ctx context.Context, k Keeper, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ago := now.Sub(s.at); s.known && ago >= 0 && ago < soundFor {
		return s.err
	}
	s.known, s.at, s.err = true, now, k.Check(context.WithoutCancel(ctx))
	return s.err
}

// Ready reports why no machine can be made or nothing can be stored; nil when
// both can.
func (f *Fleet) Ready(ctx context.Context) error {
	f.mu.Lock()
	begun := f.begun
	f.mu.Unlock()
	if !begun {
		return &instance.Fault{
			Blame: instance.Host, Code: "fleet.starting", Hint: "try again in a moment", Err: errors.New("the fleet has not started"),
		}
	}
	if err := f.sound.check(ctx, f.cfg.Keeper, f.cfg.Now()); err != nil {
		return err
	}
	d, ok := f.cfg.Drivers[f.cfg.Default]
	if !ok {
		return fmt.Errorf("cannot find provider %q", f.cfg.Default)
	}
	caps, err := d.Capabilities(ctx)
	if err != nil {
		return fmt.Errorf("cannot ask provider %q what it can do: %w", f.cfg.Default, err)
	}
	if !caps.Available {
		return &instance.Fault{
			Blame: instance.Host, Code: "provider.unavailable", Hint: caps.Remedy,
			Err: fmt.Errorf("provider %q cannot make machines here: %s", f.cfg.Default, caps.Reason),
		}
	}
	return nil
}
