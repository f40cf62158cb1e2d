package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay/internal/guest/catalogue"
)

// ownKey is the key of the configuration that is Cay's: what E2B's has no word for.
const ownKey = "cay"

// usualCallTime bounds a server's answer unless the configuration says otherwise.
const usualCallTime = 5 * time.Minute

// Wanted is what a configuration asks for.
type Wanted struct {
	Servers  []WantedServer // sorted by name
	CallTime time.Duration
}

// WantedServer is one server of the catalogue or of GitHub.
type WantedServer struct {
	Name   string
	Row    catalogue.Server  // of the catalogue; its name is empty for one of GitHub
	Repo   Repo              // of GitHub; its owner is empty for one of the catalogue
	Args   []string          // after the program
	Env    map[string]string // besides the usual variables
	Tools  []string          // that clients may use; nil are all
	Ask    []string          // tools whose calls a person is asked about; anyTool is all
	Secret []string          // values that are not logged
}

// Repo is a repository of GitHub that holds a server.
type Repo struct{ Owner, Name, Install, Run string }

// repoName is what GitHub allows, less the names that are directories.
var repoName = regexp.MustCompile(`^github/([A-Za-z0-9][A-Za-z0-9-]{0,38})/([A-Za-z0-9_][A-Za-z0-9._-]{0,99})$`)

// ParseRepo reads github/<owner>/<repo>.
func ParseRepo(name string) (Repo, bool) {
	m := repoName.FindStringSubmatch(name)
	if m == nil {
		return Repo{}, false
	}
	return Repo{Owner: m[1], Name: m[2]}, true
}

// Parse reads the configuration that the SDKs pass on: an object by the names of
// servers. An error names each thing that is wrong.
func Parse(text []byte) (Wanted, error) {
	w := Wanted{CallTime: usualCallTime}
	var byName map[string]json.RawMessage
	if err := decode(text, &byName); err != nil || byName == nil {
		return w, fmt.Errorf("the configuration is not a JSON object by the names of servers: %w", cmpErr(err))
	}
	var own struct {
		Tools   map[string][]string `json:"tools"`
		Ask     map[string][]string `json:"ask"`
		Timeout int                 `json:"timeout"`
	}
	if raw, ok := byName[ownKey]; ok {
		delete(byName, ownKey)
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&own); err != nil {
			return w, fmt.Errorf("%s: it has tools and ask, objects of lists by server, and timeout, in seconds: %w", ownKey, err)
		}
		if own.Timeout < 0 || own.Timeout > 3600 {
			return w, fmt.Errorf("%s.timeout: must be 1 to 3600 seconds", ownKey)
		}
		if own.Timeout > 0 {
			w.CallTime = time.Duration(own.Timeout) * time.Second
		}
	}
	var wrong error
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		s, err := wanted(name, byName[name])
		if err != nil {
			wrong = errors.Join(wrong, err)
			continue
		}
		if tools, ok := own.Tools[name]; ok {
			s.Tools = append([]string{}, tools...) // an empty list allows none
		}
		s.Ask = own.Ask[name]
		w.Servers = append(w.Servers, s)
	}
	for key, lists := range map[string]map[string][]string{"tools": own.Tools, "ask": own.Ask} {
		for _, name := range slices.Sorted(maps.Keys(lists)) {
			if _, ok := byName[name]; !ok {
				wrong = errors.Join(wrong, fmt.Errorf("%s.%s: %.100q is none of the servers here", ownKey, key, name))
			}
		}
	}
	return w, wrong
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it is null")
	}
	return err
}

// decode reads one JSON value and keeps numbers as they are.
func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after it")
	}
	return nil
}

func wanted(name string, raw json.RawMessage) (WantedServer, error) {
	var values map[string]any
	if err := decode(raw, &values); err != nil {
		return WantedServer{}, fmt.Errorf("%.100s: must be an object: %w", name, err)
	}
	if repo, ok := ParseRepo(name); ok {
		return fromGitHub(name, repo, values)
	}
	row, err := Lookup(name)
	if err != nil {
		return WantedServer{}, err
	}
	return fromCatalogue(row, values)
}

