package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// action is a command that does the same with every machine it is given.
type action struct {
	verb, past, short string
	// already is said of a machine that was so before; empty where that cannot be.
	already string
	ask     func(ctx context.Context, c *connection, ref string) (*http.Response, error)
}

func (a *app) actionCommands() []*cobra.Command {
	var force bool
	var commands []*cobra.Command
	for _, act := range []action{
		{"start", "started", "Boot stopped or failed machines from their disks", "runs already",
			func(ctx context.Context, c *connection, ref string) (*http.Response, error) {
				return c.api.StartInstance(ctx, ref, nil)
			}},
		{"stop", "stopped", "End machines and keep their disks", "has stopped already",
			func(ctx context.Context, c *connection, ref string) (*http.Response, error) {
				return c.api.StopInstance(ctx, ref, &managementv1.StopInstanceParams{Force: given(force)})
			}},
		{"restart", "restarted", "End machines in order and boot them again", "",
			func(ctx context.Context, c *connection, ref string) (*http.Response, error) {
				return c.api.RestartInstance(ctx, ref, nil)
			}},
		{"pause", "paused", "Stop machines' processors and keep their memory", "is paused already",
			func(ctx context.Context, c *connection, ref string) (*http.Response, error) {
				return c.api.PauseInstance(ctx, ref, nil)
			}},
		{"resume", "resumed", "Let paused machines go on", "runs already",
			func(ctx context.Context, c *connection, ref string) (*http.Response, error) {
				return c.api.ResumeInstance(ctx, ref, nil)
			}},
		{"rm", "removed", "Remove machines and everything of them", "",
			func(ctx context.Context, c *connection, ref string) (*http.Response, error) {
				return c.api.DeleteInstance(ctx, ref, nil)
			}},
	} {
		cmd := a.actionCommand(act)
		switch act.verb {
		case "stop":
			cmd.Flags().BoolVar(&force, "force", false, "cut the power at once instead of asking the guest to power off")
		case "rm":
			cmd.Aliases = []string{"delete"}
		}
		commands = append(commands, cmd)
	}
	return commands
}

func (a *app) actionCommand(act action) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use: act.verb + " NAME...", GroupID: groupMachines, Short: act.short,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completing(many(instanceNames)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, act, noWait)
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return as soon as the requests have been recorded")
	return cmd
}

// each asks for the same with every machine and waits for all of it. One
// failure does not keep the others from being tried.
func (a *app) each(ctx context.Context, refs []string, act action, noWait bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	ops := make([]managementv1.Operation, 0, len(refs))
	var failures []error
	for _, ref := range refs {
		op, err := fetch[managementv1.Operation](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return act.ask(ctx, c, ref)
		})
		if err != nil {
			failures = append(failures, unknownInstance(err))
			continue
		}
		ops = append(ops, op)
	}
	f := flow{a: a}
	for _, op := range ops {
		if noWait {
			if err := f.print(op, op.Id, []string{op.Id, op.Kind, op.InstanceName}); err != nil {
				return err
			}
			continue
		}
		end, err := a.see(ctx, c, op)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		// One for each machine: a stream of results, not a list.
		if a.forPeople() {
			fmt.Fprintf(a.stdout, "%s %s\n", terminal.Line(end.InstanceName), act.done(end))
		} else if err := f.print(end, end.InstanceName, nil); err != nil {
			return err
		}
	}
	return joined(failures)
}

// done says what came of it, in a word or two after the machine's name.
func (act action) done(op managementv1.Operation) string {
	idle := len(op.Steps) > 0 && !slices.ContainsFunc(op.Steps, func(s managementv1.OperationStep) bool { return s.Mark != "skipped" })
	if idle && act.already != "" {
		return act.already
	}
	return act.past
}

// see follows an operation to its end and shows on a terminal how far it is.
func (a *app) see(ctx context.Context, c *connection, op managementv1.Operation) (managementv1.Operation, error) {
	p := newProgress(a.stderr)
	p.quiet = !p.bar // lines of short requests tell nothing
	op, err := c.follow(ctx, op, p.show)
	p.end()
	if errors.Is(err, context.Canceled) {
		return op, withRemedy(fmt.Errorf("%s of %s goes on: %w", op.Kind, op.InstanceName, err),
			fmt.Sprintf("watch it:  sandboxctl ops watch %s\ncancel it: sandboxctl ops cancel %s", op.Id, op.Id))
	}
	if err == nil {
		err = operationError(op)
	}
	return op, err
}

func (a *app) renewCommand() *cobra.Command {
	return &cobra.Command{
		Use: "renew NAME TTL", GroupID: groupMachines,
		Short:   "Move the end of a machine's life",
		Long:    "Let a machine end TTL from now, such as 90s, 4h or 1h30m; 0 takes its end away.",
		Example: "  sandboxctl renew dev 8h",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ttl, err := duration(args[1])
			if err != nil {
				return usagef("write it like 90s, 4h or 1h30m, or 0 for no end", "cannot renew for %q: %w", args[1], err)
			}
			return a.looking(func(ctx context.Context, c *connection, args []string) (result, error) {
				i, err := fetch[managementv1.Instance](ctx, c, func(ctx context.Context) (*http.Response, error) {
					return c.api.RenewInstance(ctx, args[0], nil, managementv1.RenewInstance{Ttl: ttl})
				})
				text := i.Name + " has no end"
				if !i.ExpiresAt.IsZero() {
					text = i.Name + " ends " + moment(i.ExpiresAt)
				}
				return result{value: i, names: []string{i.Name}, text: terminal.Line(text)}, unknownInstance(err)
			})(cmd, args)
		},
	}
}

// duration writes a time as the server takes it.
func duration(s string) (string, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return "", errors.New("not a time")
	case d < 0 || d != d.Truncate(time.Second):
		return "", errors.New("want whole seconds, 0 or more")
	}
	return d.String(), nil
}

func (a *app) labelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "label NAME KEY=VALUE|KEY-...", GroupID: groupMachines,
		Short:   "Set labels of a machine, or take them away",
		Example: "  sandboxctl label dev team=blue retired-",
		Args:    cobra.MinimumNArgs(2), ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: func(cmd *cobra.Command, args []string) error {
			patch, err := labelPatch(args[1:])
			if err != nil {
				return err
			}
			return a.looking(func(ctx context.Context, c *connection, args []string) (result, error) {
				i, err := fetch[managementv1.Instance](ctx, c, func(ctx context.Context) (*http.Response, error) {
					return c.api.UpdateInstanceWithApplicationMergePatchPlusJSONBody(ctx, args[0], nil, patch)
				})
				return result{
					value: i, names: []string{i.Name},
					text: terminal.Line(i.Name + ": " + first(pairs(i.Labels), "no labels")),
				}, unknownInstance(err)
			})(cmd, args)
		},
	}
}

// labelPatch reads KEY=VALUE and KEY-, as kubectl has them.
func labelPatch(args []string) (managementv1.UpdateInstance, error) {
	patch := managementv1.UpdateInstance{Labels: map[string]*string{}}
	for _, arg := range args {
		key, value, set := strings.Cut(arg, "=")
		if !set {
			var away bool
			if key, away = strings.CutSuffix(arg, "-"); !away {
				key = ""
			}
		}
		if key == "" {
			return patch, usagef("write KEY=VALUE to set one, KEY- to take it away", "cannot use label %q", arg)
		}
		if _, twice := patch.Labels[key]; twice {
			return patch, usagef("name each label once", "cannot set label %q twice", key)
		}
		patch.Labels[key] = nil
		if set {
			patch.Labels[key] = &value
		}
	}
	return patch, nil
}
