package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// namedCommand is a command of ours in a text: in backquotes, or as a whole
// line of a page.
var (
	namedCommand = regexp.MustCompile("`(sandboxctl|sandboxd) ([^`()]+)`")
	pageCommand  = regexp.MustCompile(`(?m)^    (?:\$ )?(?:sudo )?(sandboxctl) ([^\n|;]+)`)
)

// TestNamedCommandsExist wants every command that a fault, a remedy or a page
// names to be one that this program has, with the flags that stand there.
func TestNamedCommandsExist(t *testing.T) {
	root := "../../.."
	found := map[string]string{}
	note := func(where, text string, forms ...*regexp.Regexp) {
		for _, form := range forms {
			for _, m := range form.FindAllStringSubmatch(text, -1) {
				if m[1] == "sandboxctl" {
					found[m[2]] = where
				}
			}
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "testdata" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".md"):
			page, err := os.ReadFile(path)
			note(path, string(page), namedCommand, pageCommand)
			return err
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".gen.go"):
			for _, text := range texts(t, path) {
				note(path, text, namedCommand)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 20 {
		t.Fatalf("only %d commands were found: %v", len(found), found)
	}
	for line, where := range found {
		if err := parses(line); err != nil {
			t.Errorf("%s: sandboxctl %s: %v", where, line, err)
		}
	}
}

// texts are the constant texts of a file of Go.
func texts(t *testing.T, path string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				all = append(all, s)
			}
		}
		return true
	})
	return all
}

// parses reads a command line as far as its command and flags go.
func parses(line string) error {
	line, _, _ = strings.Cut(line, "  #")
	var words []string
	for word := range strings.FieldsSeq(line) {
		if word == "&" || strings.HasPrefix(word, "#") {
			break
		}
		words = append(words, strings.Trim(word, "'\",.:"))
	}
	root := (&app{}).root()
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if cmd.HasSubCommands() {
		return cobra.NoArgs(cmd, cmd.Flags().Args())
	}
	return nil
}

func TestInCommands(t *testing.T) {
	for in, want := range map[string]string{
		"start it with `POST /api/v1/instances/dev:start`":      "start it with `sandboxctl start dev`",
		"`GET /api/v1/instances` lists what there is":           "`sandboxctl ls` lists what there is",
		"`GET /api/v1/instances/dev/logs`, `GET /api/v1/host`":  "`sandboxctl logs dev`, `sandboxctl doctor`",
		"`POST /api/v1/instances/dev:stop?force=true`":          "`sandboxctl stop --force dev`",
		"`GET /api/v1/operations/0190b2a4-0000-7000-8000-00aa`": "`sandboxctl ops show 0190b2a4-0000-7000-8000-00aa`",
		"`DELETE /api/v1/instances/{ref}`":                      "`sandboxctl rm NAME`",
		"`DELETE /api/v1/instances/{id}`":                       "`DELETE /api/v1/instances/{id}`",
		"`POST /api/v1/instances`":                              "`POST /api/v1/instances`",
		"`POST /api/v1/instances/dev:start?force=true`":         "`POST /api/v1/instances/dev:start?force=true`",
		"`GET /api/v1/instances/dev; rm -rf /`":                 "`GET /api/v1/instances/dev; rm -rf /`",
		"no request":                                            "no request",
	} {
		if got := inCommands(in); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}
