package fleet

import (
	"context"
	"errors"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

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
	if err := f.cfg.Keeper.Check(ctx); err != nil {
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
