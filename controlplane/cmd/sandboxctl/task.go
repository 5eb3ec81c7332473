package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
)

func (a *app) taskCommand() *cobra.Command {
	return group("task", groupWork, "Look at, follow and cancel a machine's tasks",
		a.taskLsCommand(), a.taskShowCommand(), a.taskCancelCommand(), a.taskWatchCommand())
}

func (a *app) taskLsCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "ls NAME", Short: "List a machine's tasks, newest first", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: a.asking(func(ctx context.Context, m *machine, _ []string) (result, error) {
			if limit < 0 {
				return result{}, usagef("want 0, which is all, or more", "cannot list %d tasks", limit)
			}
			list, err := m.agent.Tasks(ctx, "", limit)
			if err != nil {
				return result{}, fmt.Errorf("cannot list tasks: %w", err)
			}
			if list.More {
				a.note("there are older tasks; see more with --limit %d, all with --limit 0", 10*limit)
			}
			return result{
				value: map[string]any{"tasks": list.Raw}, names: namesOf(list.Tasks, func(t invoke.Task) string { return t.ID }),
				table: rows([]string{"ID", "STATE", "SINCE", "END"}, list.Tasks, func(t invoke.Task) []string {
					end := ""
					if invoke.Terminal(t.Status.State) {
						end = describe(&t)
					}
					return []string{t.ID, shortState(t.Status.State), t.Status.Timestamp, end}
				}),
			}, nil
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "list at most this many, the newest ones; 0 lists all")
	return cmd
}

func shortState(state string) string {
	return strings.ToLower(strings.TrimPrefix(state, "TASK_STATE_"))
}

func (a *app) taskShowCommand() *cobra.Command {
	var artifact string
	cmd := &cobra.Command{
		Use: "show NAME TASK", Short: "Show one task, or one of its artifacts", Args: cobra.ExactArgs(2),
		ValidArgsFunction: a.completing(both(instanceNames, taskIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if artifact != "" {
				return a.printArtifact(cmd.Context(), args[0], args[1], artifact)
			}
			return a.asking(func(ctx context.Context, m *machine, rest []string) (result, error) {
				t, raw, err := m.agent.Task(ctx, rest[0])
				return taskResult(t, raw), unknownTask(err, m.Name)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&artifact, "artifact", "", "print the content of this artifact, such as stdout, as it is")
	return cmd
}

func taskResult(t *invoke.Task, raw json.RawMessage) result {
	if t == nil {
		return result{}
	}
	return result{value: raw, names: []string{t.ID}, fields: taskFields(t)}
}

func unknownTask(err error, machine string) error {
	var answer *invoke.Error
	if errors.As(err, &answer) && answer.Reason == "TASK_NOT_FOUND" {
		return withRemedy(fmt.Errorf("cannot find task: %w", err), "sandboxctl task ls "+machine+" shows what there is")
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot fetch task: %w", err)
}

func taskFields(t *invoke.Task) [][2]string {
	fields := [][2]string{
		{"id", t.ID}, {"context", t.ContextID}, {"state", t.Status.State}, {"since", t.Status.Timestamp},
		{"message", t.Status.Message.Text()},
	}
	if o, ok := t.Outcome(); ok {
		fields = append(fields, [2]string{"failure", o.FailKind}, [2]string{"reason", o.Reason})
		if o.ExitCode != nil {
			fields = append(fields, [2]string{"exit code", strconv.Itoa(*o.ExitCode)})
		}
	}
	for _, art := range t.Artifacts {
		n := 0
		for _, p := range art.Parts {
			n += len(p.Bytes())
		}
		fields = append(fields, [2]string{"artifact", fmt.Sprintf("%s, %s", first(art.Name, art.ArtifactID), size(int64(n)))})
	}
	return fields
}

// printArtifact prints the whole of an artifact; the task itself may show only
// the beginning of it.
func (a *app) printArtifact(ctx context.Context, machine, task, name string) error {
	m, err := a.machine(ctx, machine)
	if err != nil {
		return err
	}
	t, _, err := m.agent.Task(ctx, task)
	if err != nil {
		return unknownTask(err, m.Name)
	}
	var known []string
	for _, art := range t.Artifacts {
		known = append(known, first(art.Name, art.ArtifactID))
		if art.Name != name && art.ArtifactID != name {
			continue
		}
		content, err := m.agent.Artifact(ctx, t.ID, art.ArtifactID)
		if err != nil {
			return fmt.Errorf("cannot fetch artifact: %w", err)
		}
		defer content.Close()
		if _, err := io.Copy(a.stdout, content); err != nil {
			return fmt.Errorf("cannot print artifact: %w", err)
		}
		return nil
	}
	return withRemedy(fmt.Errorf("task %s has no artifact %q", t.ID, name), "it has: "+first(strings.Join(known, ", "), "none"))
}

func (a *app) taskCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cancel NAME TASK", Short: "End a task", Args: cobra.ExactArgs(2),
		ValidArgsFunction: a.completing(both(instanceNames, taskIDs)),
		RunE: a.asking(func(ctx context.Context, m *machine, rest []string) (result, error) {
			t, raw, err := m.agent.Cancel(ctx, rest[0])
			if err != nil {
				return result{}, notCanceled(ctx, m, rest[0], err)
			}
			return taskResult(t, raw), nil
		}),
	}
}

// notCanceled says why a task cannot be cancelled; of one that has ended, how.
func notCanceled(ctx context.Context, m *machine, id string, err error) error {
	var answer *invoke.Error
	switch {
	case errors.As(err, &answer) && answer.Reason == "TASK_NOT_FOUND":
		return unknownTask(err, m.Name)
	case !errors.As(err, &answer) || answer.Reason != "TASK_NOT_CANCELABLE":
		return fmt.Errorf("cannot cancel task: %w", err)
	}
	end := ""
	if t, _, err := m.agent.Task(ctx, id); err == nil && invoke.Terminal(t.Status.State) {
		end = ", " + describe(t)
	}
	return &exitError{exitRefused, withRemedy(fmt.Errorf("cannot cancel task %s: it has ended already%s", id, end),
		"sandboxctl task show "+m.Name+" "+id+" shows what came of it")}
}

func (a *app) taskWatchCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "watch NAME TASK", Short: "Print a task's output so far and follow it to its end", Args: cobra.ExactArgs(2),
		ValidArgsFunction: a.completing(both(instanceNames, taskIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := a.machine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			w := &work{app: a, agent: m.agent, machine: m.Name, quiet: quiet}
			res, err := w.follower().Resume(cmd.Context(), args[1])
			var answer *invoke.Error
			if errors.As(err, &answer) {
				return unknownTask(err, args[0])
			}
			return w.finish(cmd.Context(), res, err)
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "nothing but what the command writes: no summary, no line end of ours")
	return cmd
}
