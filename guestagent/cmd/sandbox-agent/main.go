// Command sandbox-agent is the guest's end of the agent link. In a machine it
// is /init: it boots, stays as process 1, and runs itself again as the agent.
// On a host it serves the same contract on a unix socket.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/serve"
)

// version is set at build time with -ldflags "-X main.version=…".
var version = ""

// readyLine tells whoever started the agent that it listens.
const readyLine = "sandbox-agent ready"

const usage = `usage: sandbox-agent serve --listen unix:PATH --config FILE [--cgroup DIR]
       sandbox-agent version
`

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "sandbox-agent: %v\n", err)
		var u usageError
		if errors.As(err, &u) {
			fmt.Fprint(os.Stderr, usage)
			os.Exit(2)
		}
		os.Exit(1)
	}
}

type usageError string

func (e usageError) Error() string { return string(e) }

func run(args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usageError("no command given")
	}
	switch args[0] {
	case "serve":
		return serveHost(args[1:], stdout, stderr)
	case command.ShimCommand:
		return command.RunShim()
	case "version":
		_, err := fmt.Fprintln(stdout, buildVersion())
		return err
	default:
		return usageError(fmt.Sprintf("unknown command %q", args[0]))
	}
}

// serveHost serves on a unix socket, as a process of a host.
func serveHost(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	listen := flags.String("listen", "", "where to listen, unix:PATH")
	config := flags.String("config", "", "boot configuration, a JSON file")
	cgroup := flags.String("cgroup", "", "cgroup v2 directory delegated to the agent; without it runs are contained by a subreaper")
	if err := flags.Parse(args); err != nil {
		return usageError(err.Error())
	}
	if *listen == "" || *config == "" || flags.NArg() > 0 {
		return usageError("serve needs --listen and --config, and nothing else")
	}
	data, err := os.ReadFile(*config)
	if err != nil {
		return fmt.Errorf("cannot read configuration: %w", err)
	}
	boot, err := agentv1.ParseBootConfig(data)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(stderr, nil))
	table, err := command.NewTable(command.Options{CgroupMount: *cgroup})
	if err != nil {
		return err
	}
	server, err := serve.New(serve.Config{InstanceID: boot.InstanceID, Version: buildVersion(), Log: log}, table)
	if err != nil {
		return err
	}
	l, err := serve.Listen(ctx, *listen, log)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, readyLine); err != nil {
		return errors.Join(err, l.Close())
	}
	_, err = server.Run(ctx, l)
	return err
}

// buildVersion is what was set at build time, or what Go knows of the module.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
