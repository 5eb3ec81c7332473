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
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

func (a *app) loadoutsCommand() *cobra.Command {
	cmd := a.loadoutsLsCommand("loadouts")
	cmd.GroupID = groupHost
	cmd.AddCommand(a.loadoutsLsCommand("ls"), a.loadoutsShowCommand(), a.loadoutsValidateCommand())
	return cmd
}

func (c *connection) loadouts(ctx context.Context) ([]managementv1.Loadout, error) {
	list, err := fetch[managementv1.LoadoutList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.api.ListLoadouts(ctx)
	})
	return list.Items, err
}

func (a *app) loadoutsLsCommand(use string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: "List the loadouts of the catalog", Args: cobra.NoArgs,
		RunE: a.looking(func(ctx context.Context, c *connection, _ []string) (result, error) {
			all, err := c.loadouts(ctx)
			return result{
				value: managementv1.LoadoutList{Items: all},
				names: namesOf(all, func(l managementv1.Loadout) string { return l.Name }),
				table: func(wide bool) [][]string {
					head := []string{"NAME", "DESCRIPTION"}
					if wide {
						head = append(head, "LABELS", "HASH")
					}
					table := [][]string{head}
					for _, l := range all {
						row := []string{l.Name, strings.TrimSpace(l.Description)}
						if wide {
							row = append(row, pairs(l.Labels), l.Hash)
						}
						table = append(table, row)
					}
					return table
				},
			}, err
		}),
	}
}

func (a *app) loadoutsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show LOADOUT", Short: "Show one loadout with its parents combined", Args: cobra.ExactArgs(1),
		Long: "Show one loadout with its parents combined: a name of the catalog, or a file as\n" +
			"`sandboxctl up` takes it.",
		ValidArgsFunction: a.completing(loadoutsAndFiles),
		RunE: a.looking(func(ctx context.Context, c *connection, args []string) (result, error) {
			l, err := c.loadout(ctx, args[0])
			return result{value: l, names: []string{l.Name}, text: terminal.Text(l.Content)}, err
		}),
	}
}

// loadout resolves one of the catalog, or a file.
func (c *connection) loadout(ctx context.Context, arg string) (managementv1.Loadout, error) {
	if !namesFile(arg) {
		l, err := fetch[managementv1.Loadout](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.api.GetLoadout(ctx, arg)
		})
		return l, unknownLoadout(err)
	}
	v, err := c.validate(ctx, arg)
	if err == nil && !v.Valid {
		err = invalidLoadout(arg, v.Errors)
	}
	return v.Loadout, err
}

const codeNoLoadout = "loadout.not_found"

func unknownLoadout(err error) error {
	return unknown(err, codeNoLoadout, "sandboxctl loadouts shows what there is; a file is written like ./my-loadout.yaml")
}

func (c *connection) validate(ctx context.Context, arg string) (managementv1.LoadoutValidation, error) {
	source, err := loadoutSource(arg)
	if err != nil {
		return managementv1.LoadoutValidation{}, err
	}
	v, err := fetch[managementv1.LoadoutValidation](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.api.ValidateLoadout(ctx, nil, source)
	})
	return v, unknownLoadout(err)
}

// invalidLoadout is the error that tells every broken rule and its place.
func invalidLoadout(arg string, broken []managementv1.LoadoutFinding) error {
	all := []error{fmt.Errorf("loadout %q is not valid", arg)}
	for _, f := range broken {
		all = append(all, errors.New("  "+findingText(f)))
	}
	return &exitError{exitRefused, errors.Join(all...)}
}

// findingText is "file:line:col: field: rule", as editors understand it.
func findingText(f managementv1.LoadoutFinding) string {
	text := f.File
	if f.Line > 0 {
		text += ":" + strconv.Itoa(f.Line) + ":" + strconv.Itoa(max(f.Column, 1))
	}
	if f.Field != "" {
		text += ": " + f.Field
	}
	return text + ": " + inCommands(f.Rule)
}

func (a *app) loadoutsValidateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "validate LOADOUT...", Short: "Check loadouts and say every broken rule and its place",
		Long: "Check loadouts, each a file as `sandboxctl up` takes it or a name of the catalog.\n" +
			"Every broken rule is one line, file:line:column: field: rule, on standard output.\n" +
			"A warning tells what this server lacks for it now, such as an image or a provider.\n\n" +
			"Exit status: 0 when all are valid, 6 when one is not.",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completing(loadoutsAndFiles),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			type verdict struct {
				Name string `json:"name"`
				managementv1.LoadoutValidation
			}
			var (
				all      []verdict
				failures []error
				valid    = true
			)
			for _, arg := range args {
				v, err := c.validate(cmd.Context(), arg)
				if err != nil {
					failures = append(failures, err)
					continue
				}
				valid = valid && v.Valid
				all = append(all, verdict{arg, v})
			}
			var text strings.Builder
			for _, v := range all {
				for _, f := range v.Errors {
					text.WriteString(terminal.Line(findingText(f)) + "\n")
				}
				for _, f := range v.Warnings {
					text.WriteString(terminal.Line("warning: "+findingText(f)) + "\n")
				}
				if v.Valid {
					text.WriteString(terminal.Line(v.Name) + " is valid\n")
				}
			}
			var names []string
			for _, v := range all {
				if !v.Valid {
					names = append(names, v.Name)
				}
			}
			if err := a.print(result{value: map[string]any{"items": all}, names: names, text: text.String()}); err != nil {
				return err
			}
			if err := joined(failures); err != nil || valid {
				return err
			}
			return &exitError{code: exitRefused}
		},
	}
}
