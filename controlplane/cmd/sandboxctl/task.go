package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
)

func (a *app) taskCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "task", GroupID: groupWork,
		Short: "Look at, follow and cancel a machine's tasks",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.taskLsCommand(), a.taskShowCommand(), a.taskCancelCommand(), a.taskWatchCommand())
	return cmd
}

func (a *app) taskLsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls NAME", Short: "List a machine's tasks, newest first", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, agent, err := a.machine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			tasks, raw, err := agent.Tasks(ctx)
			if err != nil {
				return fmt.Errorf("cannot list tasks: %w", err)
			}
			names := make([]string, 0, len(tasks))
			rows := [][]string{{"ID", "STATE", "SINCE", "END"}}
			for _, t := range tasks {
				names = append(names, t.ID)
				end := ""
				if invoke.Terminal(t.Status.State) {
					end = describe(&t)
				}
				rows = append(rows, []string{t.ID, shortState(t.Status.State), t.Status.Timestamp, end})
			}
			return a.print(result{value: raw, names: names, table: func(bool) [][]string { return rows }})
		},
	}
}

func shortState(state string) string {
	return strings.ToLower(strings.TrimPrefix(state, "TASK_STATE_"))
}

func (a *app) taskShowCommand() *cobra.Command {
	var artifact string
	cmd := &cobra.Command{
		Use: "show NAME TASK", Short: "Show one task, or one of its artifacts", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, agent, err := a.machine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			t, raw, err := agent.Task(ctx, args[1])
			if err != nil {
				return unknownTask(err, args[0])
			}
			if artifact != "" {
				return a.printArtifact(cmd.Context(), agent, t, artifact)
			}
			if a.format != formatTable && a.format != formatWide {
				return a.print(result{value: raw, names: []string{t.ID}})
			}
			return printFields(a.stdout, taskFields(t))
		},
	}
	cmd.Flags().StringVar(&artifact, "artifact", "", "print the content of this artifact, such as stdout, as it is")
	return cmd
}

func unknownTask(err error, machine string) error {
	var answer *invoke.Error
	if errors.As(err, &answer) && answer.Reason == "TASK_NOT_FOUND" {
		return withRemedy(fmt.Errorf("cannot find task: %w", err), "sandboxctl task ls "+machine+" shows what there is")
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
func (a *app) printArtifact(ctx context.Context, agent *invoke.Client, t *invoke.Task, name string) error {
	var known []string
	for _, art := range t.Artifacts {
		known = append(known, first(art.Name, art.ArtifactID))
		if art.Name != name && art.ArtifactID != name {
			continue
		}
		content, err := agent.Artifact(ctx, t.ID, art.ArtifactID)
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
		RunE: func(cmd *cobra.Command, args []string) error {
			_, agent, err := a.machine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			t, raw, err := agent.Cancel(ctx, args[1])
			if err != nil {
				return unknownTask(err, args[0])
			}
			if a.format != formatTable && a.format != formatWide {
				return a.print(result{value: raw, names: []string{t.ID}})
			}
			return printFields(a.stdout, taskFields(t))
		},
	}
}

func (a *app) taskWatchCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "watch NAME TASK", Short: "Print a task's output so far and follow it to its end", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			i, agent, err := a.machine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			w := &work{app: a, agent: agent, machine: i.Name, quiet: quiet}
			res, err := w.follower().Resume(cmd.Context(), args[1])
			var answer *invoke.Error
			if errors.As(err, &answer) {
				return unknownTask(err, args[0])
			}
			return w.finish(cmd.Context(), res, err)
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no summary on standard error")
	return cmd
}
