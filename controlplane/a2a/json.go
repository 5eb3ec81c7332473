package a2a

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds how deep a request may be nested. Some readers stop at 100,
// and an answer puts what was sent a few levels deeper.
const maxDepth = 64

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
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return ""
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
