package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "agentic-sandbox.aiwg.io/sandbox"

// file is one Go file of the module.
type file struct {
	path      string // from the top of the module, with slashes
	dir       string
	lines     int
	test      bool
	generated bool
	imports   []string // ours from the top of the module, others as written
	syntax    *ast.File
	set       *token.FileSet
}

// pos places a node for a message.
func (f file) pos(n ast.Node) string {
	return f.path + ":" + strconv.Itoa(f.set.Position(n.Pos()).Line)
}

// top finds the directory of go.mod.
func top(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the working directory")
		}
		dir = up
	}
}

// files reads every Go file of the module, whatever its build constraints.
func files(t *testing.T) []file {
	t.Helper()
	root := top(t)
	var all []file
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipDir(root, name, entry)
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := read(root, name)
		if err == nil {
			all = append(all, f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// skipDir leaves out what the go command leaves out: hidden directories,
// test data and other modules.
func skipDir(root, name string, entry fs.DirEntry) error {
	if name == root {
		return nil
	}
	if strings.HasPrefix(entry.Name(), ".") || strings.HasPrefix(entry.Name(), "_") || entry.Name() == "testdata" {
		return fs.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func read(root, name string) (file, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return file{}, err
	}
	rel, err := filepath.Rel(root, name)
	if err != nil {
		return file{}, err
	}
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{}, err
	}
	f := file{
		path:      filepath.ToSlash(rel),
		dir:       path.Dir(filepath.ToSlash(rel)),
		lines:     strings.Count(string(text), "\n"),
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(syntax),
		syntax:    syntax,
		set:       set,
	}
	for _, spec := range syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, err
		}
		f.imports = append(f.imports, strings.TrimPrefix(imported, module+"/"))
	}
	return f, nil
}

// ours says whether an import is a package of this module.
func ours(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return slices.Contains([]string{"api", "controlplane", "deploy", "guestagent", "images", "loadouts", "test"}, first)
}

// testSupport says whether a package exists for tests only: contract suites,
// by the name that ends in test, and everything under test.
func testSupport(dir string) bool {
	return strings.HasSuffix(dir, "test") || matches("test/...", dir)
}

// matches says whether a package is what a pattern names: itself, or itself
// and everything below when the pattern ends in "/...".
func matches(pattern, dir string) bool {
	above, wild := strings.CutSuffix(pattern, "/...")
	return dir == above || wild && strings.HasPrefix(dir, above+"/")
}

// uses finds calls and mentions of name from package imported.
func (f file) uses(imported, name string) []string {
	local := ""
	for _, spec := range f.syntax.Imports {
		if spec.Path.Value != strconv.Quote(imported) {
			continue
		}
		local = path.Base(imported)
		if spec.Name != nil {
			local = spec.Name.Name
		}
	}
	if local == "" {
		return nil
	}
	var found []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == name {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == local {
				found = append(found, f.pos(s))
			}
		}
		return true
	})
	return found
}
