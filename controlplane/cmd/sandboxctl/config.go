package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/settings"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

const configLong = `Keep the servers you work with, each under the name of a context.

The file is config.yaml in agentic-sandbox below $XDG_CONFIG_HOME (~/.config),
or what SANDBOX_CONFIG names; only its owner can read it. Tokens stay in files
of their own unless --token-stdin is given, and are never shown.

What says where the server is, first one wins:
  --server, --state-dir
  --context
  SANDBOX_SERVER, SANDBOX_STATE_DIR
  SANDBOX_CONTEXT
  the current context
  the server of this host, found by its state directory

The token is that of --token-file, of --context, of SANDBOX_TOKEN, of the
context in use, or of this host's server, in this order. A context's token goes
to that context's server only.`

func (a *app) configCommand() *cobra.Command {
	cmd := group("config", groupHost, "Keep the servers you work with, by name",
		a.configGetContexts(), a.configUseContext(), a.configSetContext(), a.configDeleteContext(), a.configView())
	cmd.Long = configLong
	return cmd
}

// readSettings reads the configuration and says how to mend it.
func readSettings() (settings.File, string, error) {
	path, err := settings.Path()
	if err != nil {
		return settings.File{}, "", err
	}
	f, err := settings.Read(path)
	if err = mendSettings(err); err != nil && remedyOf(err) == "" && !errors.Is(err, fs.ErrPermission) {
		err = withRemedy(err, "correct that file, or move it away and keep the servers anew: sandboxctl config set-context --help")
	}
	return f, path, err
}

func mendSettings(err error) error {
	var open *settings.OpenError
	switch {
	case errors.As(err, &open):
		return withRemedy(err, "chmod 600 "+open.Path)
	case errors.Is(err, settings.ErrNoContext):
		return &exitError{exitNotFound, withRemedy(err, "sandboxctl config get-contexts shows what there is")}
	}
	return err
}

// contextView is a context as it may be shown.
type contextView struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	settings.Context
	// Token says that there is one, never which.
	Token string `json:"token,omitempty"`
}

const hidden = "(hidden)"

func contextViews(f settings.File) []contextView {
	all := []contextView{}
	for _, name := range f.Names() {
		v := contextView{Name: name, Current: name == f.Current, Context: f.Contexts[name]}
		if v.Context.Token != "" {
			v.Token = hidden
		}
		v.Context.Token = ""
		all = append(all, v)
	}
	return all
}

func (a *app) configGetContexts() *cobra.Command {
	return &cobra.Command{
		Use: "get-contexts", Short: "List the contexts", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			f, _, err := readSettings()
			if err != nil {
				return err
			}
			all := contextViews(f)
			return a.print(result{
				value: map[string]any{"items": all},
				names: namesOf(all, func(v contextView) string { return v.Name }),
				table: rows([]string{"CURRENT", "NAME", "SERVER", "TOKEN"}, all, func(v contextView) []string {
					current := ""
					if v.Current {
						current = "*"
					}
					server := v.Server
					if server == "" {
						server = "of " + v.StateDir
					}
					return []string{current, v.Name, server, cmp.Or(v.TokenFile, v.Token)}
				}),
			})
		},
	}
}

func (a *app) configUseContext() *cobra.Command {
	return &cobra.Command{
		Use: "use-context NAME", Short: "Make a context the current one", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completing(one(contextNames)),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeSettings(args[0], "is the current context", func(f *settings.File) error {
				_, err := f.Get(args[0])
				f.Current = args[0]
				return err
			})
		},
	}
}

// changeSettings changes the file and says so.
func (a *app) changeSettings(name, done string, change func(*settings.File) error) error {
	path, err := settings.Path()
	if err != nil {
		return err
	}
	if err := settings.Change(path, change); err != nil {
		return mendSettings(err)
	}
	return a.print(result{value: map[string]string{"name": name}, names: []string{name}, text: "context " + name + " " + done})
}

