package cmdline_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/cmdline"
)

// program has a flag of every type that our programs use, and commands of
// every shape.
func program() *cobra.Command {
	root := &cobra.Command{Use: "prog", SilenceUsage: true, SilenceErrors: true}
	do := func(*cobra.Command, []string) error { return nil }
	one := &cobra.Command{Use: "one", Args: cobra.NoArgs, RunE: do}
	f := one.Flags()
	f.Int("int", 0, "how many")
	f.Int64("long", 0, "how many")
	f.Uint64("bytes", 0, "how many")
	f.Duration("time", 0, "how long")
	cmdline.Once(f, new(string), "state", "only this one")
	f.BoolP("yes", "y", false, "whether")
	f.TextVar(new(slog.Level), "level", slog.LevelInfo, "debug, info, warn or error")
	many := &cobra.Command{Use: "many", Short: "holds others"}
	many.AddCommand(&cobra.Command{Use: "inner", Args: cobra.NoArgs, RunE: do})
	root.AddCommand(one, many)
	root.SetOut(&bytes.Buffer{})
	root.SetErr(&bytes.Buffer{})
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cmdline.FlagError(err) })
	cmdline.Strict(root)
	return root
}

func TestFlagError(t *testing.T) {
	for given, want := range map[string]string{
		"--int=x":                    `--int "x": want a whole number`,
		"--int=1.5":                  `--int "1.5": want a whole number`,
		"--int=":                     `--int "": want a whole number`,
		"--int=99999999999999999999": `--int "99999999999999999999": want a whole number that is not so large`,
		"--long=x":                   `--long "x": want a whole number`,
		"--bytes=-1":                 `--bytes "-1": want a whole number, 0 or more`,
		"--time=5":                   `--time "5": want a time such as 90s, 4h or 1h30m`,
		"--time=soon":                `--time "soon": want a time such as 90s, 4h or 1h30m`,
		"--yes=perhaps":              `--yes "perhaps": want true or false`,
		"-y=perhaps":                 `--yes "perhaps": want true or false`,
		"--level=loud":               `--level "loud": want debug, info, warn or error`,
		"--state=a --state=b":        `--state "b": want it once`,
		"--other":                    `unknown flag: --other`,
	} {
		root := program()
		root.SetArgs(append([]string{"one"}, strings.Fields(given)...))
		if err := root.Execute(); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", given, err, want)
		}
	}
	root := program()
	root.SetArgs([]string{"one", "--int=3", "--time=" + time.Hour.String(), "--level=debug"})
	if err := root.Execute(); err != nil {
		t.Error(err)
	}
}

func TestUnknownWordsAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"":                   "",
		"one":                "",
		"many":               "",
		"many inner":         "",
		"help":               "",
		"help one":           "",
		"help many inner":    "",
		"help completion":    "",
		"completion":         "",
		"completion bash":    "",
		"two":                `unknown command "two"`,
		"one word":           `unknown command "word" for "prog one"`,
		"many two":           `unknown command "two" for "prog many"`,
		"completion klingon": `unknown command "klingon" for "prog completion"`,
		"help two":           `there is no help for "two"`,
		"help many two":      `there is no help for "many two"`,
		"help help two":      `there is no help for "help two"`,
	} {
		root := program()
		root.SetArgs(strings.Fields(line))
		switch err := root.Execute(); {
		case want == "" && err != nil:
			t.Errorf("%q: %v", line, err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
}
