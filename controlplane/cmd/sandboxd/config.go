package main

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
)

// defaultListen is loopback: nothing leaves the host unless asked for.
const defaultListen = "127.0.0.1:8420"

// config is what serve needs. Every field is a flag.
type config struct {
	StateDir     string
	ImageDir     string // empty: <StateDir>/images
	Listen       string
	PublicURL    string // empty: made from the address listened on
	LibvirtURI   string // empty: embedded below StateDir
	User         string // of the hypervisor, when the daemon is root
	Vsock        string
	Accel        string
	AgentPath    string // of sandbox-agent, for the host provider
	HostKind     bool   // offer runtime kind "host"
	DiscloseHost bool   // publish runtime.host
	Surface      surfaceConfig
	Push         pushConfig
	Fleet        fleetConfig
	Conformance  conformanceConfig
	Metrics      metricsConfig

	StopMachines bool
	StopTimeout  time.Duration
	LogLevel     slog.Level
	LogFormat    string
}

func serveCommand() *cobra.Command {
	var c config
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon: boot machines, serve the management API at /api/v1 and one
A2A address per instance at /agents/{id}.

Machines outlive the daemon: after a stop, a crash or an upgrade the next one
finds them again. --stop-machines ends them in order instead.

An administrator's token is made at the first start; sandboxctl on this host
finds server and token by itself.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.complete(); err != nil {
				return err
			}
			if err := c.checkGiven(cmd.Flags().Changed); err != nil {
				return err
			}
			return serve(cmd.Context(), c, cmd.OutOrStdout(), newLogger(c, os.Stderr))
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.StateDir, "state-dir", "", "directory of all state (default: SANDBOX_STATE_DIR, else "+stateDirHelp()+")")
	f.StringVar(&c.ImageDir, "image-dir", "", "image store (default: images in the state directory)")
	f.StringVar(&c.Listen, "listen", defaultListen, "`address` to listen on")
	f.StringVar(&c.PublicURL, "public-url", "", "`URL` clients reach this server at, published in AgentCards (default: from --listen)")
	f.StringVar(&c.LibvirtURI, "libvirt-uri", "", "`URI` of libvirt (default: embedded in this process, below the state directory)")
	f.StringVar(&c.User, "hypervisor-user", "sandbox-qemu", "unprivileged `user` that QEMU runs as when the daemon is root")
	f.StringVar(&c.Vsock, "vsock", "auto", "how guests are reached: auto, vhost-vsock or vhost-user-vsock")
	f.StringVar(&c.Accel, "accelerator", "auto", "auto (KVM where it is proven), kvm (insist) or tcg (emulate)")
	f.StringVar(&c.AgentPath, "agent", "", "`path` of sandbox-agent for the host provider (default: beside this program)")
	f.BoolVar(&c.HostKind, "enable-host-provider", false, "offer runtime kind \"host\": agents run on this host with full access to it")
	f.BoolVar(&c.DiscloseHost, "disclose-host", false,
		"show this host's name as runtime.host in tasks, to tokens with scope fleet:read-host")
	c.Push.flags(cmd)
	c.Surface.flags(f)
	c.Fleet.flags(f)
	c.Conformance.flags(f)
	c.Metrics.flags(f)
	f.BoolVar(&c.StopMachines, "stop-machines", false, "stop all machines in order when the daemon ends")
	f.DurationVar(&c.StopTimeout, "stop-timeout", 2*time.Minute, "with --stop-machines: how long they may take")
	f.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.StringVar(&c.LogFormat, "log-format", "text", "text or json")
	return cmd
}

func stateDirHelp() string {
	dir, err := localhost.DefaultStateDir()
	if err != nil {
		return "none: set it"
	}
	return dir
}

// stateDir is the one that was given, or the one to use when none was.
func stateDir(given string) (string, error) {
	if given == "" {
		var err error
		if given, err = localhost.DefaultStateDir(); err != nil {
			return "", fmt.Errorf("cannot choose a state directory, set --state-dir: %w", err)
		}
	}
	dir, err := filepath.Abs(given)
	if err != nil {
		return "", fmt.Errorf("--state-dir: %w", err)
	}
	return dir, nil
}

// complete fills in defaults and checks what can be checked without acting.
func (c *config) complete() (err error) {
	if c.StateDir, err = stateDir(c.StateDir); err != nil {
		return err
	}
	if c.ImageDir == "" {
		c.ImageDir = filepath.Join(c.StateDir, "images")
	}
	if c.ImageDir, err = filepath.Abs(c.ImageDir); err != nil {
		return fmt.Errorf("--image-dir: %w", err)
	}
	if c.PublicURL, err = publicURL(c.PublicURL); err != nil {
		return err
	}
	if err := oneOf("--vsock", c.Vsock, "auto", "vhost-vsock", "vhost-user-vsock"); err != nil {
		return err
	}
	if err := oneOf("--accelerator", c.Accel, "auto", "kvm", "tcg"); err != nil {
		return err
	}
	if err := c.Push.complete(); err != nil {
		return err
	}
	if err := c.Surface.complete(); err != nil {
		return err
	}
	if err := c.Fleet.complete(); err != nil {
		return err
	}
	if err := c.Conformance.complete(c.Listen, c.PublicURL); err != nil {
		return err
	}
	if err := c.Metrics.complete(); err != nil {
		return err
	}
	return oneOf("--log-format", c.LogFormat, "text", "json")
}

// publicURL checks where clients reach the daemon: what AgentCards publish is
// made of it, and paths begin at its root. Empty stays empty.
func publicURL(given string) (string, error) {
	if given == "" {
		return "", nil
	}
	u, err := url.Parse(given)
	if err != nil || u.Hostname() == "" || u.User != nil || (u.Scheme != "http" && u.Scheme != "https") ||
		strings.Trim(u.Path, "/") != "" || strings.ContainsAny(given, "?#") {
		return "", fmt.Errorf("--public-url %q: want http:// or https:// with a host and perhaps a port, "+
			"such as https://agents.example.org, and no path, query or user", given)
	}
	return strings.TrimRight(given, "/"), nil
}

func oneOf(flag, got string, want ...string) error {
	if slices.Contains(want, got) {
		return nil
	}
	return fmt.Errorf("%s %q: want one of %s", flag, got, strings.Join(want, ", "))
}

func newLogger(c config, w *os.File) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return request.Log(slog.New(slog.NewJSONHandler(w, opts)))
	}
	return request.Log(slog.New(slog.NewTextHandler(w, opts)))
}
