package cay_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/cay-run/cay"

// pkg is the part of `go list -json` that the tests below read.
type pkg struct {
	ImportPath string
	Dir        string
	Doc        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

// packages returns the packages of this module.
func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var listed = sync.OnceValues(func() (all []pkg, err error) {
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Doc,Imports,Deps,GoFiles", "./...").Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return nil, fmt.Errorf("go list: %w\n%s", err, failed.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/") {
			all = append(all, p)
		}
	}
})

// groups are the doors of the house, named by where their code runs, and say
// which others each may import. An entry names a group or one package of it.
// Packages of one group are free among themselves. Every package stands in
// exactly one group.
var groups = map[string][]string{
	"":                  {}, // the domain
	"api":               {},
	"client":            {"", "api", "internal/guest"},
	"cmd/cay-agent":     {"internal/inside", "internal/guest"},
	"cmd/cay":           {"", "client", "internal/cli", "internal/config", "internal/conns", "internal/operator", "internal/server", "internal/spawn", "internal/trail", "internal/edge", "internal/template", "internal/machine", "internal/control/audit"}, // never the records
	"internal/guest":    {"", "api", "internal/near"},
	"internal/inside":   {"internal/guest", "api"},
	"internal/trail":    {""},
	"internal/keys":     {""},
	"internal/conns":    {""},
	"internal/blob":     {""},
	"internal/near":     {},
	"internal/spawn":    {},
	"internal/shares":   {},
	"internal/ticks":    {},
	"internal/config":   {"", "internal/near"},
	"internal/machine":  {"", "api", "internal/blob", "internal/guest", "internal/keys", "internal/conns", "internal/shares", "internal/spawn", "internal/ticks", "internal/trail"},
	"internal/template": {"", "api", "internal/guest", "internal/conns", "internal/machine/node", "internal/machine/snapshot", "internal/machine/erofs", "internal/machine/disk", "internal/shares", "internal/spawn", "internal/trail"},
	"internal/store":    {"", "internal/keys", "internal/trail"},
	"internal/auth":     {"", "internal/keys"},
	"internal/control":  {"", "internal/auth", "internal/guest", "internal/shares", "internal/store", "internal/ticks", "internal/trail"},
	"internal/edge":     {"", "api", "client", "internal/near", "internal/guest", "internal/keys", "internal/conns", "internal/auth", "internal/control", "internal/shares", "internal/spawn", "internal/ticks", "internal/trail", "internal/template/dockerfile"},
	"internal/cli":      {"", "client", "internal/blob", "internal/machine/disk", "internal/template/dockerfile"},
	"internal/operator": everything,
	"internal/server":   everything,
	"test":              everything,

	"internal/telemetry": {"", "internal/trail", "internal/machine"},

	"cmd/cay-mcp-gateway": {"internal/inside", "internal/guest"},
}

var everything = []string{"", "api", "client", "internal"}

func TestImportsFollowGroups(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		group, ok := groupOf(from)
		if !ok {
			t.Errorf("%s stands in no group", from)
			continue
		}
		for _, imported := range p.Imports {
			if imported != module && !strings.HasPrefix(imported, module+"/") {
				continue
			}
			to := strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
			if within(to, group) && group != "" {
				continue
			}
			if !slices.ContainsFunc(groups[group], func(g string) bool { return within(to, g) }) {
				t.Errorf("%s imports %s: group %q may import %q", from, to, group, groups[group])
			}
		}
	}
}

// TestTheAgentIsApart holds the domain out of the agent: each change of the
// agent has all templates built anew.
func TestTheAgentIsApart(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath == module+"/cmd/cay-agent" {
			if slices.Contains(p.Deps, module) {
				t.Error("the agent has the domain's package in it")
			}
			return
		}
	}
	t.Error("cmd/cay-agent was not found")
}

// TestUseCasesAreApart holds the packages of use cases to what they share: none imports
// another one.
func TestUseCasesAreApart(t *testing.T) {
	const all = "internal/control"
	shared := []string{all + "/ledger", all + "/audit", all + "/logbook", all + "/accounts"}
	found := 0
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		if !within(from, all) || from == all || from == all+"/controltest" {
			continue
		}
		found++
		for _, imported := range p.Imports {
			if to := strings.TrimPrefix(imported, module+"/"); within(to, all) && !slices.Contains(shared, to) {
				t.Errorf("%s imports %s", from, to)
			}
		}
	}
	if found < 10 {
		t.Errorf("there are only %d packages of use cases", found)
	}
}

// within reports whether path is dir or below it. The root holds only itself.
func within(path, dir string) bool {
	return path == dir || dir != "" && strings.HasPrefix(path, dir+"/")
}

