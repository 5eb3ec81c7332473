package a2a

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds how deep a request may be nested. Some readers stop at 100,
// and an answer puts what was sent a few levels deeper.
const maxDepth = 64

// ruleNumber is for numbers that other readers take for infinite, or not at all.
const ruleNumber = "must be a number that a double can hold"

// checkJSON returns the rule that a body breaks. Go's reader takes more than
// others do. What a client sends is stored and comes back in the answers to
// others, in lists too, so what some of them cannot read is refused here; and
// a name that is there twice, because two readers could disagree on which one
// counts.
func checkJSON(raw []byte) string {
	switch {
	case !json.Valid(raw):
		return "is not valid JSON"
	case !utf8.Valid(raw):
		return "is not valid UTF-8"
	case !pairedSurrogates(raw):
		return "has half of a surrogate pair"
	}
	type level struct {
		names map[string]bool // nil in a list
		value bool            // a name has been read, its value comes next
	}
	var levels []level
	numbers := ""
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return numbers
		}
		if err != nil {
			return "is not valid JSON"
		}
		if n := len(levels); n > 0 && levels[n-1].names != nil && tok != json.Delim('}') {
			top := &levels[n-1]
			if name, ok := tok.(string); ok && !top.value {
				if top.names[name] {
					return "has the member " + clip(name) + " twice in one object"
				}
				top.names[name], top.value = true, true
				continue
			}
			top.value = false
		}
		if n, ok := tok.(json.Number); ok && !fits(n) {
			numbers = ruleNumber // unless there is worse
		}
		switch tok {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
		}
		if len(levels) > maxDepth {
			return fmt.Sprintf("is nested deeper than %d levels", maxDepth)
		}
	}
}

// fits reports whether a double can hold about that number.
func fits(n json.Number) bool {
	f, err := n.Float64()
	return err == nil && !math.IsInf(f, 0)
}

// errNumber names the first number of valid JSON that no double can hold.
func errNumber(raw []byte) *fault {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var find func(path string) (string, bool)
	find = func(path string) (string, bool) {
		tok, err := dec.Token()
		if err != nil {
			return path, true // not after checkJSON
		}
		if n, ok := tok.(json.Number); ok {
			return path, !fits(n)
		}
		if tok != json.Delim('{') && tok != json.Delim('[') {
			return path, false
		}
		for i := 0; dec.More(); i++ {
			at := path + "[" + strconv.Itoa(i) + "]"
			if tok == json.Delim('{') {
				name, err := dec.Token()
				if err != nil {
					return path, true
				}
				at = member(path, fmt.Sprint(name))
			}
			if at, found := find(at); found {
				return at, true
			}
		}
		_, err = dec.Token() // its end
		return path, err != nil
	}
	path, _ := find("")
	return errField(path, ruleNumber)
}

// member is the path of a member whose name comes from outside.
func member(path, name string) string {
	plain := func(r rune) bool {
		return r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	switch {
	case name == "" || len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }):
		return path + "[" + clip(name) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// pairedSurrogates reports whether every escaped half of a surrogate pair in
// valid JSON has its other half. A backslash stands in strings only.
func pairedSurrogates(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		r, ok := escaped(raw[i:])
		switch {
		case !ok:
			i++ // some other escape, of two bytes
		case !utf16.IsSurrogate(r):
			i += 5
		default:
			low, ok := escaped(raw[i+6:])
			if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
				return false
			}
			i += 11
		}
	}
	return true
}

// escaped reads \uXXXX at the start of b.
func escaped(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return rune(n), err == nil
}
