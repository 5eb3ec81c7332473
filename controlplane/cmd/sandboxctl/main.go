// Command sandboxctl is the command line of agentic-sandbox: it makes, shows
// and removes machines through the management API, and gives them work
// through their A2A addresses. It keeps no state of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

func main() {
	os.Exit(run())
}

func run() int {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, signals: make(chan os.Signal, 4)}
	signal.Notify(a.signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(a.signals)
	return a.main(context.Background(), os.Args[1:])
}

// main runs one command and says what went wrong and what to do about it.
func (a *app) main(ctx context.Context, args []string) int {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	quit, done := make(chan struct{}), make(chan struct{})
	go a.watchSignals(stop, quit, done)
	defer func() { close(quit); <-done }()

	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var exit *exitError
	if errors.As(err, &exit) && exit.err == nil {
		return exit.code // it has been said already
	}
	code := exitCodeOf(err)
	if a.interrupted() && errors.Is(err, context.Canceled) {
		code = exitInterrupted
	}
	fmt.Fprintf(a.stderr, "sandboxctl: %s\n", terminal.Text(inCommands(err.Error())))
	if next := remedyOf(err); next != "" {
		fmt.Fprintf(a.stderr, "  %s\n", strings.ReplaceAll(terminal.Text(inCommands(next)), "\n", "\n  "))
	}
	return code
}
