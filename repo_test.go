package cay_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Doc,Imports,Deps,GoFiles", "./...").Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			t.Fatalf("go list: %v\n%s", err, failed.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/") {
			all = append(all, p)
		}
	}
	return all
}

// layers lists the host's packages from the top down. A package may import
// those of lower layers only, and none of its own unless it is its child.
var layers = [][]string{
	{"cmd/cay"},
	{"internal/server"},
	{"internal/rest", "internal/proxy", "internal/sshd"},
	{"internal/control"},
	{"internal/node", "internal/template", "internal/build", "internal/auth", "internal/doctor"},
	{"internal/layer", "internal/compare"},
	{"internal/engine", "internal/vnet", "internal/egress", "internal/certs", "internal/image", "internal/oci", "internal/snapshot", "internal/store", "internal/logbook", "internal/config", "internal/embedded", "internal/storage"},
	{"internal/guest", "internal/dockerfile", "internal/seal", "internal/authority", "internal/disk", "internal/conns", "client"},
	{"api"},
	{""},
}

// forbidden are single edges that the layers would allow.
var forbidden = map[string][]string{
	"internal/control": {"internal/engine", "internal/node", "internal/vnet", "internal/build"},
	"internal/node":    {"internal/store", "internal/template", "internal/build"},
	"internal/build":   {"internal/store"},
	"internal/proxy":   {"internal/control"},
	"internal/sshd":    {"internal/control"},
	"internal/doctor":  {"internal/store"},
}

// guestSide packages run inside a sandbox and import nothing of the host.
var guestSide = []string{"cmd/cay-agent", "internal/agent", "internal/interp"}

func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		for _, imported := range p.Imports {
			if imported != module && !strings.HasPrefix(imported, module+"/") {
				continue
			}
			to := strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
			if why := edge(from, to); why != "" {
				t.Errorf("%s imports %s: %s", from, to, why)
			}
		}
	}
}

func edge(from, to string) string {
	if within(from, to) || within(to, from) || strings.HasSuffix(from, "test") {
		return ""
	}
	for _, f := range forbidden[root(from)] {
		if within(to, f) && !(root(from) == "internal/node" && to == "internal/engine") {
			return "this edge is forbidden (see design: what each part may know)"
		}
	}
	if slices.ContainsFunc(guestSide, func(g string) bool { return within(from, g) }) {
		inside := slices.ContainsFunc(guestSide, func(g string) bool { return within(to, g) })
		if !inside && !within(to, "internal/guest") && !within(to, "api") {
			return "what runs inside a sandbox imports nothing of the host"
		}
		return ""
	}
	if f, l := layer(from), layer(to); f >= 0 && l >= 0 && f >= l {
		return "imports point down"
	}
	return ""
}

// within reports whether path is dir or below it. The root holds only itself.
func within(path, dir string) bool {
	return path == dir || dir != "" && strings.HasPrefix(path, dir+"/")
}

func root(path string) string {
	for _, l := range layers {
		for _, r := range l {
			if r != "" && within(path, r) {
				return r
			}
		}
	}
	return path
}

// layer returns a package's layer, or -1 for one that has no place in them.
func layer(path string) int {
	for i, l := range layers {
		if slices.Contains(l, root(path)) {
			return i
		}
	}
	return -1
}

// TestOneImporter keeps each heavy library behind one door.
func TestOneImporter(t *testing.T) {
	doors := map[string]string{
		"modernc.org/sqlite":             "internal/store",
		"github.com/pressly/goose/v3":    "internal/store",
		"github.com/google/nftables":     "internal/vnet",
		"github.com/vishvananda/netlink": "internal/vnet",
		"github.com/alecthomas/kong":     "cmd/cay",
		"github.com/go-chi/chi/v5":       "internal/rest",

		"github.com/google/go-containerregistry": "internal/oci",
		"github.com/caddyserver/certmagic":       "internal/certs",
		"github.com/moby/buildkit":               "internal/dockerfile",
	}
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imported := range p.Imports {
			for library, door := range doors {
				if within(imported, library) && !within(from, door) && !strings.HasSuffix(from, "test") && !within(from, "api") {
					t.Errorf("%s imports %s, which belongs to %s alone", from, imported, door)
				}
			}
		}
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

// TestDirectDependenciesAreExplained holds docs/dependencies.md to go.mod.
func TestDirectDependenciesAreExplained(t *testing.T) {
	doc, err := os.ReadFile("docs/dependencies.md")
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
			t.Errorf("docs/dependencies.md does not name %s", path)
		}
	}
}
