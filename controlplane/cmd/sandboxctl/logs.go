package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

func (a *app) logsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logs NAME", GroupID: groupMachines,
		Short: "Show a machine's console and what the hypervisor says",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: a.looking(func(ctx context.Context, c *connection, args []string) (result, error) {
			log, err := fetch[managementv1.InstanceLog](ctx, c, func(ctx context.Context) (*http.Response, error) {
				return c.api.GetInstanceLogs(ctx, args[0], func(_ context.Context, r *http.Request) error {
					r.Header.Set("Accept", "application/json")
					return nil
				})
			})
			return result{
				value: log, names: args[:1],
				fields: append([][2]string{{"state", log.State}}, sorted(log.Facts)...),
				text:   a.logText(log),
			}, unknownInstance(err)
		}),
	}
}

// logText puts what is most telling last, where the eye is.
func (a *app) logText(log managementv1.InstanceLog) string {
	var b strings.Builder
	for _, section := range [][2]string{{"hypervisor", log.Hypervisor}, {"console", log.Console}} {
		fmt.Fprintf(&b, "\n--- %s ---\n%s\n", section[0], first(strings.TrimRight(a.shown(section[1]), "\n"), "(nothing)"))
	}
	return b.String()
}

// readConsole reads a machine's console piece by piece.
func (c *connection) readConsole(ctx context.Context, id string, follow bool, tail int, each func([]byte) error) error {
	resp, err := c.api.GetInstanceConsole(ctx, id, &managementv1.GetInstanceConsoleParams{Follow: given(follow), Tail: &tail})
	if err != nil {
		return c.explain(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxEvent))
		if err != nil {
			return c.explain(err)
		}
		return problemOf(resp, body)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if err := each(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return c.explain(err)
		}
	}
}

// consoleText reads the end of a console.
func (c *connection) consoleText(ctx context.Context, id string, tail int) (string, error) {
	var b strings.Builder
	err := c.readConsole(ctx, id, false, tail, func(piece []byte) error {
		if b.Len()+len(piece) > maxAnswer {
			return fmt.Errorf("cannot read console: it is longer than %d bytes", maxAnswer)
		}
		b.Write(piece)
		return nil
	})
	return b.String(), err
}

func (a *app) cardCommand() *cobra.Command {
	var verify bool
	cmd := &cobra.Command{
		Use: "card NAME", GroupID: groupWork,
		Short: "Show a machine's AgentCard, or verify its signature",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: a.completing(one(instanceNames)),
		RunE: a.asking(func(ctx context.Context, m *machine, _ []string) (result, error) {
			card, err := m.agent.Card(ctx)
			if err != nil {
				return result{}, fmt.Errorf("cannot fetch card: %w", err)
			}
			if verify {
				return verifyCard(ctx, m.conn, card)
			}
			var named struct {
				Name string `json:"name"`
			}
			if err := json.Unmarshal(card, &named); err != nil {
				return result{}, fmt.Errorf("cannot read card: %w", err)
			}
			text, err := jsonText(card)
			return result{value: card, names: []string{named.Name}, text: string(text)}, err
		}),
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "check the card's signature instead of showing it; fails if it does not hold")
	return cmd
}
