package main

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// completionTimeout is how long a shell waits for words; without an answer
// there are none.
const completionTimeout = 2 * time.Second

// words finds what may stand next on the command line. A word may have a
// description behind a tab.
type words func(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective)

// completing makes words of a command's arguments.
func (a *app) completing(w words) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		all, directive := w(ctx, a, args)
		var fit []string
		for _, word := range all {
			// What a server says goes to a shell: nothing but harmless lines.
			name, about, _ := strings.Cut(word, "\t")
			if !strings.HasPrefix(name, begun) || name != terminal.Line(name) {
				continue
			}
			fit = append(fit, strings.TrimSuffix(name+"\t"+terminal.Line(about), "\t"))
		}
		return fit, directive
	}
}

func (a *app) completeFlag(cmd *cobra.Command, flag string, w words) {
	if err := cmd.RegisterFlagCompletionFunc(flag, a.completing(w)); err != nil {
		panic(err) // the flag does not exist: a mistake in the program
	}
}

// fixed words need no server.
func fixed(all ...string) words {
	return func(context.Context, *app, []string) ([]string, cobra.ShellCompDirective) {
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// one is words for the first argument only.
func one(w words) words {
	return func(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return w(ctx, a, args)
	}
}

// many is words for each argument, none of them twice.
func many(w words) words {
	return func(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
		all, directive := w(ctx, a, args)
		return slices.DeleteFunc(all, func(word string) bool {
			name, _, _ := strings.Cut(word, "\t")
			return slices.Contains(args, name)
		}), directive
	}
}

// both is words for the first argument and others for the second.
func both(first, second words) words {
	return func(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return first(ctx, a, args)
		case 1:
			return second(ctx, a, args)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// asked makes words of what a server answers; without an answer there are none.
func asked(ask func(ctx context.Context, c *connection) ([]string, error)) words {
	return func(ctx context.Context, a *app, _ []string) ([]string, cobra.ShellCompDirective) {
		c, err := a.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := ask(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

func instanceNames(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
	return asked(func(ctx context.Context, c *connection) ([]string, error) {
		all, err := c.list(ctx, "", nil)
		return namesOf(all, func(i managementv1.Instance) string { return i.Name + "\t" + string(i.State) }), err
	})(ctx, a, args)
}

func operationIDs(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
	return asked(func(ctx context.Context, c *connection) ([]string, error) {
		list, err := fetch[managementv1.OperationList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.api.ListOperations(ctx, &managementv1.ListOperationsParams{Limit: given(defaultOperations)})
		})
		return namesOf(list.Items, func(op managementv1.Operation) string {
			return op.Id + "\t" + op.Kind + " of " + op.InstanceName + ", " + string(op.State)
		}), err
	})(ctx, a, args)
}

func loadoutNames(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
	return asked(func(ctx context.Context, c *connection) ([]string, error) {
		all, err := c.loadouts(ctx)
		return namesOf(all, func(l managementv1.Loadout) string { return l.Name + "\t" + strings.TrimSpace(l.Description) }), err
	})(ctx, a, args)
}

// loadoutsAndFiles are the names of the catalog; the shell adds files.
func loadoutsAndFiles(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
	all, _ := loadoutNames(ctx, a, args)
	return all, cobra.ShellCompDirectiveDefault
}

func orphanIDs(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
	return asked(func(ctx context.Context, c *connection) ([]string, error) {
		list, err := c.orphans(ctx)
		return namesOf(list.Items, func(o managementv1.Orphan) string { return o.Id + "\t" + o.Note }), err
	})(ctx, a, args)
}

// completedTasks is how many tasks a shell offers, the newest ones.
const completedTasks = 100

// taskIDs are those of the machine that is the first argument.
func taskIDs(ctx context.Context, a *app, args []string) ([]string, cobra.ShellCompDirective) {
	m, err := a.machine(ctx, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := m.agent.Tasks(ctx, "", completedTasks)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var all []string
	for _, t := range list.Tasks {
		all = append(all, t.ID+"\t"+shortState(t.Status.State))
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func contextNames(context.Context, *app, []string) ([]string, cobra.ShellCompDirective) {
	f, _, err := readSettings()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var all []string
	for _, name := range f.Names() {
		all = append(all, name+"\t"+first(f.Contexts[name].Server, f.Contexts[name].StateDir))
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}
