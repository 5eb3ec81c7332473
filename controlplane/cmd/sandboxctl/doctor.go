package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/doctor"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", GroupID: groupHost,
		Short: "Say what is missing or wrong and the command that mends it",
		Long: "Say what is missing or wrong and the command that mends it.\n\n" +
			"It asks the server. When none answers it looks at this host by itself: the\n" +
			"programs, KVM, vsock, libvirt, QEMU, the state directory, images and disk.\n\n" +
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

// examine asks the server, and looks at this host where the server cannot.
func (a *app) examine(ctx context.Context) ([]managementv1.Check, *managementv1.Host) {
	c, err := a.connect()
	if err == nil {
		var host managementv1.Host
		host, err = fetch[managementv1.Host](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.api.GetHost(ctx) })
		if err == nil {
			return a.examineServer(ctx, c, &host), &host
		}
	}
	checks := []managementv1.Check{{
		Name: "server", Status: managementv1.CheckError, Detail: err.Error(), Remediation: remedyOf(err),
	}}
	if a.elsewhere() {
		return checks, nil // this host has nothing to do with it
	}
	local := doctor.Local(ctx, doctor.Options{StateDir: first(a.stateDir, os.Getenv("SANDBOX_STATE_DIR"))})
	return append(checks, fromLocal(local)...), nil
}

// elsewhere reports whether the user named a server by its address, which may
// be on another host.
func (a *app) elsewhere() bool {
	p, err := a.place()
	return err == nil && p.server != "" && !strings.Contains(p.server, "//127.0.0.1") && !strings.Contains(p.server, "//localhost")
}

func (a *app) examineServer(ctx context.Context, c *connection, host *managementv1.Host) []managementv1.Check {
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
	if c.stateDir != "" {
		checks = append(checks, fromLocal(doctor.Permissions(c.stateDir, host.ImageDir))...)
	}
	found := slices.Clone(host.Checks)
	if orphans, err := c.orphans(ctx); err == nil {
		found = slices.DeleteFunc(found, func(c managementv1.Check) bool { return c.Name == "orphan" })
		for _, o := range orphans.Items {
			found = append(found, orphanCheck(o))
		}
	}
	checks = append(checks, found...)
	rank := map[managementv1.CheckStatus]int{managementv1.CheckError: 0, managementv1.CheckWarning: 1, managementv1.CheckOK: 2}
	slices.SortStableFunc(checks[1:], func(x, y managementv1.Check) int { return cmp.Compare(rank[x.Status], rank[y.Status]) })
	return checks
}

func orphanCheck(o managementv1.Orphan) managementv1.Check {
	detail := "machine " + o.Id + " of provider " + o.Provider + " belongs to no instance"
	if o.Running {
		detail += " and runs"
	}
	if o.Note != "" {
		detail += " (" + o.Note + ")"
	}
	if !o.RemoveAfter.IsZero() {
		detail += "; it is removed in " + until(o.RemoveAfter)
	}
	return managementv1.Check{
		Name: "orphan", Status: managementv1.CheckWarning, Detail: detail,
		Remediation: "if you know that nobody needs it: sandboxctl orphans rm " + o.Id,
	}
}

func fromLocal(checks []doctor.Check) []managementv1.Check {
	out := make([]managementv1.Check, 0, len(checks))
	for _, c := range checks {
		out = append(out, managementv1.Check{
			Name: c.Name, Status: managementv1.CheckStatus(c.Status), Detail: c.Detail, Remediation: c.Remedy,
		})
	}
	return out
}

func (a *app) printChecks(checks []managementv1.Check, host *managementv1.Host) error {
	var names []string
	for _, c := range checks {
		if c.Status != managementv1.CheckOK {
			names = append(names, c.Name)
		}
	}
	var text strings.Builder
	for _, c := range checks {
		writeCheck(&text, c)
	}
	if host != nil {
		text.WriteByte('\n')
		if err := printTable(&text, providerRows(host.Providers)(true)); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
	}
	return a.print(result{names: names, text: text.String(), value: struct {
		Checks []managementv1.Check `json:"checks"`
		Host   *managementv1.Host   `json:"host,omitempty"`
	}{checks, host}})
}

func writeCheck(w io.Writer, c managementv1.Check) {
	mark := map[managementv1.CheckStatus]string{
		managementv1.CheckOK: "ok     ", managementv1.CheckWarning: "WARNING", managementv1.CheckError: "ERROR  ",
	}[c.Status]
	fmt.Fprintf(w, "%s  %s: %s\n", mark, terminal.Line(c.Name), terminal.Line(inCommands(c.Detail)))
	for line := range strings.Lines(c.Remediation) {
		fmt.Fprintf(w, "         → %s\n", terminal.Line(inCommands(strings.TrimRight(line, "\n"))))
	}
}
