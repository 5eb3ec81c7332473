package kernel

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"path"
	"strings"
)

const (
	maxLine    = 4 << 10
	maxModules = 100_000
	maxModinfo = 1 << 20
)

// moduleGraph knows which modules a kernel has and what each needs.
type moduleGraph struct {
	files   map[string]string   // module name → its file
	needs   map[string][]string // module name → modules to load before it
	builtin map[string]bool
}

// newModuleGraph returns the dependencies of a kernel without modules.
func newModuleGraph() *moduleGraph {
	return &moduleGraph{files: map[string]string{}, needs: map[string][]string{}, builtin: map[string]bool{}}
}

// add adds the module in the given file, with the names of those it needs.
func (d *moduleGraph) add(file string, needs []string) error {
	name, err := moduleName(file)
	if err != nil {
		return err
	}
	if other, twice := d.files[name]; twice {
		return fmt.Errorf("cannot order kernel modules: %q is both %q and %q", name, other, file)
	}
	if len(d.files) == maxModules {
		return fmt.Errorf("cannot order kernel modules: there are more than %d", maxModules)
	}
	d.files[name] = file
	for _, n := range needs {
		d.needs[name] = append(d.needs[name], canonical(n))
	}
	return nil
}

// addBuiltin reads a modules.builtin file: modules that need no loading.
func (d *moduleGraph) addBuiltin(r io.Reader) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, maxLine), maxLine)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" {
			continue
		}
		name, err := moduleName(line)
		if err != nil || n > maxModules {
			return fmt.Errorf("cannot read modules.builtin: line %d: %q is not a module", n, line)
		}
		d.builtin[name] = true
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("cannot read modules.builtin: %w", err)
	}
	return nil
}

// loadable is one module to load.
type loadable struct {
	Name string // with underscores, as the kernel calls it
	Path string // as given to add
}

// order returns the modules to load, each after those it needs, so that all
// of required and those of optional that exist are loaded. Modules that are
// built into the kernel are left out.
func (d *moduleGraph) order(required, optional []string) ([]loadable, error) {
	o := ordering{deps: d, state: map[string]int{}}
	for _, name := range required {
		if err := o.visit(canonical(name)); err != nil {
			return nil, err
		}
	}
	for _, name := range optional {
		if name = canonical(name); d.files[name] == "" {
			continue
		}
		if err := o.visit(name); err != nil {
			return nil, err
		}
	}
	return o.out, nil
}

// The states of a module while the order is being found.
const (
	visiting = 1
	done     = 2
)

type ordering struct {
	deps  *moduleGraph
	state map[string]int
	out   []loadable
}

func (o *ordering) visit(name string) error {
	if o.state[name] == done || o.deps.builtin[name] {
		return nil
	}
	if o.state[name] == visiting {
		return fmt.Errorf("cannot order kernel modules: %q needs itself", name)
	}
	file, ok := o.deps.files[name]
	if !ok {
		return fmt.Errorf("cannot order kernel modules: this kernel has no module %q", name)
	}
	o.state[name] = visiting
	for _, need := range o.deps.needs[name] {
		if err := o.visit(need); err != nil {
			return err
		}
	}
	o.state[name] = done
	o.out = append(o.out, loadable{Name: name, Path: file})
	return nil
}

// readNeeds reads, out of a module's .modinfo section, the names of the modules
// that must be loaded before it.
func readNeeds(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, fmt.Errorf("cannot read module: %w", err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("cannot read module: it has no .modinfo section")
	}
	if section.Type != elf.SHT_PROGBITS || section.Size > maxModinfo {
		return nil, fmt.Errorf("cannot read module: its .modinfo section is of type %v and %d bytes", section.Type, section.Size)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("cannot read module: %w", err)
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok {
			return splitNames(string(list)), nil
		}
	}
	return nil, nil
}

func splitNames(list string) []string {
	var names []string
	for n := range strings.SplitSeq(list, ",") {
		if n = strings.TrimSpace(n); n != "" {
			names = append(names, n)
		}
	}
	return names
}

// moduleName returns the name of the module in a file. Paths that could
// leave the directory they are joined to are refused.
func moduleName(file string) (string, error) {
	name, ext, ok := strings.Cut(path.Base(file), ".ko")
	known := ext == "" || ext == ".xz" || ext == ".zst" || ext == ".gz"
	clean := !path.IsAbs(file) && path.Clean(file) == file && !strings.HasPrefix(file, "../")
	if !ok || name == "" || !known || !clean || strings.ContainsAny(file, " \t\x00") {
		return "", fmt.Errorf("%q is not the path of a kernel module", file)
	}
	return canonical(name), nil
}

// canonical spells a module's name as the kernel does.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }
