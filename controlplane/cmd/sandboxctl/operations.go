package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/cmdline"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// follow watches an operation to its end and tells every change. A stream
// that breaks is opened again, for the server may be restarting.
func (c *connection) follow(ctx context.Context, op managementv1.Operation,
	change func(managementv1.Operation),
) (managementv1.Operation, error) {
	if change == nil {
		change = func(managementv1.Operation) {}
	}
	change(op)
	r := reopening{what: "operation " + op.Id}
	for !operationEnded(op) {
		resp, err := c.api.WatchOperation(ctx, op.Id)
		err = c.events(resp, err, nil, func(_ string, data []byte) error {
			if len(data) == 0 {
				return nil
			}
			next, err := decode[managementv1.Operation](data)
			if err != nil {
				return err
			}
			r.progressed()
			op = next
			change(op)
			return nil
		})
		if operationEnded(op) {
			break
		}
		if err := r.after(ctx, err); err != nil {
			return op, err
		}
	}
	return op, nil
}

func decode[T any](data []byte) (T, error) {
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return v, nil
}

func operationEnded(op managementv1.Operation) bool {
	switch op.State {
	case managementv1.OperationSucceeded, managementv1.OperationFailed, managementv1.OperationCanceled:
		return true
	case managementv1.OperationPending, managementv1.OperationRunning:
	}
	return false
}

// operationError is why an ended operation did not succeed.
func operationError(op managementv1.Operation) error {
	switch op.State {
	case managementv1.OperationFailed:
		err := fmt.Errorf("%s of %s failed: %s", op.Kind, op.InstanceName, first(op.Fault.Cause, "no cause was given"))
		if op.Fault.Console != "" {
			err = fmt.Errorf("%w\nend of the console:\n%s", err, indent(op.Fault.Console))
		}
		return withRemedy(err, op.Fault.Remediation)
	case managementv1.OperationCanceled:
		return &exitError{exitCanceled, fmt.Errorf("%s of %s was cancelled", op.Kind, op.InstanceName)}
	case managementv1.OperationPending, managementv1.OperationRunning, managementv1.OperationSucceeded:
	}
	return nil
}

// defaultOperations is how many the list shows unless asked for more.
const defaultOperations = 50

func (a *app) opsCommand() *cobra.Command {
	cmd := a.opsLsCommand("ops")
	cmd.GroupID = groupHost
	cmd.AddCommand(a.opsLsCommand("ls"), a.opsShowCommand(), a.opsCancelCommand(), a.opsWatchCommand())
	return cmd
}

func (a *app) opsLsCommand(use string) *cobra.Command {
	var (
		instance, state, kind string
		limit                 int
	)
	cmd := &cobra.Command{
		Use: use, Short: "List the long requests, newest first", Args: cobra.NoArgs,
		RunE: a.looking(func(ctx context.Context, c *connection, _ []string) (result, error) {
			params := managementv1.ListOperationsParams{
				Instance: given(instance), State: given(managementv1.OperationState(state)), Kind: given(kind),
			}
			if limit > 0 {
				params.Limit = given(min(limit, maxPage))
			}
			all, err := everything("long requests", limit, func(cursor *string) ([]managementv1.Operation, string, error) {
				params.Cursor = cursor
				page, err := fetch[managementv1.OperationList](ctx, c, func(ctx context.Context) (*http.Response, error) {
					return c.api.ListOperations(ctx, &params)
				})
				return page.Items, page.NextCursor, err
			})
			return operationsResult(all), unknownInstance(err)
		}),
	}
	cmdline.Once(cmd.Flags(), &instance, "instance", "only those of this machine, by name or id")
	cmdline.Once(cmd.Flags(), &state, "state", "only those that are pending, running, succeeded, failed or canceled")
	cmdline.Once(cmd.Flags(), &kind, "kind", "only those of this kind, such as instance.create")
	cmd.Flags().IntVar(&limit, "limit", defaultOperations, "how many at most; 0 for all")
	a.completeFlag(cmd, "instance", instanceNames)
	a.completeFlag(cmd, "state", fixed("pending", "running", "succeeded", "failed", "canceled"))
	return cmd
}

