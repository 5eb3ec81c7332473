package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

func (a *app) waitCommand() *cobra.Command {
	var (
		state   string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use: "wait NAME", GroupID: groupMachines,
		Short: "Wait until a machine is in a state",
		Long: "Wait until a machine is in a state, by default running. The states are\n" +
			"provisioning, starting, running, paused, stopping, stopped, failed and, for one\n" +
			"that is no longer there, deleted.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return c.wait(ctx, args[0], state)
		},
	}
	cmd.Flags().StringVar(&state, "for", string(managementv1.InstanceRunning), "the state to wait for")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait")
	return cmd
}

const stateDeleted = "deleted"

// wait looks at an instance until it is in the state: at once, and whenever
// something happens to it. The server may end the stream that says so, or have
// none; then it is looked at anew, with pauses.
func (c *connection) wait(ctx context.Context, ref, want string) error {
	w := &waiter{connection: c, ref: ref, want: want, last: "unknown"}
	for attempt := 0; ; attempt++ {
		done, seen, err := w.follow(ctx)
		if seen {
			attempt = 0
		}
		if !done && err == nil {
			err = nap(ctx, min(firstNap<<min(attempt, 8), lastNap))
		}
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return fmt.Errorf("%s is %s, not %s", ref, w.last, want)
		case ctx.Err() != nil:
			return ctx.Err()
		case done || err != nil:
			return err
		}
	}
}

// waiter is one wait for one state.
type waiter struct {
	*connection
	ref, want string
	last      string // state seen
}

// follow looks at the instance once there is a stream of what happens to it,
// so that nothing happens in between, and again at every event. Seen says that
// there were events.
func (w *waiter) follow(ctx context.Context) (done, seen bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := w.api.WatchEvents(ctx, &managementv1.WatchEventsParams{Instance: &w.ref})
	if err != nil {
		done, err = w.look(ctx) // which says better what is wrong
		return done, false, err
	}
	defer resp.Body.Close()
	if done, err = w.look(ctx); done || err != nil || resp.StatusCode != http.StatusOK {
		return done, false, err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	for lines.Scan() {
		if lines.Text() == "" { // the end of an event, or of a comment
			seen = true
			if done, err = w.look(ctx); done || err != nil {
				return done, seen, err
			}
		}
	}
	return false, seen, nil // it is opened again, whatever ended it
}

// look reports whether the instance is in the state. An error is one that
// waiting does not mend.
func (w *waiter) look(ctx context.Context) (bool, error) {
	i, err := w.instance(ctx, w.ref)
	var problem *problemError
	switch {
	case errors.As(err, &problem) && problem.Code == "instance.not_found" && w.want == stateDeleted:
		return true, nil
	case ctx.Err() != nil, err != nil:
		return false, err
	case string(i.State) == w.want:
		return true, nil
	case i.State == managementv1.InstanceFailed:
		return false, withRemedy(fmt.Errorf("%s failed: %s", i.Name, i.Fault.Cause),
			first(i.Fault.Remediation, "see: sandboxctl logs "+i.Name))
	}
	w.last = string(i.State)
	return false, nil
}
