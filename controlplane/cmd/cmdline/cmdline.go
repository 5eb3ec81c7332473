// Package cmdline is what our programs have in common in reading their command
// lines: mistakes are told in the words of people, and none is passed over. It
// knows no command of any program.
package cmdline

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagError says what a flag wants, where its parser names a function of its
// own. Other errors it returns as they are.
func FlagError(err error) error {
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return err
	}
	flag := wrong.GetFlag()
	return fmt.Errorf("--%s %q: want %s", flag.Name, wrong.GetValue(), wanted(flag, wrong.Unwrap()))
}

// wanted is what a flag takes. That of a type which is not among these says so
// in its usage.
func wanted(flag *pflag.Flag, cause error) string {
	size := ""
	if errors.Is(cause, strconv.ErrRange) {
		size = " that is not so large"
	}
	switch flag.Value.Type() {
	case "string":
		return "it once"
	case "int", "int64":
		return "a whole number" + size
	case "uint64":
		return "a whole number" + size + ", 0 or more"
	case "duration":
		return "a time such as 90s, 4h or 1h30m"
	case "bool":
		return "true or false"
	}
	return flag.Usage
}

// Once is a flag with a text that is given at most once: of two values the
// first would be passed over.
func Once(flags *pflag.FlagSet, p *string, name, usage string) {
	flags.Var(&once{text: p}, name, usage)
}

type once struct {
	text *string
	set  bool
}

func (o *once) Set(s string) error {
	if o.set {
		return errTwice
	}
	*o.text, o.set = s, true
	return nil
}

func (o *once) String() string {
	if o.text == nil {
		return "" // pflag asks a zero value for the default
	}
	return *o.text
}

func (o *once) Type() string { return "string" }

var errTwice = errors.New("given twice")

// Strict has commands that only hold others, and help, refuse words that they
// do not know; without it some of them show their help and succeed. A root
// without anything to run does that by itself. Call it when all commands and
// the output of root are set.
func Strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	strict(root)
}

func strict(cmd *cobra.Command) {
	switch {
	case cmd.Name() == "help" && cmd.HasParent() && !cmd.Parent().HasParent():
		cmd.Args = knownTopic
	case cmd.HasParent() && cmd.HasSubCommands() && !cmd.Runnable():
		cmd.Args = cobra.NoArgs
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

func knownTopic(cmd *cobra.Command, args []string) error {
	if _, rest, err := cmd.Root().Find(args); err != nil || len(rest) > 0 {
		return fmt.Errorf("there is no help for %q", strings.Join(args, " "))
	}
	return nil
}
