package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// providerRows are the rows of providers, for `providers` and doctor.
func providerRows(providers []managementv1.Provider) func(bool) [][]string {
	return rows([]string{"PROVIDER", "RUNTIME", "AVAILABLE", "ACCEL", "VSOCK", "VERSIONS", "WHY"}, providers,
		func(p managementv1.Provider) []string {
			available := yesNo(p.Available)
			if p.Default {
				available += ", default"
			}
			var why []string
			for _, reason := range []string{p.Reason, p.AcceleratorReason, p.VsockReason} {
				if reason != "" {
					why = append(why, reason)
				}
			}
			return []string{p.Name, p.Runtime, available, p.Accelerator, p.Vsock, pairs(p.Versions), strings.Join(why, "; ")}
		})
}

func (a *app) providersCommand() *cobra.Command {
	return &cobra.Command{
		Use: "providers", GroupID: groupHost, Short: "List what runs machines here, and why something does not", Args: cobra.NoArgs,
		RunE: a.looking(func(ctx context.Context, c *connection, _ []string) (result, error) {
			list, err := fetch[managementv1.ProviderList](ctx, c, func(ctx context.Context) (*http.Response, error) {
				return c.api.ListProviders(ctx)
			})
			return result{
				value: list,
				names: namesOf(list.Items, func(p managementv1.Provider) string { return p.Name }),
				table: func(wide bool) [][]string {
					table := providerRows(list.Items)(wide)
					if wide {
						table[0] = append(table[0], "CAN", "WHAT TO DO")
						for i, p := range list.Items {
							table[i+1] = append(table[i+1], strings.Join(p.Operations, ","), p.Remediation)
						}
					}
					return table
				},
			}, err
		}),
	}
}

func (a *app) imagesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "images", GroupID: groupHost, Short: "List the images that machines boot from", Args: cobra.NoArgs,
		RunE: a.looking(func(ctx context.Context, c *connection, _ []string) (result, error) {
			list, err := fetch[managementv1.ImageList](ctx, c, func(ctx context.Context) (*http.Response, error) {
				return c.api.ListImages(ctx)
			})
			return result{
				value: list,
				names: namesOf(list.Items, func(i managementv1.Image) string { return i.Name }),
				table: rows([]string{"NAME", "SIZE", "PACKAGES", "AGE", "REFERENCE"}, list.Items, func(i managementv1.Image) []string {
					return []string{i.Name, size(i.Size), strconv.Itoa(i.Packages), age(i.BuiltAt), i.Ref}
				}),
			}, err
		}),
	}
}

func (a *app) orphansCommand() *cobra.Command {
	cmd := a.orphansLsCommand("orphans")
	cmd.GroupID = groupHost
	rm := &cobra.Command{
		Use: "rm ID...", Short: "Remove orphans and all their files now; there is no way back", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completing(many(orphanIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var failures []error
			f := flow{a: a}
			for _, id := range args {
				_, err := fetch[nothing](cmd.Context(), c, func(ctx context.Context) (*http.Response, error) {
					return c.api.RemoveOrphan(ctx, id, nil)
				})
				if err != nil {
					failures = append(failures, unknown(err, "orphan.not_found", "sandboxctl orphans shows what there is"))
					continue
				}
				if a.forPeople() {
					fmt.Fprintln(a.stdout, id+" removed")
				} else if err := f.print(map[string]string{"id": id, "state": "removed"}, id, nil); err != nil {
					return err
				}
			}
			return joined(failures)
		},
	}
	cmd.AddCommand(a.orphansLsCommand("ls"), rm)
	return cmd
}

// nothing is an answer without content.
type nothing struct{}

func (a *app) orphansLsCommand(use string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: "List machines and files that belong to no instance", Args: cobra.NoArgs,
		RunE: a.looking(func(ctx context.Context, c *connection, _ []string) (result, error) {
			list, err := c.orphans(ctx)
			return result{
				value: list,
				names: namesOf(list.Items, func(o managementv1.Orphan) string { return o.Id }),
				table: rows([]string{"ID", "NAME", "PROVIDER", "RUNNING", "FOUND", "REMOVED IN", "NOTE"}, list.Items,
					func(o managementv1.Orphan) []string {
						return []string{o.Id, o.Name, o.Provider, yesNo(o.Running), age(o.Since),
							cmp.Or(until(o.RemoveAfter), "never"), o.Note}
					}),
			}, err
		}),
	}
}

func (c *connection) orphans(ctx context.Context) (managementv1.OrphanList, error) {
	return fetch[managementv1.OrphanList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.api.ListOrphans(ctx)
	})
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", GroupID: groupHost, Short: "Show the versions of client and server", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			type versions struct {
				Client string `json:"client"`
				Go     string `json:"go"`
				Server string `json:"server,omitempty"`
				// NoServer says why there is no version of a server.
				NoServer string `json:"no_server,omitempty"`
			}
			v := versions{Client: version, Go: runtime.Version()}
			if server, err := a.serverVersion(cmd.Context()); err != nil {
				v.NoServer = err.Error()
			} else {
				v.Server = server
			}
			server := v.Server
			if v.NoServer != "" {
				server = "unknown: " + v.NoServer
			}
			return a.print(result{value: v, names: []string{v.Client}, table: func(bool) [][]string {
				return [][]string{{"client", v.Client}, {"server", server}}
			}})
		},
	}
}

func (a *app) serverVersion(ctx context.Context) (string, error) {
	c, err := a.connect()
	if err != nil {
		return "", err
	}
	v, err := fetch[managementv1.Version](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.api.GetVersion(ctx) })
	return v.Version, err
}
