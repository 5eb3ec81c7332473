package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

func tokensCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "tokens",
		Short: "Manage who may use the daemon",
		Long: `Manage who may use the daemon. A running daemon takes a change at the next
request, without a restart.`,
		Args: cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVar(&dir, "state-dir", "", "directory of all state (default: SANDBOX_STATE_DIR, else "+stateDirHelp()+")")
	cmd.AddCommand(addTokenCommand(&dir), listTokensCommand(&dir), removeTokenCommand(&dir))
	return cmd
}

func addTokenCommand(dir *string) *cobra.Command {
	var (
		scopes  []string
		tenant  string
		expires time.Duration
	)
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a token and print it, this once",
		Long: `Make a token and print it on standard output, this once: only its hash is kept.

Give it to its user as SANDBOX_TOKEN, or in a file of mode 0600 for sandboxctl
--token-file.`,
		Example: "  sandboxd tokens add ci --scope fleet:read --scope agents:invoke --expires 720h",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t := auth.Token{Name: args[0], Tenant: tenant}
			for _, s := range scopes {
				t.Scopes = append(t.Scopes, auth.Scope(s))
			}
			if cmd.Flags().Changed("expires") {
				if expires < time.Second {
					return fmt.Errorf("--expires %v: want a second at least, such as 720h", expires)
				}
				t.Expires = time.Now().Add(expires).UTC().Truncate(time.Second)
			}
			state, err := stateDir(*dir)
			if err != nil {
				return err
			}
			clear, err := auth.Add(state, t)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), clear); err != nil {
				return fmt.Errorf("cannot print the token, remove it with `sandboxd tokens rm %s`: %w", t.Name, err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&scopes, "scope", nil, "what it may do, once for each `SCOPE`: "+scopeNames(auth.Scopes(), ", "))
	f.StringVar(&tenant, "tenant", "", "whose machines it sees (default: "+instance.DefaultTenant+")")
	f.DurationVar(&expires, "expires", 0, "how long it is good, such as 720h (default: until it is removed)")
	return cmd
}

func listTokensCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the tokens by name",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := stateDir(*dir)
			if err != nil {
				return err
			}
			all, err := auth.List(state)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "NAME\tTENANT\tSCOPES\tCREATED\tEXPIRES") // Flush tells
			for _, t := range all {
				expires := "never"
				if !t.Expires.IsZero() {
					expires = t.Expires.Format(time.RFC3339)
				}
				if !t.Expires.IsZero() && !t.Expires.After(time.Now()) {
					expires += " (expired)"
				}
				tenant := auth.Principal{Tenant: t.Tenant}.TenantOrDefault()
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.Name, tenant, scopeNames(t.Scopes, ","),
					t.Created.Format(time.RFC3339), expires)
			}
			return w.Flush()
		},
	}
}

func removeTokenCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "Make a token worthless; streams that are open go on",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			state, err := stateDir(*dir)
			if err != nil {
				return err
			}
			if err := auth.Remove(state, args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "token %s removed\n", args[0])
			return err
		},
	}
}

func scopeNames(scopes []auth.Scope, between string) string {
	names := make([]string, 0, len(scopes))
	for _, s := range scopes {
		names = append(names, string(s))
	}
	return strings.Join(names, between)
}
