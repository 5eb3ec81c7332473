package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

const (
	maxEvent   = 4 << 20
	maxReopens = 60
	firstNap   = 100 * time.Millisecond
	lastNap    = 2 * time.Second
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
	for attempt := 0; ; attempt++ {
		if operationEnded(op) {
			return op, nil
		}
		err := c.watch(ctx, op.Id, func(next managementv1.Operation) {
			op, attempt = next, 0
			change(op)
		})
		var problem *problemError
		switch {
		case operationEnded(op):
			return op, nil
		case ctx.Err() != nil:
			return op, fmt.Errorf("cannot follow operation %s: %w", op.Id, ctx.Err())
		case errors.As(err, &problem) && problem.Status < http.StatusInternalServerError, errors.Is(err, bufio.ErrTooLong):
			return op, err
		case attempt >= maxReopens:
			return op, fmt.Errorf("cannot follow operation %s: %w", op.Id, errors.Join(err, errStreamEnds))
		}
		if err := nap(ctx, min(firstNap<<min(attempt, 8), lastNap)); err != nil {
			return op, err
		}
	}
}

var errStreamEnds = errors.New("the stream ends before the operation does")

func nap(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch reads one stream of an operation's events.
func (c *connection) watch(ctx context.Context, id string, change func(managementv1.Operation)) error {
	resp, err := c.api.WatchOperation(ctx, id)
	if err != nil {
		return c.explain(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxEvent))
		if err != nil {
			return c.explain(err)
		}
		return problemOf(resp, body)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ") // each event is one line of JSON
		if !ok {
			continue
		}
		var op managementv1.Operation
		if err := json.Unmarshal([]byte(data), &op); err != nil {
			return fmt.Errorf("cannot read event of operation %s: %w", id, err)
		}
		change(op)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("cannot follow operation %s: %w", id, err)
	}
	return nil
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
		return fmt.Errorf("%s of %s was cancelled", op.Kind, op.InstanceName)
	case managementv1.OperationPending, managementv1.OperationRunning, managementv1.OperationSucceeded:
	}
	return nil
}

func (a *app) opsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ops", GroupID: groupHost,
		Short: "List the long requests, newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			resp, err := c.api.ListOperations(ctx, nil)
			page, err := receive[managementv1.OperationList](c, resp, err)
			if err != nil {
				return err
			}
			return a.print(operationsResult(page))
		},
	}
	cmd.AddCommand(a.opsShowCommand(), a.opsWatchCommand())
	return cmd
}

func operationsResult(list managementv1.OperationList) result {
	names := make([]string, 0, len(list.Items))
	for _, op := range list.Items {
		names = append(names, op.Id)
	}
	return result{
		value: list, names: names,
		table: func(wide bool) [][]string {
			head := []string{"ID", "KIND", "MACHINE", "STATE", "PHASE", "DONE", "AGE"}
			if wide {
				head = append(head, "CAUSE")
			}
			rows := [][]string{head}
			for _, op := range list.Items {
				row := []string{op.Id, op.Kind, op.InstanceName, string(op.State), op.Phase,
					strconv.Itoa(op.Percent) + "%", age(op.CreatedAt)}
				if wide {
					row = append(row, op.Fault.Cause)
				}
				rows = append(rows, row)
			}
			return rows
		},
	}
}

func (c *connection) operation(ctx context.Context, id string) (managementv1.Operation, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	resp, err := c.api.GetOperation(ctx, id, nil)
	return receive[managementv1.Operation](c, resp, err)
}

func (a *app) opsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one long request", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			op, err := c.operation(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printOperation(op)
		},
	}
}

func (a *app) printOperation(op managementv1.Operation) error {
	if a.format != formatTable && a.format != formatWide {
		return a.print(result{value: op, names: []string{op.Id}})
	}
	ended := ""
	if !op.EndedAt.IsZero() {
		ended = op.EndedAt.Local().Format(time.RFC3339)
	}
	return printFields(a.stdout, [][2]string{
		{"id", op.Id}, {"kind", op.Kind}, {"machine", op.InstanceName}, {"machine id", op.InstanceId},
		{"state", string(op.State)}, {"phase", op.Phase}, {"done", strconv.Itoa(op.Percent) + "%"},
		{"fault", op.Fault.Cause}, {"fault code", op.Fault.Code}, {"what to do", op.Fault.Remediation},
		{"warnings", strings.Join(op.Warnings, "; ")},
		{"created", op.CreatedAt.Local().Format(time.RFC3339)}, {"ended", ended},
	})
}

func (a *app) opsWatchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Follow one long request to its end", Args: cobra.ExactArgs(1),
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
			if err := a.printOperation(op); err != nil {
				return err
			}
			return operationError(op)
		},
	}
}