const maxPage = 1000

// given is a pointer to a parameter, nil when it was not given.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func operationsResult(all []managementv1.Operation) result {
	return result{
		value: managementv1.OperationList{Items: all},
		names: namesOf(all, func(op managementv1.Operation) string { return op.Id }),
		table: func(wide bool) [][]string {
			head := []string{"ID", "KIND", "MACHINE", "STATE", "PHASE", "DONE", "AGE"}
			if wide {
				head = append(head, "CAUSE")
			}
			table := [][]string{head}
			for _, op := range all {
				row := []string{op.Id, op.Kind, op.InstanceName, string(op.State), op.Phase,
					strconv.Itoa(op.Percent) + "%", age(op.CreatedAt)}
				if wide {
					row = append(row, op.Fault.Cause)
				}
				table = append(table, row)
			}
			return table
		},
	}
}

func (c *connection) operation(ctx context.Context, id string) (managementv1.Operation, error) {
	op, err := fetch[managementv1.Operation](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.api.GetOperation(ctx, id, nil)
	})
	return op, unknown(err, "operation.not_found", "sandboxctl ops ls shows what there is")
}

func (a *app) opsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one long request and its steps", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completing(one(operationIDs)),
		RunE: a.looking(func(ctx context.Context, c *connection, args []string) (result, error) {
			op, err := c.operation(ctx, args[0])
			return operationResult(op), err
		}),
	}
}

func operationResult(op managementv1.Operation) result {
	r := result{value: op, names: []string{op.Id}, fields: [][2]string{
		{"id", op.Id}, {"kind", op.Kind}, {"machine", op.InstanceName}, {"machine id", op.InstanceId},
		{"state", string(op.State)}, {"phase", op.Phase}, {"done", strconv.Itoa(op.Percent) + "%"},
		{"fault", op.Fault.Cause}, {"fault code", op.Fault.Code}, {"what to do", op.Fault.Remediation},
		{"warnings", strings.Join(op.Warnings, "; ")},
		{"created", moment(op.CreatedAt)}, {"ended", moment(op.EndedAt)},
	}}
	for _, s := range op.Steps {
		text := s.Mark + ", " + s.At.Local().Format(time.TimeOnly)
		if s.Cause != "" {
			text += ": " + s.Cause
		}
		r.fields = append(r.fields, [2]string{"step " + s.Name, text})
	}
	if op.Fault.Console != "" {
		r.text = "\nend of the console:\n" + indent(terminal.Text(op.Fault.Console))
	}
	return r
}

func (a *app) opsCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "End a long request early and undo what it did", Args: cobra.ExactArgs(1),
		Long: "End a long request early and undo what it did. It returns when all is undone.\n" +
			"What has ended, and what cannot be undone such as a removal, is refused.",
		ValidArgsFunction: a.completing(one(operationIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			op, err := fetch[managementv1.Operation](cmd.Context(), c, func(ctx context.Context) (*http.Response, error) {
				return c.api.CancelOperation(ctx, args[0], nil)
			})
			if err != nil {
				return unknown(err, "operation.not_found", "sandboxctl ops ls shows what there is")
			}
			if op, err = c.follow(cmd.Context(), op, nil); err != nil {
				return err
			}
			if err := a.print(operationResult(op)); err != nil {
				return err
			}
			if op.State != managementv1.OperationCanceled {
				return fmt.Errorf("it could not be cancelled any more: it has %s", op.State)
			}
			return nil
		},
	}
}

func (a *app) opsWatchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Follow one long request to its end", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completing(one(operationIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			op, err := c.operation(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			p := newProgress(a.stderr)
			op, err = c.follow(cmd.Context(), op, p.show)
			p.end()
			if err != nil {
				return err
			}
			if err := a.print(operationResult(op)); err != nil {
				return err
			}
			return operationError(op)
		},
	}
}
