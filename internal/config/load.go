package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/near"
)

// Load makes the configuration from an environment in the form of os.Environ,
// and the file that it names. Variables that do not begin with CAY_ are
// ignored, as are those of tests. The error is the first of what is wrong.
func Load(environ []string) (Config, error) {
	c, _, problems := Read(environ)
	switch len(problems) {
	case 0:
		return c, nil
	case 1:
		return Config{}, problems[0]
	}
	first := problems[0]
	var ours *cay.Error
	if errors.As(first, &ours) && ours.Hint == "" {
		first = ours.WithHint("%d more settings are wrong: `cay config check` lists all", len(problems)-1)
	}
	return Config{}, first
}

// Setting is a setting as it is in force.
type Setting struct {
	Key      string `json:"key"`
	Variable string `json:"variable"`
	Value    string `json:"value"` // passwords in addresses are masked
	From     string `json:"from"`  // "default", a variable, or a line of the file
}

// Read makes the configuration as Load does, as far as that can be done, and
// returns with it where each setting comes from and everything that is wrong.
func Read(environ []string) (Config, []Setting, []error) {
	c := Default()
	set, problems := ours(environ)
	from := map[string]string{}
	if path := set[fileVariable]; path != "" {
		lines, bad := c.read(path)
		for key, line := range lines {
			from[key] = fmt.Sprintf("%s:%d", path, line)
		}
		problems = append(problems, bad...)
	}
	for _, v := range Variables {
		value, ok := set[v.Name]
		if !ok || v.set == nil {
			continue
		}
		from[v.Key] = v.Name
		next := c // a value that is wrong leaves the one before
		if err := v.set(&next, value); err != nil {
			problems = append(problems, cay.Wrap(cay.Invalid, err, "%s=%q is wrong", v.Name, value))
			continue
		}
		c = next
	}
	return c, c.settings(from), append(problems, c.problems()...)
}

// ours picks Cay's variables out of an environment.
func ours(environ []string) (set map[string]string, problems []error) {
	set = map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "CAY_") || slices.ContainsFunc(foreign, func(f string) bool {
			return strings.HasPrefix(name, f)
		}) {
			continue
		}
		if variable(name) == nil {
			problems = append(problems, cay.Errorf(cay.Invalid, "unknown environment variable %s", name).WithHint("%s", spelling(name)))
			continue
		}
		set[name] = value
	}
	return set, problems
}

// spelling is the hint about a variable that is not there.
func spelling(name string) string {
	names := make([]string, len(Variables))
	for i, v := range Variables {
		names[i] = v.Name
	}
	hint := "unset it"
	if like := near.Words(name, names); len(like) > 0 {
		hint = "did you mean " + strings.Join(like, " or ") + "? Otherwise unset it"
	}
	return hint + "; `cay server --help` lists the ones there are"
}

// read lays the YAML file at path over c, and returns the line of each key.
func (c *Config) read(path string) (lines map[string]int, problems []error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, []error{cay.Wrap(cay.Invalid, err, "the file named by %s cannot be read", fileVariable)}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	err = decoder.Decode(c)
	var each *yaml.TypeError
	switch {
	case errors.Is(err, io.EOF):
		return nil, nil
	case errors.As(err, &each):
		for _, text := range each.Errors {
			problems = append(problems, cay.Errorf(cay.Invalid, "%s is not a good configuration: %s", path, text))
		}
	case err != nil:
		return nil, []error{cay.Wrap(cay.Invalid, err, "%s is not a good configuration", path)}
	}
	var root yaml.Node
	if yaml.Unmarshal(data, &root) != nil || len(root.Content) == 0 {
		return nil, problems
	}
	lines = map[string]int{}
	pairs := root.Content[0].Content
	for i := 0; i+1 < len(pairs); i += 2 {
		lines[pairs[i].Value] = pairs[i].Line
	}
	return lines, problems
}

// settings lists all of them, in the order of the variables.
func (c Config) settings(from map[string]string) []Setting {
	values := map[string]string{}
	collect(reflect.ValueOf(c), values)
	values["tls"] = c.TLSMode() // what is in force where it is left to us
	values["paths"] = map[bool]string{true: "on", false: "off"}[c.PathForm()]
	var out []Setting
	for _, v := range Variables {
		if v.Key == "" {
			continue
		}
		value := mask(values[v.Key])
		if v.Key == "adminToken" && value != "" {
			value = "***"
		}
		if v.Key == "databaseURL" && value != "" {
			value = maskDatabase(values[v.Key])
		}
		out = append(out, Setting{
			Key: v.Key, Variable: v.Name, Value: value, From: cmp.Or(from[v.Key], "default"),
		})
	}
	return out
}

// collect renders the fields of a structure by their names in the file.
func collect(v reflect.Value, values map[string]string) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			collect(v.Field(i), values)
			continue
		}
		values[field.Tag.Get("yaml")] = text(v.Field(i))
	}
}

func text(v reflect.Value) string {
	if v.Kind() != reflect.Slice {
		return fmt.Sprint(v.Interface())
	}
	var out []string
	for i := range v.Len() {
		out = append(out, text(v.Index(i)))
	}
	return strings.Join(out, ",")
}

// password is the user's part of a URL.
var password = regexp.MustCompile(`://[^/@\s,]+@`)

// mask hides passwords: settings are shown to people and put into reports.
func mask(value string) string { return password.ReplaceAllString(value, "://***@") }
