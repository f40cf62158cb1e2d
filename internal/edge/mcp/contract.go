package mcp

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/cay-run/cay/api/openapi"
)

// operation is one of the API, in words for a model.
type operation struct {
	id, method, path, scope, text string
	params                        []string
	body, answer                  string
	words                         string // all of it, to be searched
}

// operations are those of both contracts, sorted by path.
var operations = sync.OnceValues(func() ([]operation, error) {
	var out []operation
	for _, text := range [][]byte{openapi.Cay, openapi.E2B} {
		var c contract
		if err := yaml.Unmarshal(text, &c); err != nil {
			return nil, fmt.Errorf("a contract cannot be read: %w", err)
		}
		out = append(out, c.operations()...)
	}
	slices.SortFunc(out, func(a, b operation) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method)) })
	return out, nil
})

// contract is what is read of an OpenAPI document.
type contract struct {
	Paths      map[string]map[string]yaml.Node
	Components struct {
		Schemas    map[string]schema
		Parameters map[string]parameter
		Responses  map[string]response
	}
}

type wireOperation struct {
	ID          string `yaml:"operationId"`
	Scope       string `yaml:"x-scope"`
	Description string
	Deprecated  bool
	Parameters  []parameter
	Body        struct{ Content map[string]media } `yaml:"requestBody"`
	Responses   map[string]response
}

type parameter struct {
	Ref         string `yaml:"$ref"`
	Name, In    string
	Description string
	Required    bool
	Schema      schema
}

type response struct {
	Ref         string `yaml:"$ref"`
	Description string
	Content     map[string]media
}

type media struct{ Schema schema }

type schema struct {
	Ref         string `yaml:"$ref"`
	Type        string
	Format      string
	Description string
	Enum        []any
	Required    []string
	Properties  map[string]schema
	Items       *schema
	AllOf       []schema `yaml:"allOf"`
	OneOf       []schema `yaml:"oneOf"`
}

var methods = []string{"get", "post", "put", "patch", "delete"}

func (c *contract) operations() []operation {
	var out []operation
	for _, path := range slices.Sorted(maps.Keys(c.Paths)) {
		item := c.Paths[path]
		var shared []parameter
		if node, ok := item["parameters"]; ok {
			_ = node.Decode(&shared) // a test reads all
		}
		for _, method := range methods {
			node, ok := item[method]
			if !ok {
				continue
			}
			var w wireOperation
			if node.Decode(&w) != nil || w.Deprecated || w.ID == "" {
				continue
			}
			out = append(out, c.operation(strings.ToUpper(method), path, w, shared))
		}
	}
	return out
}

func (c *contract) operation(method, path string, w wireOperation, shared []parameter) operation {
	o := operation{id: w.ID, method: method, path: path, scope: w.Scope, text: strings.TrimSpace(w.Description)}
	for _, p := range append(slices.Clone(shared), w.Parameters...) {
		if name, ok := strings.CutPrefix(p.Ref, "#/components/parameters/"); ok {
			p = c.Components.Parameters[name]
		}
		if p.In != "path" && p.In != "query" {
			continue
		}
		line := p.In + " " + p.Name + ": " + c.shape(p.Schema, 1)
		if p.Description != "" {
			line += "  // " + strings.TrimSpace(p.Description)
		}
		o.params = append(o.params, line)
	}
	if m, ok := w.Body.Content["application/json"]; ok {
		o.body = c.shape(m.Schema, maxShape)
	}
	for _, code := range slices.Sorted(maps.Keys(w.Responses)) {
		r := w.Responses[code]
		if name, ok := strings.CutPrefix(r.Ref, "#/components/responses/"); ok {
			r = c.Components.Responses[name]
		}
		if !strings.HasPrefix(code, "2") {
			continue
		}
		if o.answer = code; len(r.Content) > 0 {
			o.answer += " " + c.shape(r.Content["application/json"].Schema, maxShape)
		}
		break
	}
	o.words = strings.ToLower(strings.Join(append([]string{o.id, o.method, o.path, o.text, o.body, o.answer}, o.params...), " "))
	return o
}

// maxShape is how deep schemas are told.
const maxShape = 3

// shape is a schema as a type of TypeScript, with what it says of its fields.
func (c *contract) shape(s schema, depth int) string {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		if depth == 0 {
			return name
		}
		s = c.Components.Schemas[name]
	}
	switch {
	case len(s.Enum) > 0:
		var list []string
		for _, v := range s.Enum {
			list = append(list, fmt.Sprintf("%q", fmt.Sprint(v)))
		}
		return strings.Join(list, "|")
	case len(s.AllOf) > 0:
		all := schema{Properties: map[string]schema{}}
		for _, part := range s.AllOf {
			if name, ok := strings.CutPrefix(part.Ref, "#/components/schemas/"); ok {
				part = c.Components.Schemas[name]
			}
			maps.Copy(all.Properties, part.Properties)
			all.Required = append(all.Required, part.Required...)
		}
		return c.shape(all, depth)
	case len(s.OneOf) > 0:
		var list []string
		for _, part := range s.OneOf {
			list = append(list, c.shape(part, max(depth-1, 0)))
		}
		return strings.Join(list, " | ")
	case s.Items != nil:
		return c.shape(*s.Items, depth) + "[]"
	case len(s.Properties) > 0 && depth > 0:
		var fields []string
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			p, mark := s.Properties[name], "?"
			if slices.Contains(s.Required, name) {
				mark = ""
			}
			field := name + mark + ": " + c.shape(p, depth-1)
			if p.Description != "" && depth > 1 {
				field += " /* " + strings.TrimSpace(p.Description) + " */"
			}
			fields = append(fields, field)
		}
		return "{" + strings.Join(fields, ", ") + "}"
	case s.Type == "integer":
		return "number"
	case s.Type == "":
		return "any"
	}
	return s.Type
}

// String is an operation for a model.
func (o operation) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s  (%s; scope: %s)\n", o.method, o.path, o.id, cmp.Or(o.scope, "any"))
	if o.text != "" {
		fmt.Fprintf(&out, "  %s\n", o.text)
	}
	for _, p := range o.params {
		fmt.Fprintf(&out, "  %s\n", p)
	}
	if o.body != "" {
		fmt.Fprintf(&out, "  body: %s\n", o.body)
	}
	fmt.Fprintf(&out, "  answers: %s\n", cmp.Or(o.answer, "nothing"))
	return out.String()
}

// found are the operations that have most of a query's words, the best first.
func found(all []operation, query string) []operation {
	words := strings.FieldsFunc(strings.ToLower(query), func(r rune) bool {
		return r != '/' && r != '_' && r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	type scored struct {
		operation
		score int
	}
	var out []scored
	for _, o := range all {
		score := 0
		for _, word := range words {
			stem := strings.TrimSuffix(word, "s")
			switch name := strings.ToLower(o.id + " " + o.path); {
			case stem == "":
			case strings.Contains(name, stem):
				score += 5
			case strings.Contains(o.words, stem):
				score += 2
			}
			if strings.EqualFold(word, o.id) || strings.EqualFold(word, o.method) {
				score += 5
			}
		}
		if score > 0 {
			out = append(out, scored{o, score})
		}
	}
	slices.SortStableFunc(out, func(a, b scored) int { return b.score - a.score })
	list := make([]operation, len(out))
	for i, o := range out {
		list[i] = o.operation
	}
	return list
}
