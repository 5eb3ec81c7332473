package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/cmdline"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

func (a *app) lsCommand() *cobra.Command {
	var (
		state  string
		labels []string
		watch  bool
	)
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, GroupID: groupMachines,
		Short:   "List machines",
		Example: "  sandboxctl ls -l 'team in (blue, red), !retired' --watch",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return a.watchInstances(cmd.Context(), state, labels)
			}
			return a.looking(func(ctx context.Context, c *connection, _ []string) (result, error) {
				all, err := c.list(ctx, state, labels)
				return instancesResult(all), err
			})(cmd, args)
		},
	}
	cmdline.Once(cmd.Flags(), &state, "state", "only machines in this state")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil,
		"only machines that this `selector` chooses: team=blue, team!=blue, 'team in (blue, red)',\n"+
			"team, '!team', joined by commas (repeatable)")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on with every change, until interrupted")
	a.completeFlag(cmd, "state", fixed(instanceStates()...))
	return cmd
}

func instanceStates() []string {
	return []string{"provisioning", "starting", "running", "paused", "stopping", "stopped", "failed", "deleting"}
}

// list fetches all pages.
func (c *connection) list(ctx context.Context, state string, labels []string) ([]managementv1.Instance, error) {
	params := managementv1.ListInstancesParams{Label: labels, State: given(managementv1.InstanceState(state))}
	return everything("machines", 0, func(cursor *string) ([]managementv1.Instance, string, error) {
		params.Cursor = cursor
		page, err := fetch[managementv1.InstanceList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.api.ListInstances(ctx, &params)
		})
		return page.Items, page.NextCursor, err
	})
}

func instancesResult(all []managementv1.Instance) result {
	return result{
		value: managementv1.InstanceList{Items: all},
		names: namesOf(all, func(i managementv1.Instance) string { return i.Name }),
		table: func(wide bool) [][]string {
			table := [][]string{instanceTitles(wide)}
			for _, i := range all {
				table = append(table, instanceRow(i, wide))
			}
			return table
		},
	}
}

func instanceTitles(wide bool) []string {
	head := []string{"NAME", "STATE", "LOADOUT", "PROVIDER", "ACCEL", "CPUS", "MEMORY", "AGE"}
	if wide {
		head = append(head, "ENDS IN", "LABELS", "ID", "VSOCK", "IMAGE", "AGENT", "A2A")
	}
	return head
}

func instanceRow(i managementv1.Instance, wide bool) []string {
	state := string(i.State)
	if i.Resting {
		state += " (idle)"
	}
	if i.Health.Code != "" {
		state += " (" + i.Health.Code + ")"
	}
	row := []string{
		i.Name, state, i.Loadout, i.Provider, i.Accelerator,
		strconv.Itoa(i.Cpus), size(i.Memory), age(i.CreatedAt),
	}
	if wide {
		row = append(row, until(i.ExpiresAt), pairs(i.Labels), i.Id, i.Vsock, i.ImageRef, i.Guest.AgentVersion, i.A2aUrl)
	}
	return row
}

// watchInstances prints the list, and then every machine again that changes.
func (a *app) watchInstances(ctx context.Context, state string, labels []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	var (
		f     = flow{a: a}
		shown = map[string]int64{} // generation of what was printed, by id
		begun bool
		wide  = a.format == formatWide
	)
	// Each stream begins with the whole list, for what happened before it.
	list := func() error {
		all, err := c.list(ctx, state, labels)
		if err != nil {
			return err
		}
		if !begun {
			if err := f.titles(instanceTitles(wide), instancesResult(all).table(wide)); err != nil {
				return err
			}
			begun = true
		}
		there := map[string]bool{}
		for _, i := range all {
			there[i.Id] = true
			if g, known := shown[i.Id]; known && g == i.Generation {
				continue
			}
			shown[i.Id] = i.Generation
			if err := f.print(i, i.Name, instanceRow(i, wide)); err != nil {
				return err
			}
		}
		for id := range shown {
			if !there[id] {
				delete(shown, id)
			}
		}
		return nil
	}
	err = c.followEvents(ctx, eventQuery{opened: list, anew: true}, func(e managementv1.Event) error {
		_, known := shown[e.InstanceId]
		if e.Type == "instance.deleted" && known {
			delete(shown, e.InstanceId)
			gone := managementv1.Instance{Id: e.InstanceId, Name: e.InstanceName, State: stateDeleted}
			return f.print(gone, gone.Name, []string{gone.Name, stateDeleted})
		}
		if !strings.HasPrefix(e.Type, "instance.") {
			return nil
		}
		return list()
	})
	return a.endless(err)
}