// groupOf returns the group that a package stands in.
func groupOf(path string) (string, bool) {
	for group := range groups {
		if within(path, group) {
			return group, true
		}
	}
	return "", false
}

// TestOneImporter keeps each heavy library behind one door.
func TestOneImporter(t *testing.T) {
	doors := map[string]string{
		"modernc.org/sqlite":             "internal/store",
		"github.com/jackc/pgx/v5":        "internal/store",
		"github.com/pressly/goose/v3":    "internal/store",
		"github.com/google/nftables":     "internal/machine/vnet",
		"github.com/vishvananda/netlink": "internal/machine/vnet",
		"github.com/alecthomas/kong":     "cmd/cay",
		"github.com/go-chi/chi/v5":       "internal/edge/rest",

		"github.com/google/go-containerregistry": "internal/template/oci",
		"github.com/prometheus/client_golang":    "internal/telemetry",
		"go.opentelemetry.io":                    "internal/telemetry",
		"github.com/caddyserver/certmagic":       "internal/edge/certs",
		"github.com/moby/buildkit":               "internal/template/dockerfile",
		"github.com/minio/minio-go/v7":           "internal/blob",

		"github.com/modelcontextprotocol/go-sdk": "internal/edge/mcp",
	}
	// At the other end of a sandbox's edge there is no other door to go through.
	alsoAt := map[string]string{"internal/inside/gateway": "github.com/modelcontextprotocol/go-sdk"}
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imported := range p.Imports {
			for library, door := range doors {
				if within(imported, library) && !within(from, door) && alsoAt[from] != library && !strings.Contains(from+"/", "test/") && !within(from, "api") {
					t.Errorf("%s imports %s, which belongs to %s alone", from, imported, door)
				}
			}
		}
	}
}

// TestProgramsStartAtOneDoor holds the environment of the server, which has its secrets, out of the
// programs that it starts.
func TestProgramsStartAtOneDoor(t *testing.T) {
	begins := regexp.MustCompile(`\bexec\.Command(Context)?\(|\bos\.(Environ|StartProcess)\(`)
	may := map[string]string{
		"internal/spawn/spawn.go":              "the door",
		"internal/template/image/command.go":   "its callers say which environment",
		"internal/machine/engine/runsc/cli.go": "gets a path alone",
		"internal/edge/certs/dns.go":           "the operator's own program, which may need what the operator has set for it",
		"cmd/cay/main.go":                      "reads the settings",
		"cmd/cay/ssh.go":                       "a client's ssh, in the client's environment",
		"cmd/cay/login.go":                     "a client's browser, in the client's environment",
	}
	found := 0
	for _, name := range tracked(t, ".go") {
		outside := (within(name, "internal") || within(name, "cmd/cay")) && !within(name, "internal/inside")
		if !outside || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "test/") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		switch at := begins.Find(text); {
		case at == nil:
		case may[name] == "":
			t.Errorf("%s has %s: internal/spawn starts programs, without the server's secrets", name, at)
		default:
			found++
		}
	}
	if found != len(may) {
		t.Errorf("only %d of the files that may start programs do", found)
	}
}

func TestPackagesSayWhatTheyAre(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" && !strings.Contains(p.ImportPath, "/api/") {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// tracked returns the repository's files with one of the suffixes.
func tracked(t *testing.T, suffixes ...string) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("git ls-files: %v (not a checkout)", err)
	}
	var files []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if _, err := os.Stat(name); err == nil && slices.Contains(suffixes, filepath.Ext(name)) {
			files = append(files, name)
		}
	}
	return files
}

// TestFilesAreRooms fails for a file that has grown past what one reads.
func TestFilesAreRooms(t *testing.T) {
	const most = 800
	for _, name := range tracked(t, ".go", ".py", ".mjs", ".ts") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if generated.Match(text) {
			continue
		}
		if n := bytes.Count(text, []byte("\n")); n > most {
			t.Errorf("%s has %d lines; %d is the most", name, n, most)
		}
	}
}

// TestDirectDependenciesAreExplained holds docs/develop/dependencies.md to go.mod.
func TestDirectDependenciesAreExplained(t *testing.T) {
	doc, err := os.ReadFile("docs/develop/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			used[imported] = true
		}
	}
	mod, err := os.Open("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	defer mod.Close()
	for lines := bufio.NewScanner(mod); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") {
			continue
		}
		path := fields[0]
		direct := false
		for imported := range used {
			direct = direct || imported == path || strings.HasPrefix(imported, path+"/")
		}
		if direct && !bytes.Contains(doc, []byte("`"+path+"`")) {
			t.Errorf("docs/develop/dependencies.md does not name %s", path)
		}
	}
}
