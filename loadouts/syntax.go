package loadouts

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

var syntaxLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)$`)

// syntax places an error of the YAML parser at the beginning of a line.
func (r *reader) syntax(data []byte, err error) {
	told, what := 1, err.Error()
	if m := syntaxLine.FindStringSubmatch(what); m != nil {
		what = m[2]
		if n, err := strconv.Atoi(m[1]); err == nil {
			told = n
		}
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	line := brokenLine(data, lines, told)
	text := lines[line-1]
	column := 1 + len(text) - len(bytes.TrimLeft(text, " "))
	r.failAt(line, column, "not YAML: "+strings.Join(strings.Fields(clip(what)), " "))
}

// Bounds of the search for a broken line: how far from the one that the parser
// tells, and how many bytes are parsed again for it.
const (
	linesBefore = 32
	linesBehind = 256
	maxReparsed = 8 << 20
)

// brokenLine is the line behind the longest beginning of a document that is
// sound. The parser tells of many errors no line, of others where the mapping
// around them begins, or the line before.
func brokenLine(data []byte, lines [][]byte, told int) int {
	told = min(told, len(lines))
	end := 0 // of the first n lines
	n := 0
	for n < min(told+linesBehind, len(lines)-1) {
		end += len(lines[n])
		n++
	}
	for left := maxReparsed - end; n >= max(0, told-linesBefore) && left >= 0; left -= end {
		if sound(data[:end]) {
			return n + 1
		}
		if n--; n >= 0 {
			end -= len(lines[n])
		}
	}
	return told
}

// sound reports whether a text is YAML.
func sound(text []byte) bool {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		if err := decoder.Decode(&doc); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}
