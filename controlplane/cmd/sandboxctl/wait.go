package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// stateDeleted is that of a machine that is no longer there.
const stateDeleted = "deleted"

func (a *app) waitCommand() *cobra.Command {
	var (
		state   string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use: "wait NAME...", GroupID: groupMachines,
		Short: "Wait until machines are in a state",
		Long: "Wait until machines are in a state, by default running. The states are\n" +
			"provisioning, starting, running, paused, stopping, stopped, failed and, for one\n" +
			"that is no longer there, deleted. A machine that fails ends the wait for another\n" +
			"state. Exit status 9: the time has run out.",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completing(many(instanceNames)),
		RunE: func(cmd *cobra.Command, args []string) error {
			states := append(instanceStates(), stateDeleted)
			if !slices.Contains(states, state) {
				return usagef("choose one of "+strings.Join(states, ", "), "cannot wait for %q: it is no state", state)
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			for _, ref := range args {
				if err := c.wait(ctx, ref, state); err != nil {
					return err
				}
			}
			return a.print(result{value: map[string]any{"names": args, "state": state}, names: args})
		},
	}
	cmd.Flags().StringVar(&state, "for", string(managementv1.InstanceRunning), "the `state` to wait for")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait")
	a.completeFlag(cmd, "for", fixed(append(instanceStates(), stateDeleted)...))
	return cmd
}

var errThere = errors.New("the state is reached")

// wait looks at a machine, and again whenever something happens to it, until
// it is in the state.
func (c *connection) wait(ctx context.Context, ref, want string) error {
	w := waiting{want: want, ref: ref, last: "unknown"}
	i, err := c.instance(ctx, ref)
	if unreachable(err) {
		return err // it cannot be told whether there is anything to wait for
	}
	if err = w.look(i, err); err == nil {
		ref = first(w.id, ref) // a name may be given to another one later
		look := func() error { return w.look(c.instance(ctx, ref)) }
		err = c.followEvents(ctx, eventQuery{
			instance: ref, opened: look, anew: true,
			broke: func(error) error { return look() }, // a server without a stream is looked at again and again
		}, func(e managementv1.Event) error {
			if e.Type == "instance.deleted" {
				return w.gone(nil)
			}
			return look()
		})
	}
	switch {
	case errors.Is(err, errThere):
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &exitError{exitTimeout, fmt.Errorf("%s is %s, not %s", w.ref, w.last, want)}
	}
	return err
}

type waiting struct {
	want, ref, last, id string
}

// look judges what was seen: errThere when it is what is waited for, another
// error when it never will be.
func (w *waiting) look(i managementv1.Instance, err error) error {
	var problem *problemError
	switch {
	case errors.As(err, &problem) && problem.Code == codeNoInstance:
		return w.gone(err)
	case errors.As(err, &problem) && problem.Status >= 500, unreachable(err):
		return nil // the stream will break as well, and be opened again
	case err != nil:
		return err
	}
	w.id, w.last = i.Id, string(i.State)
	switch {
	case w.last == w.want:
		return errThere
	case i.State == managementv1.InstanceFailed:
		return withRemedy(fmt.Errorf("%s failed: %s", i.Name, i.Fault.Cause),
			first(i.Fault.Remediation, "see: sandboxctl logs "+i.Name))
	}
	return nil
}

func (w *waiting) gone(err error) error {
	switch {
	case w.want == stateDeleted:
		return errThere
	case err != nil:
		return err
	}
	return &exitError{exitNotFound, fmt.Errorf("%s has been removed", w.ref)}
}