func (a *app) configSetContext() *cobra.Command {
	var tokenStdin, use bool
	cmd := &cobra.Command{
		Use: "set-context NAME", Short: "Make or change a context", Args: cobra.ExactArgs(1),
		Long: "Make a context, or change what is given of one, by --server, --token-file and\n" +
			"--state-dir. An empty text takes a setting away.",
		Example: "  sandboxctl config set-context prod --server https://sandbox.example --token-file ~/.prod.token --use\n" +
			"  pass sandbox | sandboxctl config set-context prod --token-stdin",
		ValidArgsFunction: a.completing(one(contextNames)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := settings.CheckName(args[0]); err != nil {
				return &exitError{exitUsage, err}
			}
			change, err := a.contextChange(cmd, tokenStdin)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("token-file") && a.tokenFile != "" {
				a.warnOfToken(a.tokenFile)
			}
			return a.changeSettings(args[0], "set", func(f *settings.File) error {
				c := f.Contexts[args[0]]
				change(&c)
				if err := c.Check(); err != nil {
					return usagef("see: sandboxctl config set-context --help", "cannot set context %q: %w", args[0], err)
				}
				f.Contexts[args[0]] = c
				if use {
					f.Current = args[0]
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&tokenStdin, "token-stdin", false, "keep the token in the configuration, read from standard input")
	cmd.Flags().BoolVar(&use, "use", false, "make it the current context as well")
	return cmd
}

// warnOfToken says what will keep a token file from being used. It may be
// written later, so that is no error.
func (a *app) warnOfToken(path string) {
	if _, err := readToken(path); err != nil {
		a.note("warning: %s\n  %s", terminal.Text(err.Error()), terminal.Text(inCommands(remedyOf(err))))
	}
}

const maxToken = 4096

// contextChange is what the flags change of a context.
func (a *app) contextChange(cmd *cobra.Command, tokenStdin bool) (func(*settings.Context), error) {
	changed := cmd.Flags().Changed
	tokenFile, stateDir, token := a.tokenFile, a.stateDir, ""
	for _, path := range []*string{&tokenFile, &stateDir} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return nil, fmt.Errorf("cannot set context: %w", err)
		}
		*path = abs
	}
	if tokenStdin {
		if changed("token-file") {
			return nil, usagef("choose one of --token-file and --token-stdin", "cannot keep two tokens")
		}
		data, err := io.ReadAll(io.LimitReader(a.stdin, maxToken+1))
		if err != nil {
			return nil, fmt.Errorf("cannot read token: %w", err)
		}
		if token = strings.TrimSpace(string(data)); token == "" || len(data) > maxToken || strings.ContainsAny(token, " \t\r\n") {
			return nil, usagef("give nothing but the token", "cannot read token: want one word of at most %d bytes", maxToken)
		}
	}
	return func(c *settings.Context) {
		if changed("server") {
			c.Server = strings.TrimRight(a.server, "/")
		}
		if changed("state-dir") {
			c.StateDir = stateDir
		}
		if changed("token-file") {
			c.TokenFile, c.Token = tokenFile, ""
		}
		if tokenStdin {
			c.TokenFile, c.Token = "", token
		}
	}, nil
}

func (a *app) configDeleteContext() *cobra.Command {
	return &cobra.Command{
		Use: "delete-context NAME", Short: "Forget a context", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completing(one(contextNames)),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeSettings(args[0], "deleted", func(f *settings.File) error {
				if _, err := f.Get(args[0]); err != nil {
					return err
				}
				delete(f.Contexts, args[0])
				if f.Current == args[0] {
					f.Current = ""
				}
				return nil
			})
		},
	}
}

func (a *app) configView() *cobra.Command {
	return &cobra.Command{
		Use: "view", Short: "Show the configuration without its tokens", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			f, path, err := readSettings()
			if err != nil {
				return err
			}
			for name, c := range f.Contexts {
				if c.Token != "" {
					c.Token = hidden
				}
				f.Contexts[name] = c
			}
			text, err := yaml.Marshal(f)
			if err != nil {
				return fmt.Errorf("cannot print: %w", err)
			}
			return a.print(result{
				value: struct {
					Path     string        `json:"path"`
					Current  string        `json:"current_context,omitempty"`
					Contexts []contextView `json:"contexts"`
				}{path, f.Current, contextViews(f)},
				names: f.Names(),
				text:  "# " + path + "\n" + string(text),
			})
		},
	}
}
