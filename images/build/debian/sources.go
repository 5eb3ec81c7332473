package debian

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// hostSources writes those of the host's apt sources that belong to a Debian
// release into files in dir, and returns their paths. It returns none when the
// host does not know the release: mmdebstrap then has its own default.
func hostSources(apt, suite, dir string) ([]string, error) {
	var lines, stanzas []string
	names, err := filepath.Glob(filepath.Join(apt, "sources.list.d", "*"))
	if err != nil {
		return nil, fmt.Errorf("cannot read apt sources: %w", err)
	}
	sort.Strings(names)
	for _, name := range append([]string{filepath.Join(apt, "sources.list")}, names...) {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // not there, or not ours to read: apt would not use it either
		}
		switch filepath.Ext(name) {
		case ".list":
			lines = append(lines, matchingLines(string(data), suite)...)
		case ".sources":
			stanzas = append(stanzas, matchingStanzas(string(data), suite)...)
		}
	}
	if !holdsSuite(lines, stanzas, suite) {
		return nil, nil
	}
	var files []string
	for _, part := range []struct{ name, text string }{
		{"host.list", strings.Join(lines, "\n")},
		{"host.sources", strings.Join(stanzas, "\n\n")},
	} {
		if part.text == "" {
			continue
		}
		file := filepath.Join(dir, part.name)
		if err := os.WriteFile(file, []byte(part.text+"\n"), 0o644); err != nil {
			return nil, fmt.Errorf("cannot write apt sources: %w", err)
		}
		files = append(files, file)
	}
	return files, nil
}

// belongs says whether an apt suite is the release itself or one of its
// official companions. Third parties name theirs otherwise.
func belongs(aptSuite, release string) bool {
	switch aptSuite {
	case release, release + "-updates", release + "-security", release + "/updates":
		return true
	}
	return false
}

func matchingLines(text, suite string) []string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		_, s, components := splitLine(line)
		if belongs(s, suite) && components["main"] {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// splitLine takes "deb [options] uri suite component…" apart.
func splitLine(line string) (uri, suite string, components map[string]bool) {
	fields := strings.Fields(line)
	if len(fields) == 0 || fields[0] != "deb" {
		return "", "", nil
	}
	fields = fields[1:]
	if len(fields) > 0 && strings.HasPrefix(fields[0], "[") {
		for len(fields) > 0 && !strings.HasSuffix(fields[0], "]") {
			fields = fields[1:]
		}
		if len(fields) > 0 {
			fields = fields[1:]
		}
	}
	if len(fields) < 3 {
		return "", "", nil
	}
	return fields[0], fields[1], toSet(fields[2:])
}

func matchingStanzas(text, suite string) []string {
	var out []string
	for _, stanza := range splitStanzas(text) {
		f := stanzaFields(stanza)
		if f["enabled"] == "no" || !toSet(strings.Fields(f["types"]))["deb"] || !toSet(strings.Fields(f["components"]))["main"] {
			continue
		}
		all := len(strings.Fields(f["suites"])) > 0
		for s := range strings.FieldsSeq(f["suites"]) {
			all = all && belongs(s, suite)
		}
		if all {
			out = append(out, stanza)
		}
	}
	return out
}

// splitStanzas returns the paragraphs of a deb822 file, without comments.
func splitStanzas(text string) []string {
	var out []string
	var current []string
	flush := func() {
		if len(current) > 0 {
			out = append(out, strings.Join(current, "\n"))
		}
		current = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimRight(line, " \t\r")
		switch {
		case line == "":
			flush()
		case strings.HasPrefix(line, "#"):
		default:
			current = append(current, line)
		}
	}
	flush()
	return out
}

// stanzaFields returns the fields of a paragraph by their lower-case names.
func stanzaFields(stanza string) map[string]string {
	fields := map[string]string{}
	last := ""
	for line := range strings.SplitSeq(stanza, "\n") {
		if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") {
			fields[last] += "\n" + strings.TrimSpace(line)
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		last = strings.ToLower(strings.TrimSpace(name))
		fields[last] = strings.TrimSpace(value)
	}
	return fields
}

func holdsSuite(lines, stanzas []string, suite string) bool {
	for _, l := range lines {
		if _, s, _ := splitLine(l); s == suite {
			return true
		}
	}
	for _, s := range stanzas {
		if toSet(strings.Fields(stanzaFields(s)["suites"]))[suite] {
			return true
		}
	}
	return false
}

func toSet(words []string) map[string]bool {
	set := map[string]bool{}
	for _, w := range words {
		set[w] = true
	}
	return set
}
