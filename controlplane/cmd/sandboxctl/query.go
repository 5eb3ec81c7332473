package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
)

// looking makes a command of a question: connect, ask, print.
func (a *app) looking(
	ask func(ctx context.Context, c *connection, args []string) (result, error),
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		ctx, cancel := withDeadline(cmd.Context())
		defer cancel()
		r, err := ask(ctx, c, args)
		if err != nil {
			return err
		}
		return a.print(r)
	}
}

// machine is one machine and how to speak to it.
type machine struct {
	managementv1.Instance
	agent *invoke.Client
	conn  *connection
}

// machine finds a machine and a client for its A2A address.
func (a *app) machine(ctx context.Context, ref string) (*machine, error) {
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	i, err := c.instance(ctx, ref)
	if err != nil {
		return nil, err
	}
	agent, err := c.agent(i.A2aUrl)
	if err != nil {
		return nil, err
	}
	return &machine{i, agent, c}, nil
}

// asking is looking at a machine's A2A address; the machine is the first
// argument, rest are the others.
func (a *app) asking(
	ask func(ctx context.Context, m *machine, rest []string) (result, error),
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		m, err := a.machine(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		ctx, cancel := withDeadline(cmd.Context())
		defer cancel()
		r, err := ask(ctx, m, args[1:])
		if err != nil {
			return err
		}
		return a.print(r)
	}
}

// fetch asks once and reads the answer.
func fetch[T any](
	ctx context.Context, c *connection, ask func(context.Context) (*http.Response, error),
) (T, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	resp, err := ask(ctx)
	return receive[T](c, resp, err)
}

// maxPages bounds how much of a list is fetched from a server that never says
// that it ends.
const maxPages = 1000

// everything fetches the pages of a list, at most as many items as limit says
// if it says anything.
func everything[T any](
	what string, limit int, page func(cursor *string) (items []T, next string, err error),
) ([]T, error) {
	all := []T{}
	var cursor *string
	for range maxPages {
		items, next, err := page(cursor)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if limit > 0 && len(all) >= limit {
			return all[:limit], nil
		}
		if next == "" {
			return all, nil
		}
		cursor = &next
	}
	return nil, fmt.Errorf("cannot list %s: the server's list has no end", what)
}

// group is a command that only holds others.
func group(use, groupID, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, GroupID: groupID, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subs...)
	return cmd
}
