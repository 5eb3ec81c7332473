package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// The one adapter command there is (adapter-command/v1).
const (
	adapterName   = "sandbox-agent-runner"
	adapterScript = ".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs"
)

type runOptions struct {
	mode, request, workingDir, text string
	timeout                         int
	hasTimeout, quiet, input        bool
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use: "run NAME --mode plan|assess --request PATH", GroupID: groupWork,
		Short: "Run the bounded adapter command in a machine",
		Long: "Run the bounded adapter command in a machine and stream its output.\n\n" +
			"PATH is inside the machine, relative to the working directory, and must lie in\n" +
			".aiwg/ops/adapters/" + adapterName + "/ or .aiwg/ops/runs/.\n" +
			"Interrupt once to cancel the task, twice to leave it.\n\n" +
			"Exit status: 0 completed, 3 the command failed, 4 it could not be run to its end,\n" +
			"5 cancelled, 6 refused because the request broke a rule, 10 the command asks and\n" +
			"nobody is there to answer: it waits for sandboxctl prompt answer.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.hasTimeout = cmd.Flags().Changed("timeout")
			return a.run(cmd.Context(), args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.mode, "mode", "plan", "plan or assess")
	f.StringVar(&o.request, "request", "", "path of the request file in the machine")
	f.StringVar(&o.workingDir, "working-dir", "", "working directory in the machine (default: its workspace)")
	f.IntVar(&o.timeout, "timeout", 300, "seconds until the command is ended, 1 to 900")
	f.StringVar(&o.text, "text", "", "text of the message that carries the command")
	f.BoolVar(&o.input, "input", false, "let the command ask; answer here, or by sandboxctl prompt answer if this is no terminal")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "nothing but what the command writes: no summary, no line end of ours")
	return cmd
}

// message makes the message of adapter-command/v1. Nothing is checked here:
// the rules are the server's, and it names the one that is broken.
func (o *runOptions) message() (invoke.Message, error) {
	envelope := map[string]any{
		"adapter": adapterName,
		"mode":    o.mode,
		"command": []string{"node", adapterScript, "--request", o.request},
	}
	if o.workingDir != "" {
		envelope["working_dir"] = o.workingDir
	}
	if o.hasTimeout {
		envelope["timeout_seconds"] = o.timeout
	}
	if o.input {
		envelope["input_mode"] = "text-line"
	}
	raw, err := json.Marshal(envelope)
	if err != nil {
		return invoke.Message{}, fmt.Errorf("cannot make message: %w", err)
	}
	m, err := textMessage(first(o.text, "Run the bounded "+o.mode+" adapter."))
	m.Metadata = map[string]json.RawMessage{invoke.ExtensionAdapterCommand: raw}
	return m, err
}

func textMessage(text string) (invoke.Message, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return invoke.Message{}, fmt.Errorf("cannot make message: %w", err)
	}
	return invoke.Message{MessageID: id.String(), Role: "ROLE_USER", Parts: []invoke.Part{{Text: &text}}}, nil
}

func (a *app) run(ctx context.Context, ref string, o runOptions) error {
	if o.request == "" {
		return usagef("add --request PATH, the request file in the machine", "cannot run the adapter without a request")
	}
	m, err := o.message()
	if err != nil {
		return err
	}
	at, err := a.machine(ctx, ref)
	if err != nil {
		return err
	}
	w := &work{app: a, agent: at.agent, machine: at.Name, quiet: o.quiet}
	if o.input && a.hasTerminal() {
		w.ask = a.readLine
	}
	return w.send(ctx, m)
}

func (a *app) sendCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "send NAME TEXT", GroupID: groupWork,
		Short: "Send a text to a machine's agent and print what comes back",
		Args:  cobra.ExactArgs(2), ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := textMessage(args[1])
			if err != nil {
				return err
			}
			at, err := a.machine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			w := &work{app: a, agent: at.agent, machine: at.Name, quiet: quiet}
			return w.send(cmd.Context(), m)
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "nothing but what the command writes: no summary, no line end of ours")
	return cmd
}

// work is one message to a machine and what comes of it.
type work struct {
	*app
	agent   *invoke.Client
	machine string
	quiet   bool
	open    io.Writer // where the last line has no end yet; nil: nowhere
	// ask reads the answer to a prompt; nil: nobody is there to answer.
	ask func(ctx context.Context, signalled <-chan struct{}) (string, error)
}

const (
	patience      = 2 * time.Minute
	cancelTimeout = time.Minute
)

// send sends a message and follows it. The first signal cancels the task.
func (w *work) send(ctx context.Context, m invoke.Message) error {
	ctx, stop := context.WithCancel(ctx)
	began := make(chan string, 1)
	signalled := make(chan struct{})
	var canceller sync.WaitGroup
	canceller.Go(func() { w.cancelOn(ctx, signalled, began) })
	w.takeSignal(func() { close(signalled) })
	defer func() {
		w.takeSignal(nil)
		stop()
		canceller.Wait()
	}()

	f := w.follower()
	f.Began = func(id string) { began <- id }
	res, err := f.Send(ctx, m)
	if w.ask != nil {
		res, err = w.converse(ctx, f, signalled, res, err)
	}
	return w.finish(ctx, res, err)
}

