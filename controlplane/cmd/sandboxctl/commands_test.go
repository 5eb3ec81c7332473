package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// scriptsDir holds the scripts that run every command against a real server.
const scriptsDir = "../../../test/scripts/testdata/script"

// everyCommand lists the commands as one types them.
func everyCommand() []string {
	var all []string
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Runnable() {
			all = append(all, cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	root := (&app{}).root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	walk(root)
	return all
}

// TestEveryCommandHasAScript fails for a command that nobody runs against a
// real server, and for one that README does not name.
func TestEveryCommandHasAScript(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(scriptsDir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", scriptsDir, err)
	}
	var scripts strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		script, _, _ := strings.Cut(string(b), "\n-- ") // what follows is not run
		scripts.WriteString(script + "\n")
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := everyCommand()
	if len(commands) < 40 {
		t.Fatalf("only %d commands were found: %v", len(commands), commands)
	}
	for _, command := range commands {
		run := regexp.MustCompile(`(?m)^[^#\n]*\b` + regexp.QuoteMeta(command) + `( |$|'|")`)
		if !run.MatchString(scripts.String()) {
			t.Errorf("no script of %s runs %q", scriptsDir, command)
		}
		name := strings.TrimPrefix(command, "sandboxctl ")
		for word := range strings.FieldsSeq(name) {
			if !strings.Contains(string(readme), "`"+word) && !strings.Contains(string(readme), " "+word) {
				t.Errorf("README.md does not name %q", command)
			}
		}
	}
}

// TestReadmeTellsTheExitStatuses wants the table of the program in README.
func TestReadmeTellsTheExitStatuses(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range exitTable() {
		if line := "| " + row[0] + " | " + row[1] + " |\n"; !strings.Contains(string(readme), line) {
			t.Errorf("README.md lacks %q", line)
		}
	}
}
