package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

func (a *app) logsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logs NAME", GroupID: groupMachines,
		Short: "Show a machine's console and what the hypervisor says",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			resp, err := c.api.GetInstanceLogs(ctx, args[0], func(_ context.Context, r *http.Request) error {
				r.Header.Set("Accept", "application/json")
				return nil
			})
			log, err := receive[managementv1.InstanceLog](c, resp, err)
			if err != nil {
				return unknownInstance(err)
			}
			if a.format != formatTable && a.format != formatWide {
				return a.print(result{value: log, names: []string{args[0]}})
			}
			return a.printLog(log)
		},
	}
}

// printLog prints what is most telling last, where the eye is.
func (a *app) printLog(log managementv1.InstanceLog) error {
	text := terminal.Text
	if !isTerminal(a.stdout) {
		text = func(s string) string { return s } // a file wants it as it is
	}
	if err := printFields(a.stdout, append([][2]string{{"state", log.State}}, sorted(log.Facts)...)); err != nil {
		return err
	}
	for _, section := range [][2]string{{"hypervisor", log.Hypervisor}, {"console", log.Console}} {
		body := strings.TrimRight(text(section[1]), "\n")
		if body == "" {
			body = "(nothing)"
		}
		if _, err := fmt.Fprintf(a.stdout, "\n--- %s ---\n%s\n", section[0], body); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
	}
	return nil
}

func (a *app) cardCommand() *cobra.Command {
	var verify bool
	cmd := &cobra.Command{
		Use: "card NAME", GroupID: groupWork,
		Short: "Show a machine's AgentCard",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, agent, err := a.machine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			ctx, cancel := withDeadline(cmd.Context())
			defer cancel()
			card, err := agent.Card(ctx)
			if err != nil {
				return fmt.Errorf("cannot fetch card: %w", err)
			}
			if verify {
				c, err := a.connect()
				if err != nil {
					return err
				}
				return a.verifyCard(ctx, c, card)
			}
			if a.format == formatName {
				var name struct {
					Name string `json:"name"`
				}
				if err := json.Unmarshal(card, &name); err != nil {
					return fmt.Errorf("cannot read card: %w", err)
				}
				return a.print(result{names: []string{name.Name}})
			}
			if a.format == formatYAML {
				return printYAML(a.stdout, card)
			}
			return printJSON(a.stdout, card)
		},
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "check the card's signature instead of showing it; fails if it does not hold")
	return cmd
}
