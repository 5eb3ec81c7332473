package docs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// model is a document in the order and form in which it is shown.
type model struct {
	Title, Version, Description, Server string
	Groups                              []group
	Schemas                             []schema
}

type group struct {
	Name, Description string
	Operations        []operation
}

type operation struct {
	ID, Method, Path, Summary, Description, Scope string
	Stream                                        bool
	Parameters                                    []parameter
	Body                                          *body
	Responses                                     []response
	Curl                                          string
}

type parameter struct {
	Name, In, Description string
	Required              bool
	Type                  kind
	example               string
}

type body struct {
	Media   string
	Type    kind
	Example string
}

type response struct {
	Status, Description string
	Media               []media
	Headers             []string
	Example             string
}

type media struct {
	Name string
	Type kind
}

type schema struct {
	Name, Description string
	Type              kind
	Properties        []property
}

type property struct {
	Name, Description string
	Required          bool
	Type              kind
}

// kind is the type of a value in words, with a link to its schema if it has
// one, and the rules that hold for it.
type kind struct {
	Before, Link, After string
	Rules               []string
}

// reader reads the tree of a document.
type reader struct{ root *yaml.Node }

func read(data []byte) (*model, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("cannot read YAML: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("the document is empty")
	}
	r := reader{doc.Content[0]}
	info := get(r.root, "info")
	m := &model{
		Title: text(info, "title"), Version: text(info, "version"), Description: text(info, "description"),
	}
	if servers := get(r.root, "servers"); servers != nil && len(servers.Content) > 0 {
		m.Server = text(servers.Content[0], "url")
	}
	for _, tag := range items(get(r.root, "tags")) {
		m.Groups = append(m.Groups, group{Name: text(tag, "name"), Description: text(tag, "description")})
	}
	if err := r.operations(m); err != nil {
		return nil, err
	}
	each(get(get(r.root, "components"), "schemas"), func(name string, n *yaml.Node) {
		m.Schemas = append(m.Schemas, r.schema(name, n))
	})
	slices.SortFunc(m.Schemas, func(a, b schema) int { return strings.Compare(a.Name, b.Name) })
	return m, nil
}

// operations puts every operation into the group of its tag.
func (r reader) operations(m *model) (err error) {
	each(get(r.root, "paths"), func(path string, item *yaml.Node) {
		shared := items(get(item, "parameters"))
		each(item, func(method string, n *yaml.Node) {
			if method == "parameters" {
				return
			}
			op := r.operation(method, path, n, shared)
			op.Curl = curl(m.Server, op)
			tag := ""
			if tags := items(get(n, "tags")); len(tags) > 0 {
				tag = tags[0].Value
			}
			i := slices.IndexFunc(m.Groups, func(g group) bool { return g.Name == tag })
			if i < 0 {
				err = errors.Join(err, fmt.Errorf("operation %q has the tag %q, which is not declared", op.ID, tag))
				return
			}
			m.Groups[i].Operations = append(m.Groups[i].Operations, op)
		})
	})
	return err
}

func (r reader) operation(method, path string, n *yaml.Node, shared []*yaml.Node) operation {
	op := operation{
		ID: text(n, "operationId"), Method: strings.ToUpper(method), Path: path,
		Summary: text(n, "summary"), Description: text(n, "description"), Scope: text(n, "x-scope"),
		Stream: text(n, "x-stream") == "true",
	}
	for _, p := range append(slices.Clone(shared), items(get(n, "parameters"))...) {
		p = r.resolve(p)
		op.Parameters = append(op.Parameters, parameter{
			Name: text(p, "name"), In: text(p, "in"), Description: text(p, "description"),
			Required: text(p, "required") == "true", Type: r.kind(get(p, "schema")),
			example: r.parameterExample(p),
		})
	}
	each(get(get(n, "requestBody"), "content"), func(name string, c *yaml.Node) {
		if op.Body == nil {
			op.Body = &body{Media: name, Type: r.kind(get(c, "schema")), Example: r.bodyExample(c)}
		}
	})
	each(get(n, "responses"), func(status string, c *yaml.Node) {
		c = r.resolve(c)
		res := response{Status: status, Description: text(c, "description")}
		each(get(c, "headers"), func(name string, _ *yaml.Node) { res.Headers = append(res.Headers, name) })
		each(get(c, "content"), func(name string, c *yaml.Node) {
			res.Media = append(res.Media, media{Name: name, Type: r.kind(get(c, "schema"))})
			if strings.HasSuffix(name, "json") && res.Example == "" && status != "default" {
				res.Example = r.bodyExample(c)
			}
		})
		op.Responses = append(op.Responses, res)
	})
	return op
}

func (r reader) schema(name string, n *yaml.Node) schema {
	s := schema{Name: name, Description: text(n, "description"), Type: r.kind(n)}
	required := items(get(n, "required"))
	each(get(n, "properties"), func(name string, p *yaml.Node) {
		s.Properties = append(s.Properties, property{
			Name: name, Description: text(p, "description"), Type: r.kind(p),
			Required: slices.ContainsFunc(required, func(r *yaml.Node) bool { return r.Value == name }),
		})
	})
	return s
}

// kind says in words what a schema wants.
func (r reader) kind(n *yaml.Node) kind {
	if n == nil {
		return kind{Before: "nothing"}
	}
	if ref := text(n, "$ref"); ref != "" {
		return kind{Link: ref[strings.LastIndex(ref, "/")+1:]}
	}
	k := kind{Before: text(n, "type")}
	switch k.Before {
	case "array":
		k = r.kind(get(n, "items"))
		k.Before = "list of " + k.Before
	case "object":
		if values := get(n, "additionalProperties"); values != nil && values.Kind == yaml.MappingNode {
			k = r.kind(values)
			k.Before = "map of " + k.Before
		}
	case "string", "integer", "number":
		if format := text(n, "format"); format != "" {
			k.After = " (" + format + ")"
		}
	}
	k.Rules = append(k.Rules, rules(n)...)
	return k
}

func rules(n *yaml.Node) (out []string) {
	if enum := items(get(n, "enum")); len(enum) > 0 {
		var values []string
		for _, v := range enum {
			values = append(values, v.Value)
		}
		out = append(out, "one of "+strings.Join(values, ", "))
	}
	for _, rule := range [][2]string{
		{"default", "default "}, {"minimum", "at least "}, {"maximum", "at most "}, {"minLength", "length at least "},
		{"maxLength", "length at most "}, {"maxItems", "at most … items"}, {"maxProperties", "at most … members"},
		{"pattern", "matches "},
	} {
		if v := text(n, rule[0]); v != "" {
			if before, after, ok := strings.Cut(rule[1], "…"); ok {
				out = append(out, before+v+after)
				continue
			}
			out = append(out, rule[1]+v)
		}
	}
	if text(n, "nullable") == "true" {
		out = append(out, "may be null")
	}
	return out
}

// resolve follows a reference within the document.
func (r reader) resolve(n *yaml.Node) *yaml.Node {
	for range 8 { // no document refers to itself more deeply
		ref := text(n, "$ref")
		if ref == "" {
			return n
		}
		at := r.root
		for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
			at = get(at, part)
		}
		n = at
	}
	return n
}

func get(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func text(n *yaml.Node, key string) string {
	if v := get(n, key); v != nil && v.Kind == yaml.ScalarNode {
		return v.Value
	}
	return ""
}

func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

func each(n *yaml.Node, f func(key string, value *yaml.Node)) {
	if n == nil || n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		f(n.Content[i].Value, n.Content[i+1])
	}
}
