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

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/cmdline"
)

// version is set by the linker.
var version = "dev"

// app is one run of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	server, tokenFile, stateDir, context, format string

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

// endless is how a command ends that goes on until it is interrupted: that is
// its usual end, and nothing to complain of.
func (a *app) endless(err error) error {
	if a.interrupted() && errors.Is(err, context.Canceled) {
		return &exitError{code: exitInterrupted}
	}
	return err
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
directory of this user, then the system's. To reach another one, keep it as a
context (sandboxctl config --help), or set SANDBOX_SERVER to its address and
SANDBOX_TOKEN to a token, or SANDBOX_STATE_DIR to its state directory.

Exit status: 0 done, 1 failed, 2 wrong usage; sandboxctl help exit-codes tells
the others.`

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
		return &exitError{exitUsage, withRemedy(cmdline.FlagError(err), "see: "+cmd.CommandPath()+" --help")}
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.server, "server", "", "address of the server (SANDBOX_SERVER)")
	flags.StringVar(&a.tokenFile, "token-file", "", "file with the token (else SANDBOX_TOKEN)")
	flags.StringVar(&a.stateDir, "state-dir", "", "state directory of the server on this host (SANDBOX_STATE_DIR)")
	flags.StringVar(&a.context, "context", "", "name of a context of the configuration (SANDBOX_CONTEXT)")
	flags.StringVarP(&a.format, "output", "o", formatTable, "table, wide, json, yaml or name")
	a.completeFlag(root, "context", contextNames)
	a.completeFlag(root, "output", fixed(formats()...))
	root.AddGroup(
		&cobra.Group{ID: groupMachines, Title: "Machines:"},
		&cobra.Group{ID: groupWork, Title: "Work:"},
		&cobra.Group{ID: groupHost, Title: "Host:"},
	)
	root.AddCommand(a.actionCommands()...)
	root.AddCommand(
		a.upCommand(), a.lsCommand(), a.showCommand(), a.logsCommand(), a.consoleCommand(), a.waitCommand(),
		a.labelCommand(), a.renewCommand(),
		a.cardCommand(), a.runCommand(), a.sendCommand(), a.taskCommand(), a.promptCommand(),
		a.eventsCommand(), a.opsCommand(), a.loadoutsCommand(), a.imagesCommand(), a.providersCommand(),
		a.orphansCommand(), a.doctorCommand(), a.configCommand(), a.versionCommand(), exitCodesTopic(),
	)
	cmdline.Strict(root)
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
