package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/cmdline"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

type eventOptions struct {
	instance string
	types    []string
	follow   bool
	after    int64
	tail     int
}

func (a *app) eventsCommand() *cobra.Command {
	var o eventOptions
	cmd := &cobra.Command{
		Use: "events", GroupID: groupHost,
		Short: "Show what happened, oldest first, and follow what happens",
		Long: "Show what happened, oldest first. Events are numbered without gaps.\n\n" +
			"With --follow they come as they happen, from now on or behind the one that\n" +
			"--after names; when the connection breaks it goes on where it was. -o json\n" +
			"prints one line for each event then.",
		Example: "  sandboxctl events --instance dev --tail 20\n" +
			"  sandboxctl events --follow --after 0 --type instance.phase --type instance.fault -o json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed
			switch {
			case o.after < 0:
				return usagef("give the number of an event, or 0 for all that are kept", "cannot begin behind event %d", o.after)
			case o.follow && given("tail"):
				return usagef("begin behind an event with --after", "cannot use --tail with --follow")
			case o.follow:
				return a.followFleet(cmd.Context(), o, given("after"))
			}
			return a.looking(func(ctx context.Context, c *connection, _ []string) (result, error) {
				all, err := c.listEvents(ctx, o)
				return result{
					value: managementv1.EventList{Items: all}, names: namesOf(all, eventName),
					table: func(wide bool) [][]string {
						table := [][]string{eventTitles(wide)}
						for _, e := range all {
							table = append(table, eventRow(e, wide))
						}
						return table
					},
				}, unknownInstance(err)
			})(cmd, args)
		},
	}
	f := cmd.Flags()
	cmdline.Once(f, &o.instance, "instance", "only those of this machine, by name or id; of one that is gone, by id")
	f.StringArrayVar(&o.types, "type", nil, "only those of this `type`, such as instance.phase (repeatable)")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what happens, until interrupted")
	f.Int64Var(&o.after, "after", 0, "begin behind the event with this `number`")
	f.IntVar(&o.tail, "tail", 0, "only the last ones, this many; 0 for all")
	a.completeFlag(cmd, "instance", instanceNames)
	a.completeFlag(cmd, "type", fixed(eventTypes()...))
	return cmd
}

// eventTypes are those of the server, for completion only: it may have more.
func eventTypes() []string {
	return []string{
		"instance.created", "instance.phase", "instance.deleted", "instance.fault", "instance.recovered",
		"instance.renewed", "instance.labels", "operation.created", "operation.changed", "operation.ended", "fleet.orphan",
	}
}

// listEvents fetches what is kept.
func (c *connection) listEvents(ctx context.Context, o eventOptions) ([]managementv1.Event, error) {
	params := managementv1.ListEventsParams{Type: o.types, Instance: given(o.instance), Limit: given(maxPage)}
	all, err := everything("events", 0, func(cursor *string) ([]managementv1.Event, string, error) {
		params.Cursor = cursor
		page, err := fetch[managementv1.EventList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.api.ListEvents(ctx, &params)
		})
		return page.Items, page.NextCursor, err
	})
	for len(all) > 0 && all[0].Seq <= o.after {
		all = all[1:]
	}
	if o.tail > 0 && len(all) > o.tail {
		all = all[len(all)-o.tail:]
	}
	return all, err
}

func (a *app) followFleet(ctx context.Context, o eventOptions, from bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	var (
		f      = flow{a: a}
		wide   = a.format == formatWide
		broken bool
	)
	q := eventQuery{
		instance: o.instance, types: o.types,
		opened: func() error { broken = false; return nil },
		broke: func(error) error {
			if !broken { // once, not at every attempt
				a.note("the stream broke; going on as soon as the server answers")
			}
			broken = true
			return nil
		},
	}
	if from {
		q.after = &o.after
	}
	// Room for the usual, so that columns seldom move.
	room := []string{"00000", "2026-01-02T15:04:05+00:00", "operation.changed", "sandbox-name", "provisioning", "succeeded", ""}
	if err := f.titles(eventTitles(wide), [][]string{room}); err != nil {
		return err
	}
	err = c.followEvents(ctx, q, func(e managementv1.Event) error {
		return f.print(e, eventName(e), eventRow(e, wide))
	})
	return unknown(unknownInstance(a.endless(err)), codeEventsGone, "begin with what is kept: sandboxctl events --follow --after 0")
}

