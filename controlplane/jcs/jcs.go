// Package jcs writes JSON in the one form of RFC 8785 (JSON Canonicalization
// Scheme), so that equal values have equal bytes to be hashed or signed. It
// knows JSON and nothing of what the values mean.
package jcs

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Errors of Transform: what JSON allows and the scheme does not, because
// different readers understand it differently.
var (
	ErrSyntax    = errors.New("not valid JSON")
	ErrUnicode   = errors.New("text is not valid Unicode")
	ErrDuplicate = errors.New("an object has the same member twice")
	ErrNumber    = errors.New("a number is beyond double precision")
)

// Transform returns the canonical form of one JSON value. Numbers are taken as
// IEEE 754 doubles, as the scheme has it.
func Transform(raw []byte) ([]byte, error) {
	switch {
	case !json.Valid(raw): // also bounds how deep values are nested
		return nil, ErrSyntax
	case !utf8.Valid(raw):
		return nil, ErrUnicode
	}
	p := &parser{in: raw}
	out, err := p.value(make([]byte, 0, len(raw)))
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Marshal returns the canonical form of what encoding/json makes of v.
func Marshal(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("cannot encode JSON: %w", err)
	}
	return Transform(raw)
}

// parser reads JSON that is known to be valid.
type parser struct {
	in []byte
	at int
}

func (p *parser) peek() byte {
	for {
		switch c := p.in[p.at]; c {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return c
		}
	}
}

// value appends the canonical form of the next value to out.
func (p *parser) value(out []byte) ([]byte, error) {
	switch p.peek() {
	case '{':
		return p.object(out)
	case '[':
		return p.array(out)
	case '"':
		s, err := p.text()
		return appendString(out, s), err
	case 't', 'n':
		p.at += 4
		return append(out, p.in[p.at-4:p.at]...), nil
	case 'f':
		p.at += 5
		return append(out, "false"...), nil
	}
	return p.number(out)
}

func (p *parser) array(out []byte) (_ []byte, err error) {
	p.at++
	out = append(out, '[')
	for first := true; p.peek() != ']'; first = false {
		if !first {
			p.at++ // the comma
			out = append(out, ',')
		}
		if out, err = p.value(out); err != nil {
			return nil, err
		}
	}
	p.at++
	return append(out, ']'), nil
}

func (p *parser) object(out []byte) ([]byte, error) {
	type member struct {
		name  string
		order []uint16
		value []byte
	}
	var members []member
	p.at++
	for first := true; p.peek() != '}'; first = false {
		if !first {
			p.at++
			p.peek()
		}
		name, err := p.text()
		if err != nil {
			return nil, err
		}
		p.peek()
		p.at++ // the colon
		value, err := p.value(nil)
		if err != nil {
			return nil, err
		}
		members = append(members, member{name, utf16.Encode([]rune(name)), value})
	}
	p.at++
	slices.SortFunc(members, func(a, b member) int { return slices.Compare(a.order, b.order) })
	out = append(out, '{')
	for i, m := range members {
		if i > 0 {
			if m.name == members[i-1].name {
				return nil, fmt.Errorf("%w: %q", ErrDuplicate, m.name)
			}
			out = append(out, ',')
		}
		out = append(appendString(out, m.name), ':')
		out = append(out, m.value...)
	}
	return append(out, '}'), nil
}

// text reads a string. An escaped half of a surrogate pair is refused:
// encoding/json would replace it, and different texts would become equal.
func (p *parser) text() (string, error) {
	p.at++
	var s []byte
	for {
		c := p.in[p.at]
		p.at++
		switch {
		case c == '"':
			return string(s), nil
		case c != '\\':
			s = append(s, c)
			continue
		}
		c = p.in[p.at]
		p.at++
		switch c {
		case 'b':
			s = append(s, '\b')
		case 'f':
			s = append(s, '\f')
		case 'n':
			s = append(s, '\n')
		case 'r':
			s = append(s, '\r')
		case 't':
			s = append(s, '\t')
		case 'u':
			r := p.hex()
			if utf16.IsSurrogate(r) {
				if p.in[p.at] != '\\' || p.in[p.at+1] != 'u' {
					return "", ErrUnicode
				}
				p.at += 2
				if r = utf16.DecodeRune(r, p.hex()); r == utf8.RuneError {
					return "", ErrUnicode
				}
			}
			s = utf8.AppendRune(s, r)
		default: // " \ and /
			s = append(s, c)
		}
	}
}

func (p *parser) hex() rune {
	var r rune
	for _, c := range p.in[p.at : p.at+4] {
		switch {
		case c <= '9':
			c -= '0'
		case c <= 'F':
			c -= 'A' - 10
		default:
			c -= 'a' - 10
		}
		r = r<<4 | rune(c)
	}
	p.at += 4
	return r
}

func appendString(out []byte, s string) []byte {
	const digits = "0123456789abcdef"
	out = append(out, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"', c == '\\':
			out = append(out, '\\', c)
		case c >= ' ':
			out = append(out, c)
		case c == '\b':
			out = append(out, '\\', 'b')
		case c == '\t':
			out = append(out, '\\', 't')
		case c == '\n':
			out = append(out, '\\', 'n')
		case c == '\f':
			out = append(out, '\\', 'f')
		case c == '\r':
			out = append(out, '\\', 'r')
		default:
			out = append(out, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	return append(out, '"')
}

func (p *parser) number(out []byte) ([]byte, error) {
	start := p.at
	for p.at < len(p.in) && isNumber(p.in[p.at]) {
		p.at++
	}
	f, err := strconv.ParseFloat(string(p.in[start:p.at]), 64)
	if err != nil {
		return nil, ErrNumber
	}
	return appendNumber(out, f), nil
}

func isNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}

// appendNumber writes a number as ECMAScript does.
func appendNumber(out []byte, f float64) []byte {
	if f == 0 { // also the negative one
		return append(out, '0')
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(out, f, 'f', -1, 64)
	}
	s := strconv.AppendFloat(nil, f, 'e', -1, 64)
	if n := len(s); s[n-4] == 'e' && s[n-2] == '0' { // e-07 is written e-7
		s = append(s[:n-2], s[n-1])
	}
	return append(out, s...)
}
