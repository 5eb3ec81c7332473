package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
)

// version is set by the linker.
var version = "dev"

// The exit statuses. Those from 3 to 6 tell how a task ended.
const (
	exitOK             = 0
	exitFailed         = 1
	exitUsage          = 2
	exitApplication    = 3   // the task's command ran and failed
	exitInfrastructure = 4   // the task's command could not be run to its end
	exitCanceled       = 5   // the task was cancelled
	exitRefused        = 6   // the request broke a rule and nothing ran
	exitInterrupted    = 130 // by the user, before an end was known
)

// exitError ends the program with a certain status, and silently so when it
// has no error of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// remedy is an error together with what to do about it.
type remedy struct {
	error
	next string
}

func (e *remedy) Unwrap() error { return e.error }

func withRemedy(err error, next string) error { return &remedy{error: err, next: next} }

// remedyOf finds what to do about err.
func remedyOf(err error) string {
	var (
		r       *remedy
		problem *problemError
		a2a     *invoke.Error
	)
	switch {
	case errors.As(err, &r):
		return r.next
	case errors.As(err, &problem):
		return problem.Remediation
	case errors.As(err, &a2a):
		return a2a.Remedy
	}
	return ""
}

// app is one run of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	server, tokenFile, stateDir, format string

	signals chan os.Signal

	mu       sync.Mutex
	wasHit   bool
	onSignal func() // takes the first signal instead of the program's end
}

// watchSignals lets a command take the first signal; the next one, or the
// first when nobody takes it, ends the program.
func (a *app) watchSignals(stop context.CancelFunc, quit <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case <-quit:
			return
		case <-a.signals:
			a.mu.Lock()
			take := a.onSignal
			a.onSignal = nil
			a.wasHit = true
			a.mu.Unlock()
			if take != nil {
				take()
				continue
			}
			stop()
		}
	}
}

// takeSignal makes f the answer to the next signal.
func (a *app) takeSignal(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onSignal = f
}

func (a *app) interrupted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wasHit
}

// isTerminal reports whether people read what is written to w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// note tells the user something beside the result.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, format+"\n", args...)
}

const rootLong = `Make machines for agents, give them work, and clean them up.

The server and its token are found by themselves on one host: first the state
directory of this user, then the system's. To reach another one, set
SANDBOX_SERVER to its address and SANDBOX_TOKEN to a token, or
SANDBOX_STATE_DIR to its state directory.

Exit status: 0 done, 1 failed, 2 wrong usage. Of run, send and task watch also:
3 the command failed, 4 it could not be run to its end, 5 cancelled,
6 refused because the request broke a rule.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "sandboxctl",
		Short:         "Make machines for agents, give them work, and clean them up",
		Long:          rootLong,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.checkFormat() },
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &exitError{exitUsage, withRemedy(err, "see: "+cmd.CommandPath()+" --help")}
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.server, "server", "", "address of the server (SANDBOX_SERVER)")
	flags.StringVar(&a.tokenFile, "token-file", "", "file with the token (else SANDBOX_TOKEN)")
	flags.StringVar(&a.stateDir, "state-dir", "", "state directory of the server on this host (SANDBOX_STATE_DIR)")
	flags.StringVarP(&a.format, "output", "o", formatTable, "table, wide, json, yaml or name")
	root.AddGroup(
		&cobra.Group{ID: groupMachines, Title: "Machines:"},
		&cobra.Group{ID: groupWork, Title: "Work:"},
		&cobra.Group{ID: groupHost, Title: "Host:"},
	)
	root.AddCommand(
		a.upCommand(), a.lsCommand(), a.showCommand(), a.rmCommand(), a.logsCommand(), a.waitCommand(),
		a.actCommand("start", "Boot a stopped or failed machine from its disk"),
		a.actCommand("stop", "End a machine and keep its disk"),
		a.actCommand("pause", "Stop a machine's processor and keep its memory"),
		a.actCommand("resume", "Let a paused machine go on"),
		a.cardCommand(), a.runCommand(), a.sendCommand(), a.taskCommand(), a.promptCommand(),
		a.opsCommand(), a.imagesCommand(), a.loadoutsCommand(), a.doctorCommand(), a.versionCommand(),
	)
	a.usageErrors(root)
	return root
}

// usageErrors gives wrong arguments the exit status of wrong usage.
func (a *app) usageErrors(cmd *cobra.Command) {
	check := cmd.Args
	if check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &exitError{exitUsage, withRemedy(err, "usage: "+cmd.UseLine())}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		a.usageErrors(sub)
	}
}

// The groups of commands in the help.
const (
	groupMachines = "machines"
	groupWork     = "work"
	groupHost     = "host"
)
