package gateway

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	w, err := Parse([]byte(`{
		"filesystem": {"paths": ["/home/user", "/srv"]},
		"firecrawl": {"apiKey": "${e2b.secrets.firecrawl}", "retryMax": 10000000, "url": "", "creditWarningThreshold": null},
		"redis": {"host": "h", "port": 6379, "ssl": false},
		"time": {},
		"memory": null,
		"apify": {"apifyToken": "t"},
		"github/Owner-1/repo.js": {"runCmd": "node .", "installCmd": "npm ci", "envs": {"KEY": "v"}, "later": 1},
		"github/o/r": {"run_cmd": "python3 x.py", "install_cmd": "true"},
		"cay": {"tools": {"filesystem": ["read_file"], "time": []}, "timeout": 30}}`))
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]WantedServer{}
	var names []string
	for _, s := range w.Servers {
		by[s.Name] = s
		names = append(names, s.Name)
	}
	if want := []string{"apify", "filesystem", "firecrawl", "github/Owner-1/repo.js", "github/o/r", "memory", "redis", "time"}; !slices.Equal(names, want) {
		t.Errorf("the servers are %q", names)
	}
	if w.CallTime != 30*time.Second {
		t.Errorf("a call has %s", w.CallTime)
	}
	if got := by["filesystem"]; !slices.Equal(got.Args, []string{"/home/user", "/srv"}) || !slices.Equal(got.Tools, []string{"read_file"}) {
		t.Errorf("filesystem is %+v", got)
	}
	if got := by["firecrawl"].Env; !maps.Equal(got, map[string]string{"FIRECRAWL_API_KEY": "${e2b.secrets.firecrawl}", "FIRECRAWL_RETRY_MAX_ATTEMPTS": "10000000"}) {
		t.Errorf("firecrawl has %v", got)
	}
	if got := by["redis"].Env; got["REDIS_PORT"] != "6379" || got["REDIS_SSL"] != "false" {
		t.Errorf("redis has %v", got)
	}
	if got := by["time"]; got.Tools == nil || len(got.Tools) != 0 {
		t.Errorf("time allows %q", got.Tools)
	}
	if got := by["apify"].Args; len(got) != 0 {
		t.Errorf("apify has the arguments %q", got)
	}
	if got := by["github/Owner-1/repo.js"]; got.Repo != (Repo{"Owner-1", "repo.js", "npm ci", "node ."}) || got.Env["KEY"] != "v" || !slices.Contains(got.Secret, "v") {
		t.Errorf("the repository is %+v", got)
	}
	if got := by["github/o/r"].Repo; got.Run != "python3 x.py" || got.Install != "true" {
		t.Errorf("the repository of Python is %+v", got)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                                   "not a JSON object",
		`null`:                               "not a JSON object",
		`[]`:                                 "not a JSON object",
		`{} {}`:                              "more after it",
		`{"firecrwl": {}}`:                   "there is firecrawl",
		`{"sequential-thinking": {}}`:        "sequentialthinking",
		`{"zzzzzzzz": {}}`:                   "mcp-gateway list",
		`{"tavily": {}}`:                     "tavily: apiKey is missing",
		`{"tavily": {"apiKey": ""}}`:         "tavily: apiKey is missing",
		`{"tavily": []}`:                     "tavily: must be an object",
		`{"tavily": {"apiKey": {}}}`:         "tavily: apiKey must be a text",
		`{"tavily": {"apiKey": "a\u0000b"}}`: "byte of zero",
		`{"brave": {}, "exi": {}}`:           "brave: apiKey is missing\nno server",
		`{"github/o/r": {}}`:                 "runCmd is missing",
		`{"github/o/..": {"runCmd": "x"}}`:   "no server",
		`{"github/../r": {"runCmd": "x"}}`:   "no server",
		`{"github/o/r/s": {"runCmd": "x"}}`:  "no server",
		`{"github/o/-r": {"runCmd": "x"}}`:   "no server",
		`{"github/o/r": {"runCmd": "x", "envs": {"A=B": "c"}}}`: "no name of a variable",
		`{"cay": {"tools": {"time": ["x"]}}}`:                   `cay.tools: "time" is none`,
		`{"cay": {"tool": {}}}`:                                 "unknown field",
		`{"cay": {"timeout": 3601}}`:                            "cay.timeout",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, without %q", text, err, want)
		}
	}
}

// A configuration of any bytes is read or refused, and what is read is whole.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"filesystem":{"paths":["a"]},"time":{},"cay":{"tools":{"time":["x"]}},"github/o/r":{"runCmd":"x"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		w, err := Parse(text)
		if err != nil {
			return
		}
		for _, s := range w.Servers {
			if (s.Row.Name == "") == (s.Repo.Owner == "") || s.Name == "" {
				t.Errorf("%q gives %+v", text, s)
			}
			for name, value := range s.Env {
				if strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
					t.Errorf("%q sets %q to %q", text, name, value)
				}
			}
			if s.Repo.Owner != "" && (strings.Contains(s.Repo.dir(), "..") || !strings.HasPrefix(s.Repo.dir(), reposDir+"/")) {
				t.Errorf("%q leads to %s", text, s.Repo.dir())
			}
		}
	})
}