// cancelOn cancels the task when it is told to, as soon as there is one.
func (w *work) cancelOn(ctx context.Context, signalled <-chan struct{}, began <-chan string) {
	select {
	case <-signalled:
	case <-ctx.Done():
		return
	}
	w.note("cancelling the task; interrupt again to leave it")
	select {
	case id := <-began:
		ctx, cancel := context.WithTimeout(ctx, cancelTimeout)
		defer cancel()
		if _, _, err := w.agent.Cancel(ctx, id); err != nil && ctx.Err() == nil {
			w.note("cannot cancel task %s: %s", terminal.Line(id), terminal.Text(err.Error()))
		}
	case <-ctx.Done():
	}
}

func (w *work) follower() *invoke.Follower {
	return &invoke.Follower{
		Client: w.agent, Patience: patience, Output: w.output,
		Lost: func(err error) { w.note("stream broke (%s), looking for the task again", terminal.Line(err.Error())) },
	}
}

// output writes a command's output where the command wrote it. With a format
// for programs standard output is theirs, and people watch the other one.
func (w *work) output(name string, data []byte) error {
	out := w.stdout
	if name == "stderr" || w.format == formatJSON || w.format == formatYAML || w.format == formatName {
		out = w.stderr
	}
	if isTerminal(out) {
		data = []byte(terminal.Text(string(data)))
	}
	switch {
	case len(data) == 0:
	case !bytes.HasSuffix(data, []byte("\n")):
		w.open = out
	case w.open == out:
		w.open = nil
	}
	if _, err := out.Write(data); err != nil {
		return fmt.Errorf("cannot write output: %w", err)
	}
	return nil
}

// finish says how the task ended, on paper and by the exit status.
func (w *work) finish(ctx context.Context, res invoke.Result, err error) error {
	var refused *invoke.Error
	switch {
	case errors.As(err, &refused) && refused.Refused():
		return &exitError{exitRefused, fmt.Errorf("refused: %w", err)}
	case err != nil && res.Task != nil && res.Task.ID != "":
		return withRemedy(err, fmt.Sprintf("the task may go on; see: sandboxctl task show %s %s", w.machine, res.Task.ID))
	case err != nil:
		return fmt.Errorf("cannot send message: %w", err)
	case res.Message != nil:
		return w.printMessage(res.Message)
	}
	w.endLine()
	task := res.Task
	if w.format != formatTable && w.format != formatWide {
		ctx, cancel := withDeadline(ctx)
		defer cancel()
		whole, raw, err := w.agent.Task(ctx, task.ID)
		if err != nil {
			return fmt.Errorf("cannot fetch task %s: %w", task.ID, err)
		}
		task = whole
		if err := w.print(result{value: raw, names: []string{task.ID}}); err != nil {
			return err
		}
	}
	if !w.quiet {
		w.note("task %s: %s", terminal.Line(task.ID), terminal.Text(describe(task)))
	}
	if _, asks := task.Prompt(); asks {
		w.note("it waits; answer with: sandboxctl prompt answer %s %s TEXT", w.machine, terminal.Line(task.ID))
	}
	if code := exitCode(task); code != exitOK {
		return &exitError{code: code}
	}
	return nil
}

// endLine ends a last line that the command left open, so that what is said
// next stands in a line of its own. With --quiet nothing is said next, and a
// file or a pipe gets exactly what the command wrote.
func (w *work) endLine() {
	if w.open != nil && (!w.quiet || isTerminal(w.open)) {
		fmt.Fprintln(w.open)
	}
	w.open = nil
}

func (w *work) printMessage(m *invoke.Message) error {
	if w.format != formatTable && w.format != formatWide {
		return w.print(result{value: m, names: []string{m.MessageID}})
	}
	text := m.Text()
	if isTerminal(w.stdout) {
		text = terminal.Text(text)
	}
	if _, err := io.WriteString(w.stdout, text+"\n"); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

// describe says in one line how a task ended.
func describe(t *invoke.Task) string {
	var text string
	switch t.Status.State {
	case invoke.Completed:
		return "completed"
	case invoke.Canceled:
		text = "cancelled"
	case invoke.Rejected:
		text = "rejected"
	case invoke.InputRequired:
		text = "waits for an answer"
	case invoke.Failed:
		text = "failed"
		if o, ok := t.Outcome(); ok {
			text += " (" + first(o.FailKind, "unknown")
			if o.ExitCode != nil {
				text += fmt.Sprintf(", exit code %d", *o.ExitCode)
			} else if o.Reason != "" {
				text += ", " + o.Reason
			}
			text += ")"
		}
	default:
		text = t.Status.State
	}
	if m := t.Status.Message.Text(); m != "" {
		text += ": " + m
	}
	return text
}

// exitCode tells how a task ended.
func exitCode(t *invoke.Task) int {
	switch t.Status.State {
	case invoke.Completed:
		return exitOK
	case invoke.Canceled:
		return exitCanceled
	case invoke.Rejected:
		return exitRefused
	case invoke.InputRequired:
		return exitAsks
	case invoke.Failed:
		if o, ok := t.Outcome(); ok && o.FailKind == "application" {
			return exitApplication
		}
		return exitInfrastructure
	}
	return exitFailed
}