// instance fetches one instance by name or id.
func (c *connection) instance(ctx context.Context, ref string) (managementv1.Instance, error) {
	i, err := fetch[managementv1.Instance](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.api.GetInstance(ctx, ref, nil)
	})
	return i, unknownInstance(err)
}

const codeNoInstance = "instance.not_found"

// unknownInstance says what to do about a name that nobody has.
func unknownInstance(err error) error {
	return unknown(err, codeNoInstance, "sandboxctl ls shows what there is")
}

// unknown says what to do about a problem of this code.
func unknown(err error, code, next string) error {
	var problem *problemError
	if errors.As(err, &problem) && problem.Code == code {
		return withRemedy(err, next)
	}
	return err
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", GroupID: groupMachines,
		Short:             "Show one machine with everything known of it",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: a.looking(func(ctx context.Context, c *connection, args []string) (result, error) {
			i, err := c.instance(ctx, args[0])
			return instanceResult(i), err
		}),
	}
}

func instanceResult(i managementv1.Instance) result {
	r := result{value: i, names: []string{i.Name}, fields: instanceFields(i)}
	if i.Fault.Console != "" {
		r.text = "\nend of the console:\n" + indent(terminal.Text(i.Fault.Console))
	}
	return r
}

func instanceFields(i managementv1.Instance) [][2]string {
	with := func(value, reason string) string {
		if reason == "" || value == "" {
			return value
		}
		return value + " (" + reason + ")"
	}
	fields := [][2]string{
		{"name", i.Name},
		{"id", i.Id},
		{"state", with(string(i.State), i.Reason)},
		{"fault", i.Fault.Cause},
		{"fault code", i.Fault.Code},
		{"what to do", first(i.Fault.Remediation, i.Health.Remediation)},
		{"health", with(i.Health.Cause, i.Health.Code)},
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
		{"when idle", idleText(i.Idle)},
		{"ends", moment(i.ExpiresAt)},
	}
	fields = append(fields, guestFields(i)...)
	if i.Guest.AgentVersion != "" {
		fields = append(fields,
			[2]string{"agent", fmt.Sprintf("%s, %s, answered after %d ms", i.Guest.AgentVersion, i.Guest.Containment, i.Guest.BootMs)})
	}
	if i.Restarts > 0 {
		fields = append(fields, [2]string{"restarts", strconv.Itoa(i.Restarts)})
	}
	return append(fields,
		[2]string{"A2A address", i.A2aUrl},
		[2]string{"agent card", i.AgentCardUrl},
		[2]string{"host", i.Host},
		[2]string{"created", moment(i.CreatedAt)},
		[2]string{"changed", moment(i.UpdatedAt)},
	)
}

// guestFields are what the guest says it is.
func guestFields(i managementv1.Instance) [][2]string {
	if i.Guest.Os == "" && i.Guest.Kernel == "" {
		return nil
	}
	return [][2]string{{"guest", fmt.Sprintf("%s, kernel %s", i.Guest.Os, i.Guest.Kernel)}}
}

func idleText(i managementv1.Idle) string {
	if i.Action == "" {
		return ""
	}
	text := i.Action + " after " + i.Timeout
	if i.Wake {
		text += ", wake when used"
	}
	return text
}
