package cay_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// spec is the part of an OpenAPI document that a reader of docs/use/api.md
// needs.
type spec struct {
	Paths      map[string]map[string]yaml.Node `yaml:"paths"`
	Components struct {
		Parameters map[string]parameter   `yaml:"parameters"`
		Responses  map[string]response    `yaml:"responses"`
		Schemas    map[string]*jsonSchema `yaml:"schemas"`
	} `yaml:"components"`
}

type operation struct {
	Description string              `yaml:"description"`
	Scope       string              `yaml:"x-scope"`
	Parameters  []parameter         `yaml:"parameters"`
	Body        response            `yaml:"requestBody"`
	Responses   map[string]response `yaml:"responses"`
}

type parameter struct {
	Ref         string     `yaml:"$ref"`
	Name        string     `yaml:"name"`
	In          string     `yaml:"in"`
	Required    bool       `yaml:"required"`
	Description string     `yaml:"description"`
	Schema      jsonSchema `yaml:"schema"`
}

type response struct {
	Ref         string `yaml:"$ref"`
	Description string `yaml:"description"`
	Content     map[string]struct {
		Schema jsonSchema `yaml:"schema"`
	} `yaml:"content"`
}

type jsonSchema struct {
	Ref         string                 `yaml:"$ref"`
	Type        string                 `yaml:"type"`
	Format      string                 `yaml:"format"`
	Description string                 `yaml:"description"`
	Enum        []string               `yaml:"enum"`
	Required    []string               `yaml:"required"`
	Items       *jsonSchema            `yaml:"items"`
	Properties  map[string]*jsonSchema `yaml:"properties"`
	AllOf       []jsonSchema           `yaml:"allOf"`
	Additional  yaml.Node              `yaml:"additionalProperties"`
}

// TestAPIPage holds docs/use/api.md to api/openapi/cay.yaml.
func TestAPIPage(t *testing.T) {
	text, err := os.ReadFile("api/openapi/cay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var s spec
	if err := yaml.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Paths) == 0 || len(s.Components.Schemas) == 0 {
		t.Fatal("the contract has no paths or no schemas")
	}
	var b strings.Builder
	for _, path := range slices.Sorted(mapKeys(s.Paths)) {
		if err := s.writePath(&b, path); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	b.WriteString("## Objects\n\n")
	for _, name := range slices.Sorted(mapKeys(s.Components.Schemas)) {
		schema := s.Components.Schemas[name]
		fmt.Fprintf(&b, "### %s\n\n%s", name, paragraph(schema.Description))
		writeFields(&b, *schema)
	}
	holdPage(t, "docs/use/api.md", "api", b.String())
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// writePath writes the operations of a path, in the order of the methods that
// readers expect.
func (s spec) writePath(b *strings.Builder, path string) error {
	var shared []parameter
	if node, ok := s.Paths[path]["parameters"]; ok {
		if err := node.Decode(&shared); err != nil {
			return err
		}
	}
	for _, method := range []string{"get", "post", "put", "patch", "delete"} {
		node, ok := s.Paths[path][method]
		if !ok {
			continue
		}
		var op operation
		if err := node.Decode(&op); err != nil {
			return err
		}
		fmt.Fprintf(b, "## %s %s\n\n%s", strings.ToUpper(method), path, paragraph(op.Description))
		switch op.Scope {
		case "any":
		case "person":
			b.WriteString("Of the person who asks: not for API keys.\n\n")
		default:
			fmt.Fprintf(b, "Scope: `%s`.\n\n", strings.ReplaceAll(op.Scope, " ", "`, `"))
		}
		s.writeParameters(b, append(slices.Clone(shared), op.Parameters...))
		for _, kind := range slices.Sorted(mapKeys(op.Body.Content)) {
			schema := op.Body.Content[kind].Schema
			fmt.Fprintf(b, "Body, `%s`: %s.\n\n", kind, typeOf(schema))
			writeFields(b, schema)
		}
		for _, status := range slices.Sorted(mapKeys(op.Responses)) {
			r := op.Responses[status]
			if r.Ref != "" {
				r = s.Components.Responses[last(r.Ref)]
			}
			fmt.Fprintf(b, "**%s** %s", status, strings.TrimSpace(r.Description))
			for _, kind := range slices.Sorted(mapKeys(r.Content)) {
				fmt.Fprintf(b, " `%s`: %s.", kind, typeOf(r.Content[kind].Schema))
			}
			b.WriteString("\n\n")
		}
	}
	return nil
}

func (s spec) writeParameters(b *strings.Builder, list []parameter) {
	if len(list) == 0 {
		return
	}
	b.WriteString("| parameter | in | type | meaning |\n|---|---|---|---|\n")
	for _, p := range list {
		if p.Ref != "" {
			p = s.Components.Parameters[last(p.Ref)]
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", p.Name, p.In, typeOf(p.Schema), cell(p.Description))
	}
	b.WriteString("\n")
}

func writeFields(b *strings.Builder, schema jsonSchema) {
	for _, part := range schema.AllOf {
		if part.Ref != "" {
			fmt.Fprintf(b, "As %s, and:\n\n", typeOf(part))
		} else {
			writeFields(b, part)
		}
	}
	if len(schema.Properties) == 0 {
		return
	}
	b.WriteString("| field | type | meaning |\n|---|---|---|\n")
	for _, name := range slices.Sorted(mapKeys(schema.Properties)) {
		field := schema.Properties[name]
		title := "`" + name + "`"
		if slices.Contains(schema.Required, name) {
			title += " *"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", title, typeOf(*field), cell(field.Description))
	}
	b.WriteString("\n")
}

// typeOf names a type in a few words.
func typeOf(s jsonSchema) string {
	switch {
	case s.Ref != "":
		name := last(s.Ref)
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	case len(s.Enum) > 0:
		return "`" + strings.Join(s.Enum, "`, `") + "`"
	case s.Type == "array" && s.Items != nil:
		return "list of " + typeOf(*s.Items)
	case s.Type == "object" && s.Additional.Kind == yaml.MappingNode:
		return "object of texts"
	case s.Format == "date-time":
		return "time"
	case s.Format == "binary":
		return "bytes"
	case s.Type == "string":
		return "text"
	case s.Type == "integer":
		return "whole number"
	case s.Type == "boolean":
		return "true or false"
	}
	return cmp.Or(s.Type, "object")
}

func last(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

func paragraph(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return strings.Join(strings.Fields(text), " ") + "\n\n"
}

func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
}
