package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

func (a *app) promptCommand() *cobra.Command {
	return group("prompt", groupWork, "See and answer what running commands ask", a.promptLsCommand(), a.promptAnswerCommand())
}

// askedPrompt is a prompt that waits for an answer.
type askedPrompt struct {
	Task  string `json:"task"`
	Since string `json:"since"`
	invoke.Prompt
}

func (a *app) promptLsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls NAME", Short: "List the prompts that wait for an answer", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: a.asking(func(ctx context.Context, m *machine, _ []string) (result, error) {
			tasks, err := m.agent.Tasks(ctx, invoke.InputRequired, 0)
			if err != nil {
				return result{}, fmt.Errorf("cannot list tasks: %w", err)
			}
			all := []askedPrompt{}
			for _, t := range tasks.Tasks {
				if p, ok := t.Prompt(); ok {
					all = append(all, askedPrompt{t.ID, t.Status.Timestamp, p})
				}
			}
			return result{
				value: all, names: namesOf(all, func(p askedPrompt) string { return p.Task }),
				table: rows([]string{"TASK", "SINCE", "UNTIL", "PROMPT"}, all, func(p askedPrompt) []string {
					return []string{p.Task, p.Since, p.Deadline, p.Text}
				}),
			}, nil
		}),
	}
}

func (a *app) promptAnswerCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use: "answer NAME TASK TEXT", Short: "Answer the prompt of a task with a line of text",
		Long: "Answer the prompt of a task with a line of text. It returns once the command has\n" +
			"been given the line; follow the task with: sandboxctl task watch NAME TASK.",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: a.completing(both(instanceNames, taskIDs)),
		RunE: a.asking(func(ctx context.Context, m *machine, rest []string) (result, error) {
			t, _, err := m.agent.Task(ctx, rest[0])
			if err != nil {
				return result{}, unknownTask(err, m.Name)
			}
			p, ok := t.Prompt()
			if !ok {
				err := fmt.Errorf("task %s asks nothing now, it is %s", terminal.Line(t.ID), shortState(t.Status.State))
				return result{}, withRemedy(err, "sandboxctl prompt ls "+m.Name+" shows what is asked")
			}
			reply, err := invoke.NewReply(t, first(id, p.ID), rest[1])
			if err != nil {
				return result{}, err
			}
			t, raw, err := m.agent.Deliver(ctx, reply)
			var refused *invoke.Error
			switch {
			case errors.As(err, &refused) && refused.Refused():
				return result{}, &exitError{exitRefused, fmt.Errorf("refused: %w", err)}
			case err != nil:
				return result{}, fmt.Errorf("cannot answer: %w", err)
			}
			return taskResult(t, raw), nil
		}),
	}
	cmd.Flags().StringVar(&id, "prompt", "", "answer only if the task asks this prompt")
	return cmd
}

// converse answers prompts, one after the other, until the task has ended or
// nobody answers any more.
func (w *work) converse(
	ctx context.Context, f *invoke.Follower, signalled <-chan struct{}, res invoke.Result, err error,
) (invoke.Result, error) {
	for err == nil {
		p, asks := res.Task.Prompt()
		if !asks {
			break
		}
		fmt.Fprintf(w.stderr, "\n%s\n? ", terminal.Text(p.Text))
		text, aerr := w.ask(ctx, signalled)
		if errors.Is(aerr, errSignalled) {
			return f.Resume(ctx, res.Task.ID)
		}
		if aerr != nil {
			w.note("no answer (%s), the task waits", terminal.Line(aerr.Error()))
			break
		}
		var m invoke.Message
		if m, err = invoke.NewReply(res.Task, p.ID, text); err != nil {
			break
		}
		task := res.Task
		res, err = f.Reply(ctx, m)
		var refused *invoke.Error
		if errors.As(err, &refused) && refused.Refused() {
			// A text that is not taken, or a prompt of the past: see what it asks now.
			w.note("refused: %s", terminal.Text(err.Error()))
			if res.Task, _, err = w.agent.Task(ctx, task.ID); err == nil && res.Task.Status.State != invoke.InputRequired {
				return f.Resume(ctx, task.ID)
			}
		}
	}
	return res, err
}

var errSignalled = errors.New("interrupted")

// maxLine bounds what is read of a line; the server takes less.
const maxLine = 64 << 10

// hasTerminal reports whether somebody can be asked.
func (a *app) hasTerminal() bool {
	f, ok := a.stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && isTerminal(a.stderr)
}

// readLine reads one line from standard input, unless the command is
// interrupted before: then the read is left behind, and takes the next line.
func (a *app) readLine(ctx context.Context, signalled <-chan struct{}) (string, error) {
	type read struct {
		text string
		err  error
	}
	got := make(chan read, 1)
	go func() {
		var line strings.Builder
		for b := make([]byte, 1); ; { // nothing behind the line is taken
			n, err := a.stdin.Read(b)
			switch {
			case n == 1 && b[0] != '\n' && line.Len() < maxLine:
				line.WriteByte(b[0])
			case n == 1, err != nil && line.Len() > 0:
				got <- read{text: strings.TrimSuffix(line.String(), "\r")}
				return
			case err != nil:
				got <- read{err: err}
				return
			}
		}
	}()
	select {
	case r := <-got:
		return r.text, r.err
	case <-signalled:
		return "", errSignalled
	case <-ctx.Done():
		return "", fmt.Errorf("cannot read an answer: %w", ctx.Err())
	}
}
