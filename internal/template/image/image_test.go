package image

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

func TestDigestNamesTheRecipe(t *testing.T) {
	small := Recipe{Name: "small", Suite: "bookworm", Packages: []string{"bash"}}
	// A change of this digest makes every tree on every machine be built again.
	const want = "e32591ec014689e59af7d503aefff5a30656a76bf79db6d3f2ede733ec22c583"
	if got := small.Digest(); got != want {
		t.Errorf("the digest is %s, want %s", got, want)
	}
	seen := map[string]string{small.Digest(): "small"}
	for name, r := range map[string]Recipe{
		"base": Base(), "interpreter": CodeInterpreter(), "desktop": Desktop(),
		"more packages": {Name: "small", Suite: "bookworm", Packages: []string{"bash", "git"}},
		"on another":    {Name: "small", From: &small},
		"step":          {Name: "small", Suite: "bookworm", Packages: []string{"bash"}, Steps: []Step{{Script: "true"}}},
		"file":          {Name: "small", Suite: "bookworm", Packages: []string{"bash"}, Files: []File{{Path: "/a"}}},
	} {
		if other, ok := seen[r.Digest()]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[r.Digest()] = name
	}
	base, interpreter := Base().Digest(), CodeInterpreter().Digest()
	for range 20 { // no map's order goes in
		if Base().Digest() != base || CodeInterpreter().Digest() != interpreter {
			t.Fatal("the same recipe has two digests")
		}
	}
}

// The unit tests of the interpreter run with what its templates have, and the
// newer set replaces each library of the pinned one.
func TestLibrariesOfTheInterpreter(t *testing.T) {
	setup, err := os.ReadFile("../../../scripts/setup")
	if err != nil || !strings.Contains(string(setup), "build/pyenv "+kernel+libraries+" ") {
		t.Errorf("scripts/setup installs other versions than %s%s: %v", kernel, libraries, err)
	}
	names := func(requirements string) (out []string) {
		for _, r := range strings.Fields(requirements) {
			name, version, pinned := strings.Cut(r, "==")
			if !pinned || version == "" {
				t.Errorf("%s is not pinned", r)
			}
			out = append(out, name)
		}
		return out
	}
	if !slices.Equal(names(libraries), names(newer)) {
		t.Errorf("the newer set is %s, the other %s", newer, libraries)
	}
}

// A desktop's settings must be readable, or Xfce and the browser
// silently have settings of their own.
func TestDesktopSettingsAreReadable(t *testing.T) {
	for _, f := range Desktop().Files {
		var err error
		switch filepath.Ext(f.Path) {
		case ".xml":
			err = xml.Unmarshal(f.Data, new(struct{}))
		case ".json":
			err = json.Unmarshal(f.Data, new(map[string]any))
		}
		if err != nil {
			t.Errorf("%s: %v", f.Path, err)
		}
	}
	for _, step := range Desktop().Steps {
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", "-c", step.Script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", step.Name, err, out)
		}
		for document := range strings.SplitSeq(step.Script, "<<'EOF'\n") {
			text, _, _ := strings.Cut(document, "\nEOF\n")
			if !strings.HasPrefix(text, "<?xml") {
				continue
			}
			if err := xml.Unmarshal([]byte(text), new(struct{})); err != nil {
				t.Errorf("%s: %v", step.Name, err)
			}
		}
	}
}

func TestFilesDigest(t *testing.T) {
	a := []File{{Path: "/a", Mode: 0o644, Data: []byte("x")}}
	b := []File{{Path: "/a", Mode: 0o755, Data: []byte("x")}}
	if FilesDigest(a) == FilesDigest(b) || FilesDigest(a) != FilesDigest(slices.Clone(a)) {
		t.Error("the digest does not name the files")
	}
}

