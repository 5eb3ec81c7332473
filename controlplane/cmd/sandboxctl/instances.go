package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// maxPages bounds how much of a list is fetched from a server that never says
// that it ends.
const maxPages = 1000

func (a *app) lsCommand() *cobra.Command {
	var (
		state  string
		labels []string
	)
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, GroupID: groupMachines,
		Short: "List machines",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.list(cmd.Context(), state, labels)
			if err != nil {
				return err
			}
			return a.print(instancesResult(all))
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "only machines in this state")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only machines with this label, key=value (repeatable)")
	return cmd
}

// list fetches all pages.
func (c *connection) list(ctx context.Context, state string, labels []string) ([]managementv1.Instance, error) {
	all := []managementv1.Instance{}
	params := managementv1.ListInstancesParams{Label: labels}
	if state != "" {
		params.State = (*managementv1.InstanceState)(&state)
	}
	for range maxPages {
		page, err := func() (managementv1.InstanceList, error) {
			ctx, cancel := withDeadline(ctx)
			defer cancel()
			resp, err := c.api.ListInstances(ctx, &params)
			return receive[managementv1.InstanceList](c, resp, err)
		}()
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		params.Cursor = &page.NextCursor
	}
	return nil, errors.New("cannot list machines: the server's list has no end")
}

func instancesResult(all []managementv1.Instance) result {
	names := make([]string, 0, len(all))
	for _, i := range all {
		names = append(names, i.Name)
	}
	return result{
		value: managementv1.InstanceList{Items: all},
		names: names,
		table: func(wide bool) [][]string {
			head := []string{"NAME", "STATE", "LOADOUT", "PROVIDER", "ACCEL", "CPUS", "MEMORY", "AGE"}
			if wide {
				head = append(head, "ID", "VSOCK", "IMAGE", "AGENT", "A2A")
			}
			rows := [][]string{head}
			for _, i := range all {
				row := []string{
					i.Name, string(i.State), i.Loadout, i.Provider, i.Accelerator,
					strconv.Itoa(i.Cpus), size(i.Memory), age(i.CreatedAt),
				}
				if wide {
					row = append(row, i.Id, i.Vsock, i.ImageRef, i.Guest.AgentVersion, i.A2aUrl)
				}
				rows = append(rows, row)
			}
			return rows
		},
	}
}

// instance fetches one instance by name or id.
func (c *connection) instance(ctx context.Context, ref string) (managementv1.Instance, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	resp, err := c.api.GetInstance(ctx, ref, nil)
	i, err := receive[managementv1.Instance](c, resp, err)
	return i, unknownInstance(err)
}

// unknownInstance says what to do about a name that nobody has.
func unknownInstance(err error) error {
	var problem *problemError
	if errors.As(err, &problem) && problem.Code == "instance.not_found" {
		return withRemedy(err, "sandboxctl ls shows what there is")
	}
	return err
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", GroupID: groupMachines,
		Short: "Show one machine with everything known of it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			i, err := c.instance(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.format != formatTable && a.format != formatWide {
				return a.print(result{value: i, names: []string{i.Name}})
			}
			if err := printFields(a.stdout, instanceFields(i)); err != nil {
				return err
			}
			if i.Fault.Console != "" {
				fmt.Fprintf(a.stdout, "\nend of the console:\n%s\n", indent(terminal.Text(i.Fault.Console)))
			}
			return nil
		},
	}
}

func instanceFields(i managementv1.Instance) [][2]string {
	with := func(value, reason string) string {
		if reason == "" {
			return value
		}
		return value + " (" + reason + ")"
	}
	fields := [][2]string{
		{"name", i.Name},
		{"id", i.Id},
		{"state", string(i.State)},
		{"fault", i.Fault.Cause},
		{"fault code", i.Fault.Code},
		{"what to do", i.Fault.Remediation},
		{"loadout", with(i.Loadout, i.LoadoutHash)},
		{"image", i.ImageRef},
		{"runtime", i.Runtime + ", " + i.Provider},
		{"accelerator", with(i.Accelerator, i.AcceleratorReason)},
		{"vsock", i.Vsock},
		{"size", fmt.Sprintf("%d CPUs, %s memory", i.Cpus, size(i.Memory))},
		{"capabilities", strings.Join(i.Capabilities, ", ")},
		{"runners", strings.Join(i.Runners, ", ")},
		{"workspace", i.Workspace},
		{"labels", pairs(i.Labels)},
	}
	if i.Guest.AgentVersion != "" {
		fields = append(fields,
			[2]string{"guest", fmt.Sprintf("%s, kernel %s", i.Guest.Os, i.Guest.Kernel)},
			[2]string{"agent", fmt.Sprintf("%s, %s, answered after %d ms", i.Guest.AgentVersion, i.Guest.Containment, i.Guest.BootMs)},
		)
	}
	return append(fields,
		[2]string{"A2A address", i.A2aUrl},
		[2]string{"agent card", i.AgentCardUrl},
		[2]string{"host", i.Host},
		[2]string{"created", i.CreatedAt.Local().Format(time.RFC3339)},
		[2]string{"changed", i.UpdatedAt.Local().Format(time.RFC3339)},
	)
}

func pairs(m map[string]string) string {
	all := make([]string, 0, len(m))
	for k, v := range m {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ")
}

func (a *app) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"delete"}, GroupID: groupMachines,
		Short: "Remove machines and everything of them",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, "removed", func(ctx context.Context, c *connection, ref string) (*http.Response, error) {
				return c.api.DeleteInstance(ctx, ref, nil)
			})
		},
	}
}

func (a *app) actCommand(verb, short string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME...", GroupID: groupMachines,
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			past := map[string]string{"start": "started", "stop": "stopped", "pause": "paused", "resume": "resumed"}
			return a.each(cmd.Context(), args, past[verb], func(ctx context.Context, c *connection, ref string) (*http.Response, error) {
				switch verb {
				case "start":
					return c.api.StartInstance(ctx, ref, nil)
				case "stop":
					return c.api.StopInstance(ctx, ref, nil)
				case "pause":
					return c.api.PauseInstance(ctx, ref, nil)
				}
				return c.api.ResumeInstance(ctx, ref, nil)
			})
		},
	}
}

// each asks for the same with every instance and waits for all of it. One
// failure does not keep the others from being tried.
func (a *app) each(ctx context.Context, refs []string, past string,
	ask func(context.Context, *connection, string) (*http.Response, error),
) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	ops := make([]managementv1.Operation, 0, len(refs))
	var failures []error
	for _, ref := range refs {
		op, err := func() (managementv1.Operation, error) {
			ctx, cancel := withDeadline(ctx)
			defer cancel()
			resp, err := ask(ctx, c, ref)
			return receive[managementv1.Operation](c, resp, err)
		}()
		if err != nil {
			failures = append(failures, unknownInstance(err))
			continue
		}
		ops = append(ops, op)
	}
	for _, op := range ops {
		end, err := c.follow(ctx, op, nil)
		if err == nil {
			err = operationError(end)
		}
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if a.format == formatName {
			fmt.Fprintln(a.stdout, terminal.Line(end.InstanceName))
		} else if a.format == formatTable || a.format == formatWide {
			fmt.Fprintf(a.stdout, "%s %s\n", terminal.Line(end.InstanceName), past)
		} else if err := a.print(result{value: end}); err != nil {
			return err
		}
	}
	return errors.Join(failures...)
}
