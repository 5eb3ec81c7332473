package main

import (
	"fmt"
	"time"

	"github.com/gorilla/mux"
	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/signing"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/specs"
)

// keySetPath is where the keys that cards verify with are served.
const keySetPath = "/.well-known/jwks.json"

// public adds what needs no token.
func (d *daemon) public(r *mux.Router) {
	r.PathPrefix(specs.Prefix).Handler(d.specs)
	r.Handle(keySetPath, d.keys)
	// Beside each card, too: the same set whatever the id, so it tells nothing
	// of which there are.
	r.Handle("/agents/{id}"+keySetPath, d.keys)
}

func keysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Manage the keys that AgentCards are signed with",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(rotateKeysCommand())
	return cmd
}

func rotateKeysCommand() *cobra.Command {
	var (
		dir   string
		grace time.Duration
	)
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Sign cards with a new key from now on",
		Long: `Sign cards with a new key from now on. A running daemon notices by itself.

For --grace the old key stays published and signs beside the new one: cards that
were fetched before still verify, and new ones do with a key set that was
fetched before. So the grace should outlast the five minutes that key sets are
cached. Then the old key is destroyed; if it has leaked, --grace 0 destroys and
revokes it at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if grace < 0 {
				return fmt.Errorf("--grace %v: must not be negative", grace)
			}
			if dir, err = stateDir(dir); err != nil {
				return err
			}
			r, err := signing.Rotate(dir, grace, time.Now())
			if err != nil {
				return err
			}
			until := "is revoked"
			if grace > 0 {
				until = "signs beside it until " + r.PublishedUntil.Format(time.RFC3339)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "signing with key %s\nkey %s %s\n", r.New, r.Old, until)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "state-dir", "", "directory of all state (default: SANDBOX_STATE_DIR, else "+stateDirHelp()+")")
	cmd.Flags().DurationVar(&grace, "grace", signing.DefaultGrace, "how long the old key stays published and signs too")
	return cmd
}
