package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

type upOptions struct {
	name, workspace string
	labels, env     []string
	ttl             string
	noWait          bool
}

func (a *app) upCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use: "up LOADOUT", GroupID: groupMachines,
		Short: "Make and boot a machine",
		Long: "Make and boot a machine, and return when the agent in it has answered.\n\n" +
			"LOADOUT is a name of the catalog (sandboxctl loadouts), or a file if it ends in\n" +
			".yaml or .yml or holds a slash. Local files that it extends are sent along.",
		Example: "  sandboxctl up agentic-dev --name demo --workspace ./project\n" +
			"  sandboxctl up ./my-loadout.yaml --label team=blue --env MODE=test",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completing(one(loadoutsAndFiles)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.up(cmd.Context(), args[0], o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the machine (made from the loadout's when absent)")
	f.StringVar(&o.workspace, "workspace", "", "directory to copy into the machine's workspace")
	f.StringArrayVarP(&o.labels, "label", "l", nil, "label, key=value (repeatable)")
	f.StringArrayVarP(&o.env, "env", "e", nil,
		"variable for commands in the machine, KEY=VALUE, or KEY to take it from here, as for secrets (repeatable)")
	f.StringVar(&o.ttl, "ttl", "", "how long the machine lives, such as 4h (else as the loadout says; see sandboxctl renew)")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the request has been recorded")
	return cmd
}

func (o *upOptions) check() error {
	if o.workspace == "" {
		return nil
	}
	if o.noWait {
		return usagef("choose one of --workspace and --no-wait", "cannot copy a workspace without waiting for the machine")
	}
	// Known before a machine is made, not after.
	info, err := os.Stat(o.workspace)
	if err != nil {
		return fmt.Errorf("cannot read workspace: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("cannot use workspace %q: not a directory", o.workspace)
	}
	return nil
}

func (a *app) up(ctx context.Context, loadout string, o upOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	body := managementv1.CreateInstance{Name: o.name}
	var err error
	if body.Loadout, err = loadoutSource(loadout); err != nil {
		return err
	}
	if body.Labels, err = assignments("label", o.labels, nil); err != nil {
		return err
	}
	if body.Env, err = assignments("env", o.env, os.LookupEnv); err != nil {
		return err
	}
	if o.ttl != "" {
		if body.Ttl, err = duration(o.ttl); err != nil {
			return usagef("write it like 90s, 4h or 1h30m", "cannot use --ttl %q: %w", o.ttl, err)
		}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	op, err := fetch[managementv1.Operation](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.api.CreateInstance(ctx, nil, body)
	})
	if err != nil {
		return upError(err)
	}
	if o.noWait {
		return a.print(operationResult(op))
	}
	p := newProgress(a.stderr)
	op, err = c.follow(ctx, op, p.show)
	p.end()
	if errors.Is(err, context.Canceled) {
		return withRemedy(fmt.Errorf("%s is still being made: %w", op.InstanceName, err),
			fmt.Sprintf("watch it:  sandboxctl ops watch %s\ncancel it: sandboxctl ops cancel %s", op.Id, op.Id))
	}
	if err == nil {
		err = operationError(op)
	}
	if err != nil {
		return err
	}
	i, err := c.instance(ctx, op.InstanceId)
	if err != nil {
		return err
	}
	if o.workspace != "" {
		if err := a.copyWorkspace(ctx, c, i, o.workspace); err != nil {
			return err
		}
	}
	return a.print(result{value: i, names: []string{i.Name}, fields: append([][2]string{
		{"name", i.Name}, {"id", i.Id}, {"A2A address", i.A2aUrl},
	}, guestFields(i)...)})
}

// upError says what to do about a loadout that is not there or not valid.
func upError(err error) error {
	var problem *problemError
	if errors.As(err, &problem) && problem.Code == "loadout.invalid" {
		return &exitError{exitRefused, err}
	}
	return unknownLoadout(err)
}

func (a *app) copyWorkspace(ctx context.Context, c *connection, i managementv1.Instance, dir string) error {
	written, err := c.upload(ctx, i.Id, dir, i.Workspace, func(name, why string) {
		a.note("left out %s: %s", terminal.Line(name), why)
	})
	if err != nil {
		return &exitError{exitFailed, withRemedy(fmt.Errorf("%s runs, but its workspace could not be copied: %w", i.Name, err),
			first(remedyOf(err), "remove it: sandboxctl rm "+i.Name))}
	}
	a.note("copied %d entries (%s) to %s", written.Entries, size(written.Bytes), terminal.Line(i.Workspace))
	return nil
}

// assignments reads flags of the form key=value. A mere key is looked up, so
// that a secret need not stand on the command line.
func assignments(flag string, in []string, lookup func(string) (string, bool)) (map[string]string, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(in))
	for _, s := range in {
		key, value, ok := strings.Cut(s, "=")
		if !ok && lookup != nil {
			if value, ok = lookup(key); !ok {
				return nil, usagef("set it, or write --"+flag+" "+key+"=VALUE", "cannot take %q from the environment: it is not set", key)
			}
		}
		if !ok || key == "" {
			return nil, usagef("write --"+flag+" KEY=VALUE", "cannot use --%s: not of the form KEY=VALUE", flag)
		}
		out[key] = value
	}
	return out, nil
}
