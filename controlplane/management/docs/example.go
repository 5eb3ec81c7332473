package docs

import (
	"net/url"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxDepth bounds how deep an example goes into schemas.
const maxDepth = 6

// bodyExample is the JSON example of a body: the document's own, or one made
// from the schema.
func (r reader) bodyExample(content *yaml.Node) string {
	var b strings.Builder
	if example := get(content, "example"); example != nil {
		writeValue(&b, example, "")
		return b.String()
	}
	if get(content, "schema") == nil {
		return ""
	}
	r.writeSample(&b, get(content, "schema"), "", 0)
	return b.String()
}

// writeValue writes a YAML value as JSON, its members in their order.
func writeValue(b *strings.Builder, n *yaml.Node, indent string) {
	switch n.Kind {
	case yaml.MappingNode:
		open(b, "{", len(n.Content) > 0, indent)
		for i := 0; i+1 < len(n.Content); i += 2 {
			member(b, n.Content[i].Value, i == 0, indent)
			writeValue(b, n.Content[i+1], indent+"  ")
		}
		shut(b, "}", len(n.Content) > 0, indent)
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, v := range n.Content {
			if i > 0 {
				b.WriteString(", ")
			}
			writeValue(b, v, indent)
		}
		b.WriteByte(']')
	case yaml.ScalarNode, yaml.DocumentNode, yaml.AliasNode:
		if n.Tag == "!!str" || n.Tag == "!!timestamp" {
			b.WriteString(strconv.Quote(n.Value))
		} else {
			b.WriteString(n.Value)
		}
	}
}

// writeSample writes what a value of a schema could be.
func (r reader) writeSample(b *strings.Builder, n *yaml.Node, indent string, depth int) {
	n = r.resolve(n)
	if example := get(n, "example"); example != nil {
		writeValue(b, example, indent)
		return
	}
	if enum := items(get(n, "enum")); len(enum) > 0 {
		b.WriteString(strconv.Quote(enum[0].Value))
		return
	}
	switch text(n, "type") {
	case "object":
		r.writeObject(b, n, indent, depth)
	case "array":
		if depth >= maxDepth {
			b.WriteString("[]")
			return
		}
		b.WriteByte('[')
		r.writeSample(b, get(n, "items"), indent, depth+1)
		b.WriteByte(']')
	case "integer", "number":
		b.WriteString(firstOf(text(n, "minimum"), "1"))
	case "boolean":
		b.WriteString("false")
	default:
		if text(n, "format") == "date-time" {
			b.WriteString(`"2026-01-02T03:04:05.678Z"`)
			return
		}
		b.WriteString(`"…"`)
	}
}

func (r reader) writeObject(b *strings.Builder, n *yaml.Node, indent string, depth int) {
	properties := get(n, "properties")
	if depth >= maxDepth || (properties == nil && get(n, "additionalProperties") == nil) {
		b.WriteString("{}")
		return
	}
	open(b, "{", true, indent)
	first := true
	each(properties, func(name string, p *yaml.Node) {
		// Faults are the exception; a page full of them would teach little.
		if ref := text(p, "$ref"); strings.HasSuffix(ref, "/Fault") {
			return
		}
		member(b, name, first, indent)
		r.writeSample(b, p, indent+"  ", depth+1)
		first = false
	})
	if properties == nil {
		member(b, "…", true, indent)
		r.writeSample(b, get(n, "additionalProperties"), indent+"  ", depth+1)
	}
	shut(b, "}", true, indent)
}

func open(b *strings.Builder, bracket string, full bool, indent string) {
	b.WriteString(bracket)
	if full {
		b.WriteString("\n" + indent + "  ")
	}
}

func shut(b *strings.Builder, bracket string, full bool, indent string) {
	if full {
		b.WriteString("\n" + indent)
	}
	b.WriteString(bracket)
}

func member(b *strings.Builder, name string, first bool, indent string) {
	if !first {
		b.WriteString(",\n" + indent + "  ")
	}
	b.WriteString(strconv.Quote(name) + ": ")
}

// parameterExample is the value that a curl line shows for a parameter; empty
// for one that the line can do without.
func (r reader) parameterExample(p *yaml.Node) string {
	example := get(p, "example")
	switch {
	case example != nil && example.Kind == yaml.SequenceNode && len(example.Content) > 0:
		return example.Content[0].Value
	case example != nil:
		return example.Value
	case text(p, "in") == "path":
		return "$" + strings.ToUpper(text(p, "name"))
	}
	return ""
}

// curl is a line that a reader can try. $SANDBOX is the address of the server
// and $TOKEN the token.
func curl(server string, op operation) string {
	path, query := op.Path, url.Values{}
	var keyed bool
	for _, p := range op.Parameters {
		switch p.In {
		case "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", p.example)
		case "query":
			if p.example != "" {
				query.Set(p.Name, p.example)
			}
		case "header":
			keyed = keyed || p.Name == "Idempotency-Key"
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	line := "curl "
	switch {
	case op.Stream:
		line += "-N "
	case op.Method != "GET":
		line += "-X " + op.Method + " "
	}
	line += `"$SANDBOX` + server + path + `" \` + "\n" + `  -H "Authorization: Bearer $TOKEN"`
	if keyed && op.Method == "POST" {
		line += ` \` + "\n" + `  -H "Idempotency-Key: $(cat /proc/sys/kernel/random/uuid)"`
	}
	if op.Body != nil {
		line += ` \` + "\n" + `  -H "Content-Type: ` + op.Body.Media + `" \` + "\n"
		if strings.HasSuffix(op.Body.Media, "json") {
			line += `  -d '` + strings.ReplaceAll(compact(op.Body.Example), "'", `'\''`) + `'`
		} else {
			line += `  --data-binary @files.tar`
		}
	}
	return line
}

// compact puts a small example on one line.
func compact(example string) string {
	return strings.Join(strings.Fields(example), " ")
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
