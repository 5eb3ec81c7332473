// Command sandboxd is the daemon: it boots one virtual machine per agent,
// gives each an A2A address and serves the management API.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/cmdline"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/kvm"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "sandboxd: %v\n", err)
		var f *instance.Fault
		if errors.As(err, &f) && f.Blame == instance.Caller {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "sandboxd",
		Short:         "Control plane for agent machines",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &instance.Fault{
			Blame: instance.Caller, Code: "flag.invalid", Hint: "see: " + cmd.CommandPath() + " --help", Err: cmdline.FlagError(err),
		}
	})
	cmd.AddCommand(serveCommand(), keysCommand(), tokensCommand(), versionCommand(), kvmProbeCommand())
	cmdline.Strict(cmd)
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	}
}

// kvmProbeCommand is run by the daemon itself as a child: entering a guest may
// never return, so it must be possible to kill it.
func kvmProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "kvm-probe",
		Short:  "Prove KVM by running a little guest code; used by serve",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			os.Exit(kvm.ProbeMain())
			return nil
		},
	}
}
