package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// printYAML prints the JSON form of v as YAML, members in the same order.
func printYAML(w io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	doc, err := yamlNode(dec)
	if err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	if err := enc.Close(); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	if _, err := w.Write(escapeYAML(b.Bytes())); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

// yamlNode reads one value; JSON is no YAML when it comes to what its strings
// may hold.
func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if v == '{' {
			n.Kind = yaml.MappingNode
		}
		for dec.More() {
			if n.Kind == yaml.MappingNode {
				key, err := yamlNode(dec)
				if err != nil {
					return nil, err
				}
				n.Content = append(n.Content, key)
			}
			child, err := yamlNode(dec)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		_, err := dec.Token() // the end
		return n, err
	case string:
		n := &yaml.Node{}
		n.SetString(v)
		if terminal.Text(v) != v || v == "<<" || !isBlock(v) {
			n.Style = yaml.DoubleQuotedStyle // where escapes are possible, and a key merges nothing
		}
		return n, nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: v.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: strconv.FormatBool(v)}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
}

// isBlock tells whether a text of several lines can be told from its own
// indentation: no line of it may begin with white space.
func isBlock(s string) bool {
	if !strings.Contains(s, "\n") {
		return true // it stands in one line, however it is written
	}
	for line := range strings.Lines(s) {
		if strings.ContainsAny(line[:1], " \t\n") {
			return false
		}
	}
	return true
}

// escapeYAML replaces what is not printable, which stands in double quotes
// only, by escape sequences of YAML.
func escapeYAML(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			out = append(out, text[:size]...)
		case r > 0xffff:
			out = fmt.Appendf(out, `\U%08x`, r)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[size:]
	}
	return out
}
