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

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/boot"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/identity"
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
	if os.Getpid() == 1 {
		boot.Main()
	}
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
	case boot.AgentCommand:
		return serveMachine(stderr)
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

// reserved is the memory that all runs of a machine together leave to the
// kernel and to us, in bytes.
const reserved = 32 << 20

// serveMachine serves on vsock, as the child of process 1. It returns nil
// only when the host has asked for the end: process 1 then cuts the power.
func serveMachine(stderr io.Writer) error {
	handover, err := boot.ReadHandover()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(stderr, nil))
	table, err := command.NewTable(command.Options{CgroupMount: boot.CgroupMount, ReserveMemory: reserved})
	if err != nil {
		log.Warn("control groups cannot be used, runs are contained by a subreaper", "error", err)
		if table, err = command.NewTable(command.Options{}); err != nil {
			return err
		}
	}
	l, err := serve.ListenVsock(log)
	if err != nil {
		return err
	}
	marks := append(handover.Marks, boot.MarkNow("listening"))
	server, err := serve.New(serve.Config{
		InstanceID: handover.Config.InstanceID,
		Version:    buildVersion(),
		Marks:      bootMarks(marks),
		SetClock:   identity.SetClock,
		Log:        log,
	}, table)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if _, err := fmt.Fprintln(stderr, readyLine); err != nil {
		return errors.Join(err, l.Close())
	}
	asked, err := server.Run(ctx, l)
	if err == nil && !asked {
		err = errors.New("ended by a signal")
	}
	return err
}

func bootMarks(marks []boot.Mark) []*agentv1.BootMark {
	var all []*agentv1.BootMark
	for _, m := range marks {
		all = append(all, &agentv1.BootMark{Name: m.Name, SinceKernel: durationpb.New(m.SinceKernel)})
	}
	return all
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