// Lookup finds a server of the catalogue, or says which are like it.
func Lookup(name string) (catalogue.Server, error) {
	row, ok := catalogue.Find(name)
	if ok {
		return row, nil
	}
	hint := "mcp-gateway list prints those that there are"
	if near := catalogue.Near(name); len(near) > 0 {
		hint = "there is " + strings.Join(near, ", ")
	}
	return row, fmt.Errorf("no server %.100q is here: %s; any other is github/<owner>/<repo> with runCmd", name, hint)
}

func fromCatalogue(row catalogue.Server, values map[string]any) (WantedServer, error) {
	s := WantedServer{Name: row.Name, Row: row, Env: maps.Clone(row.Fixed)}
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	texts, err := asTexts(row.Name, values)
	if err != nil {
		return s, err
	}
	for _, need := range row.Needs {
		if len(texts[need]) == 0 {
			return s, fmt.Errorf("%s: %s is missing", row.Name, need)
		}
	}
	for _, arg := range row.Args {
		s.Args = append(s.Args, fill(arg, texts)...)
	}
	for variable, key := range row.Env {
		if v := texts[key]; len(v) > 0 {
			s.Env[variable] = strings.Join(v, ",")
		}
	}
	for _, v := range texts {
		s.Secret = append(s.Secret, v...)
	}
	return s, nil
}

// fill puts values into an argument of a row.
func fill(arg string, texts map[string][]string) []string {
	open, end := strings.IndexByte(arg, '{'), strings.IndexByte(arg, '}')
	if open < 0 || end < open {
		return []string{arg}
	}
	key := arg[open+1 : end]
	if list, ok := strings.CutSuffix(key, "..."); ok {
		return texts[list]
	}
	if len(texts[key]) == 0 {
		return nil
	}
	return []string{arg[:open] + strings.Join(texts[key], ",") + arg[end+1:]}
}

// fromGitHub reads what E2B's SDKs send for a server of a repository: runCmd and
// installCmd (js), run_cmd and install_cmd (python), envs.
func fromGitHub(name string, repo Repo, values map[string]any) (WantedServer, error) {
	s := WantedServer{Name: name, Repo: repo, Env: map[string]string{}}
	for key, value := range values {
		text, isText := value.(string)
		switch {
		case (key == "runCmd" || key == "run_cmd") && isText:
			s.Repo.Run = text
		case (key == "installCmd" || key == "install_cmd") && isText:
			s.Repo.Install = text
		case key == "envs":
			variables, ok := value.(map[string]any)
			if !ok {
				return s, fmt.Errorf("%s: envs must be an object", name)
			}
			texts, err := asTexts(name, variables)
			if err != nil {
				return s, err
			}
			for variable, v := range texts {
				if variable == "" || strings.ContainsRune(variable, '=') {
					return s, fmt.Errorf("%s: envs has %.100q, which is no name of a variable", name, variable)
				}
				s.Env[variable] = strings.Join(v, ",")
				s.Secret = append(s.Secret, v...)
			}
		}
	}
	if s.Repo.Run == "" {
		return s, fmt.Errorf("%s: runCmd is missing, the command that starts the server", name)
	}
	if strings.ContainsRune(s.Repo.Run+s.Repo.Install, 0) {
		return s, fmt.Errorf("%s: a command has a byte of zero", name)
	}
	return s, nil
}

// asTexts reads values as the text of variables and arguments. A value that is
// null or empty is as if it was not there.
func asTexts(name string, values map[string]any) (map[string][]string, error) {
	out := map[string][]string{}
	for key, value := range values {
		list, isList := value.([]any)
		if !isList {
			list = []any{value}
		}
		for _, one := range list {
			text := ""
			switch v := one.(type) {
			case nil:
			case string:
				text = v
			case json.Number:
				text = v.String()
			case bool:
				text = strconv.FormatBool(v)
			default:
				return nil, fmt.Errorf("%s: %.100s must be a text, a number, a boolean or a list of them", name, key)
			}
			if strings.ContainsRune(text, 0) {
				return nil, fmt.Errorf("%s: %.100s has a byte of zero", name, key)
			}
			if text != "" {
				out[key] = append(out[key], text)
			}
		}
	}
	return out, nil
}