func eventName(e managementv1.Event) string { return strconv.FormatInt(e.Seq, 10) }

func eventTitles(wide bool) []string {
	head := []string{"EVENT", "AT", "TYPE", "MACHINE", "STATE", "REASON", "MESSAGE"}
	if wide {
		head = append(head, "MACHINE ID", "REQUEST")
	}
	return head
}

func eventRow(e managementv1.Event, wide bool) []string {
	row := []string{eventName(e), moment(e.At), e.Type, e.InstanceName, string(e.State), e.Reason, e.Message}
	if wide {
		row = append(row, e.InstanceId, e.OperationId)
	}
	return row
}

func (a *app) consoleCommand() *cobra.Command {
	var (
		follow bool
		tail   int
	)
	cmd := &cobra.Command{
		Use: "console NAME", GroupID: groupMachines,
		Short: "Show a machine's console, and follow it",
		Long: "Show the end of a machine's console, and with --follow also what comes, until the\n" +
			"machine is removed or you interrupt. The guest writes it: it proves nothing.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if tail < 0 {
				return usagef("give a number of lines, or 0 for none of what there is", "cannot show %d lines", tail)
			}
			return a.endless(a.console(cmd.Context(), args[0], follow, tail))
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what the guest writes")
	cmd.Flags().IntVar(&tail, "tail", 1000, "how many `lines` of what there is")
	return cmd
}

func (a *app) console(ctx context.Context, ref string, follow bool, tail int) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	if !follow {
		limited, cancel := withDeadline(ctx)
		defer cancel()
		ctx = limited
	}
	i, err := c.instance(ctx, ref)
	if err != nil {
		return err
	}
	if !a.forPeople() {
		return a.consoleDocument(ctx, c, i, follow, tail)
	}
	if !follow {
		_, err := a.copyConsole(ctx, c, i.Id, follow, tail)
		return err
	}
	return a.followConsole(ctx, c, i, tail)
}

// followConsole goes on until the machine is no more.
func (a *app) followConsole(ctx context.Context, c *connection, i managementv1.Instance, tail int) error {
	r := reopening{what: "the console of " + i.Name}
	for {
		n, err := a.copyConsole(ctx, c, i.Id, true, tail)
		if n > 0 {
			r.progressed()
		}
		var problem *problemError
		now, gone := c.instance(ctx, i.Id)
		if errors.As(gone, &problem) && problem.Code == codeNoInstance || now.State == managementv1.InstanceDeleting {
			return nil
		}
		tail = 0 // a stream that breaks goes on with what comes
		if err := r.after(ctx, err); err != nil {
			return unknownInstance(err)
		}
	}
}

// consoleDocument prints the console for programs.
func (a *app) consoleDocument(ctx context.Context, c *connection, i managementv1.Instance, follow bool, tail int) error {
	if follow {
		return usagef("leave out --output: what the guest writes has no other form", "cannot follow a console as %s", a.format)
	}
	text, err := c.consoleText(ctx, i.Id, tail)
	if err != nil {
		return err
	}
	return a.print(result{value: map[string]string{"name": i.Name, "id": i.Id, "console": text}, names: []string{i.Name}})
}

// copyConsole prints what comes. A character that two pieces share is not torn.
func (a *app) copyConsole(ctx context.Context, c *connection, id string, follow bool, tail int) (int64, error) {
	var (
		printed int64
		torn    []byte
	)
	err := c.readConsole(ctx, id, follow, tail, func(piece []byte) error {
		text := string(append(torn, piece...))
		whole := wholeRunes(text)
		torn = []byte(text[whole:])
		n, err := io.WriteString(a.stdout, a.shown(text[:whole]))
		printed += int64(n)
		if err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
		return nil
	})
	if len(torn) > 0 {
		fmt.Fprint(a.stdout, a.shown(string(torn)))
	}
	return printed, err
}

// shown is foreign text as it may be shown: a file wants it as it is.
func (a *app) shown(text string) string {
	if isTerminal(a.stdout) {
		return terminal.Text(text)
	}
	return text
}

// wholeRunes is how much of a text can be shown before more of it comes.
func wholeRunes(text string) int {
	for i := max(0, len(text)-utf8.UTFMax+1); i < len(text); i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRuneInString(text[i:]) {
			return i
		}
	}
	return len(text)
}
