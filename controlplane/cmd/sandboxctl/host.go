package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

func (a *app) imagesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "images", GroupID: groupHost, Short: "List the images that machines boot from", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			resp, err := c.api.ListImages(ctx)
			list, err := receive[managementv1.ImageList](c, resp, err)
			if err != nil {
				return err
			}
			names := make([]string, 0, len(list.Items))
			rows := [][]string{{"NAME", "SIZE", "PACKAGES", "AGE", "REFERENCE"}}
			for _, i := range list.Items {
				names = append(names, i.Name)
				rows = append(rows, []string{i.Name, size(i.Size), strconv.Itoa(i.Packages), age(i.BuiltAt), i.Ref})
			}
			return a.print(result{value: list, names: names, table: func(bool) [][]string { return rows }})
		},
	}
}

func (a *app) loadoutsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "loadouts", GroupID: groupHost, Short: "List the loadouts of the catalog", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			resp, err := c.api.ListLoadouts(ctx)
			list, err := receive[managementv1.LoadoutList](c, resp, err)
			if err != nil {
				return err
			}
			names := make([]string, 0, len(list.Items))
			rows := [][]string{{"NAME", "DESCRIPTION"}}
			for _, l := range list.Items {
				names = append(names, l.Name)
				rows = append(rows, []string{l.Name, strings.TrimSpace(l.Description)})
			}
			return a.print(result{value: list, names: names, table: func(bool) [][]string { return rows }})
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use: "show NAME", Short: "Show one loadout with its parents combined", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			resp, err := c.api.GetLoadout(ctx, args[0])
			l, err := receive[managementv1.Loadout](c, resp, err)
			if err != nil {
				return err
			}
			if a.format != formatTable && a.format != formatWide {
				return a.print(result{value: l, names: []string{l.Name}})
			}
			if _, err := fmt.Fprint(a.stdout, terminal.Text(l.Content)); err != nil {
				return fmt.Errorf("cannot print: %w", err)
			}
			return nil
		},
	})
	return cmd
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", GroupID: groupHost, Short: "Show the versions of client and server", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			type versions struct {
				Client string `json:"client"`
				Go     string `json:"go"`
				Server string `json:"server,omitempty"`
				// NoServer says why there is no version of a server.
				NoServer string `json:"no_server,omitempty"`
			}
			v := versions{Client: version, Go: runtime.Version()}
			if server, err := a.serverVersion(cmd.Context()); err != nil {
				v.NoServer = err.Error()
			} else {
				v.Server = server
			}
			return a.print(result{value: v, names: []string{v.Client}, table: func(bool) [][]string {
				server := v.Server
				if v.NoServer != "" {
					server = "unknown: " + v.NoServer
				}
				return [][]string{{"client", v.Client}, {"server", server}}
			}})
		},
	}
}

func (a *app) serverVersion(ctx context.Context) (string, error) {
	c, err := a.connect()
	if err != nil {
		return "", err
	}
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	resp, err := c.api.GetVersion(ctx)
	v, err := receive[managementv1.Version](c, resp, err)
	return v.Version, err
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", GroupID: groupHost,
		Short: "Say what is missing or wrong and the command that mends it",
		Long: "Say what is missing or wrong and the command that mends it.\n\n" +
			"Exit status: 0 when nothing keeps machines from being made, else 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks, host := a.examine(cmd.Context())
			if err := a.printChecks(checks, host); err != nil {
				return err
			}
			if slices.ContainsFunc(checks, func(c managementv1.Check) bool { return c.Status == managementv1.CheckError }) {
				return &exitError{code: exitFailed}
			}
			return nil
		},
	}
}

// examine begins with what can be seen from here and goes on with what the
// server sees, if one answers.
func (a *app) examine(ctx context.Context) ([]managementv1.Check, *managementv1.Host) {
	bad := func(name string, err error) managementv1.Check {
		return managementv1.Check{Name: name, Status: managementv1.CheckError, Detail: err.Error(), Remediation: remedyOf(err)}
	}
	c, err := a.connect()
	if err != nil {
		return []managementv1.Check{bad("server", err)}, nil
	}
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	resp, err := c.api.GetHost(ctx)
	host, err := receive[managementv1.Host](c, resp, err)
	if err != nil {
		return []managementv1.Check{bad("server", err)}, nil
	}
	checks := []managementv1.Check{{
		Name: "server", Status: managementv1.CheckOK,
		Detail: fmt.Sprintf("%s answers, version %s (%s)", c.server, host.Version, c.origin),
	}}
	if host.Version != version {
		checks = append(checks, managementv1.Check{
			Name: "version", Status: managementv1.CheckWarning,
			Detail:      fmt.Sprintf("sandboxctl is %s, the server %s", version, host.Version),
			Remediation: "install both from the same build",
		})
	}
	return append(checks, host.Checks...), &host
}

func (a *app) printChecks(checks []managementv1.Check, host *managementv1.Host) error {
	names := make([]string, 0, len(checks))
	for _, c := range checks {
		if c.Status != managementv1.CheckOK {
			names = append(names, c.Name)
		}
	}
	if a.format != formatTable && a.format != formatWide {
		return a.print(result{names: names, value: struct {
			Checks []managementv1.Check `json:"checks"`
			Host   *managementv1.Host   `json:"host,omitempty"`
		}{checks, host}})
	}
	for _, c := range checks {
		mark := map[managementv1.CheckStatus]string{
			managementv1.CheckOK: "ok     ", managementv1.CheckWarning: "WARNING", managementv1.CheckError: "ERROR  ",
		}[c.Status]
		if _, err := fmt.Fprintf(a.stdout, "%s  %s: %s\n", mark, terminal.Line(c.Name), terminal.Line(c.Detail)); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
		for line := range strings.Lines(c.Remediation) {
			if _, err := fmt.Fprintf(a.stdout, "         → %s\n", terminal.Line(strings.TrimRight(line, "\n"))); err != nil {
				return fmt.Errorf("cannot print: %w", err)
			}
		}
	}
	if host == nil {
		return nil
	}
	return a.printProviders(host.Providers)
}

func (a *app) printProviders(providers []managementv1.Provider) error {
	rows := [][]string{{"PROVIDER", "RUNTIME", "AVAILABLE", "ACCEL", "VSOCK", "VERSIONS", "WHY"}}
	for _, p := range providers {
		available, why := "yes", []string{}
		if !p.Available {
			available = "no"
		}
		if p.Default {
			available += ", default"
		}
		for _, reason := range []string{p.Reason, p.AcceleratorReason, p.VsockReason} {
			if reason != "" {
				why = append(why, reason)
			}
		}
		rows = append(rows, []string{p.Name, p.Runtime, available, p.Accelerator, p.Vsock, pairs(p.Versions), strings.Join(why, "; ")})
	}
	fmt.Fprintln(a.stdout)
	return printTable(a.stdout, rows)
}

// sorted turns a map into fields in the order of its keys.
func sorted(m map[string]string) [][2]string {
	fields := make([][2]string, 0, len(m))
	for k, v := range m {
		fields = append(fields, [2]string{k, v})
	}
	slices.SortFunc(fields, func(x, y [2]string) int { return strings.Compare(x[0], y[0]) })
	return fields
}