func TestHostSourcesTakesTheReleaseOnly(t *testing.T) {
	etc := t.TempDir()
	parts := filepath.Join(etc, "sources.list.d")
	if err := os.Mkdir(parts, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(etc, "sources.list"): `
# deb http://example.test/debian bookworm main
deb [signed-by=/a.gpg arch=amd64] http://example.test/one bookworm main contrib
deb http://example.test/two bookworm-updates main
deb-src http://example.test/three bookworm main
deb http://example.test/four trixie main
deb http://example.test/five bookwormish main
`,
		filepath.Join(parts, "vendor.list"): "deb https://example.test/vendor vendor-bookworm main\n",
		filepath.Join(parts, "debian.sources"): `Types: deb deb-src
# a remark
URIs: http://example.test/six
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://example.test/seven
Suites: bookworm-security
Enabled: no

Types: deb
URIs: http://example.test/eight
Suites: nodistro
`,
		filepath.Join(parts, "old.sources.disabled"): "Types: deb\nURIs: http://example.test/nine\nSuites: bookworm\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := hostSources(etc, "bookworm")
	if err != nil {
		t.Fatal(err)
	}
	all := string(got["debian.list"]) + string(got["debian.sources"])
	for _, want := range []string{"/one ", "/two ", "/six"} {
		if !strings.Contains(all, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, not := range []string{"three", "four", "five", "seven", "eight", "nine", "vendor"} {
		if strings.Contains(all, not) {
			t.Errorf("%s was taken", not)
		}
	}
	none, err := hostSources(etc, "forky")
	if err != nil || len(none) != 0 {
		t.Errorf("for a release that the host lacks: %v, %v", none, err)
	}
}

func TestShareableIndexes(t *testing.T) {
	for index, want := range map[string]bool{
		"https://index.example.test/simple":            true,
		"http://index.example.test:8080/simple":        true,
		"https://name:secret@index.example.test/":      false,
		"file:///opt/wheels":                           false,
		"/opt/wheels":                                  false,
		"http://localhost:3141/root":                   false,
		"http://127.0.0.1/":                            false,
		"":                                             false,
		"https://one.example.test https://b:c@d.test/": false,
	} {
		if got := shareable(index); got != want {
			t.Errorf("shareable(%q) is %v", index, got)
		}
	}
}

func TestGlobalSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pip.conf")
	text := "top = 1\n[global]\nindex-url = https://example.test/simple\n[install]\nextra-index-url = https://no.test\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := globalSettings(path)
	if got["top"] != "1" || got["index-url"] != "https://example.test/simple" || got["extra-index-url"] != "" {
		t.Errorf("got %v", got)
	}
	if got := globalSettings(path + ".absent"); got != nil {
		t.Errorf("of an absent file: %v", got)
	}
}

func TestHostFilesTrustTheHost(t *testing.T) {
	files, err := HostFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{bundlePath, "/etc/pip.conf", "/usr/local/etc/npmrc"} {
		if !slices.ContainsFunc(files, func(f File) bool { return f.Path == want && len(f.Data) > 0 }) {
			t.Errorf("%s is missing", want)
		}
	}
	for name, path := range Env() {
		if name != "LANG" && path != bundlePath {
			t.Errorf("%s=%s names no file of the guest", name, path)
		}
	}
}

func TestWriteStaysInTheTree(t *testing.T) {
	tree, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(tree, "etc")); err != nil {
		t.Fatal(err)
	}
	if _, err := write(tree, []File{{Path: "/etc/passwd", Mode: 0o644}}); err == nil {
		t.Error("a link led out of the tree")
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("outside the tree there is now %v", entries)
	}
}

func TestWriteReplacesWhatDiffers(t *testing.T) {
	tree := t.TempDir()
	if err := os.Symlink("elsewhere", filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}
	files := []File{
		{Path: "/a/b/run", Mode: 0o755, Data: []byte("x")},
		{Path: "/link", Mode: 0o440, Data: []byte("y")},
	}
	for round, want := range []int{2, 0} {
		changed, err := write(tree, files)
		if err != nil || len(changed) != want {
			t.Fatalf("round %d changed %v, %v", round, changed, err)
		}
	}
	st, err := os.Lstat(filepath.Join(tree, "link"))
	if err != nil || st.Mode() != 0o440 || !st.ModTime().Equal(epoch) {
		t.Errorf("got %v, %v", st, err)
	}
	files[0].Data = []byte("z")
	if changed, err := write(tree, files); err != nil || !slices.Equal(changed, []string{"/a/b/run"}) {
		t.Errorf("changed %v, %v", changed, err)
	}
}

func TestLinesSplitsAndKeepsTheTail(t *testing.T) {
	var got []string
	l := &lines{onLine: func(s string) { got = append(got, s) }}
	for _, part := range []string{"one\ntw", "o\n\n", strings.Repeat("x", 3*tailSize), "\nlast"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.flush()
	if len(got) != 4 || got[0] != "one" || got[1] != "two" || got[3] != "last" || l.last != "last" {
		t.Errorf("got %d lines: %.40q", len(got), got)
	}
	if len(l.tail) != tailSize || !strings.HasSuffix(string(l.tail), "last") {
		t.Errorf("the tail has %d bytes", len(l.tail))
	}
}

func TestRoomSaysWhatIsFull(t *testing.T) {
	dir := t.TempDir()
	if err := room(dir, 0); err != nil {
		t.Error(err)
	}
	if err := room(dir, 1<<62); cay.KindOf(err) != cay.NoSpace || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
}

func TestNeedSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := need("mkfs.erofs")
	if cay.KindOf(err) != cay.Unsupported || !strings.Contains(err.(*cay.Error).Hint, "erofs-utils") {
		t.Errorf("got %v", err)
	}
}

func TestQuickProfile(t *testing.T) {
	tree := t.TempDir()
	if err := quickProfile(tree); err != nil { // it has none
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(tree, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(tree, "etc/profile")
	const debian = "# /etc/profile\nif [ \"$(id -u)\" -eq 0 ]; then\n  A=root\nelse\n  A=other\nfi\n"
	for _, was := range []string{debian, "id -u\n"} {
		if err := os.WriteFile(path, []byte(was), 0o644); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a tree is used again
			if err := quickProfile(tree); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if was != debian {
			if string(text) != was {
				t.Errorf("another profile became %q", text)
			}
			continue
		}
		// No program is needed, and all shells agree.
		for shell, env := range map[string]string{"bash": "PATH=/none", "dash": "PATH=/usr/bin:/bin"} {
			cmd := exec.Command("/bin/"+shell, "-c", string(text)+"echo $A")
			cmd.Env = []string{env}
			want := "other\n"
			if os.Getuid() == 0 {
				want = "root\n"
			}
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
				t.Errorf("%s: %q, %v, want %q", shell, out, err, want)
			}
		}
	}
}

// A tree of Debian has the agent's commands once, whatever was there, and dpkg
// knows that their names are taken.
func TestServicesOfATree(t *testing.T) {
	tree := t.TempDir()
	if err := services(tree); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(tree, "usr")); err == nil {
		t.Error("a tree that is no Debian is changed")
	}
	for path, text := range map[string]string{"usr/bin/systemctl": "real", "usr/sbin/other": "", "var/lib/dpkg/diversions": "/bin/sh\n/bin/sh.distrib\ndash\n"} {
		path = filepath.Join(tree, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := services(tree); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"bin/systemctl", "bin/journalctl", "sbin/init"} {
			if to, err := os.Readlink(filepath.Join(tree, "usr", name)); err != nil || to != guest.AgentPath {
				t.Errorf("%s leads to %q, %v", name, to, err)
			}
		}
		if text, err := os.ReadFile(filepath.Join(tree, "usr/bin/systemctl.systemd")); err != nil || string(text) != "real" {
			t.Errorf("what was there is %q, %v", text, err)
		}
		text, err := os.ReadFile(filepath.Join(tree, "var/lib/dpkg/diversions"))
		if err != nil || strings.Count(string(text), "\n") != 3+6*3 || !strings.Contains(string(text), "/usr/bin/journalctl\n/usr/bin/journalctl.systemd\n:\n") {
			t.Errorf("diversions %q, %v", text, err)
		}
	}
}
