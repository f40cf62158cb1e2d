package image

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// shelf keeps images by their content, as snapshot.Dir does.
type shelf struct{ dir string }

func (s shelf) AddImage(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	digest := FilesDigest([]File{{Data: data}})
	return digest, os.Rename(path, filepath.Join(s.dir, digest))
}

// world is a builder whose data directory holds the tree of one recipe: a
// shell of this host and the libraries that it needs.
type world struct {
	*Builder
	data string
	sh   Recipe
}

func newWorld(t *testing.T) world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("building images needs root")
	}
	if err := need("mkfs.erofs", "unshare", "cp"); err != nil {
		t.Skipf("this host cannot build images: %v", err)
	}
	data := t.TempDir()
	w := world{NewBuilder(data, shelf{data}), data, Recipe{Name: "sh"}}
	tree := filepath.Join(w.trees, w.sh.Digest())
	for _, dir := range []string{"proc", "dev", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	libs, err := exec.Command("ldd", "/bin/sh").Output()
	if err != nil {
		t.Skipf("this host's shell cannot be copied: %v", err)
	}
	for _, path := range append(regexp.MustCompile(`/\S+`).FindAllString(string(libs), -1), "/bin/sh") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := write(tree, []File{{Path: path, Mode: 0o755, Data: data}}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// extract unpacks an image and returns where.
func (w world) extract(t *testing.T, digest string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "root")
	out, err := exec.Command("fsck.erofs", "--extract="+to, filepath.Join(w.data, digest)).CombinedOutput()
	if err != nil {
		t.Fatalf("unpack the image: %v\n%s", err, out)
	}
	return to
}

// clean fails when the host shows mounts below the data directory, or the
// builder left temporary names.
func (w world) clean(t *testing.T) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), w.data) {
		t.Errorf("the builder left mounts below %s", w.data)
	}
	left, err := filepath.Glob(filepath.Join(w.trees, tempPrefix+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("the builder left %v, %v", left, err)
	}
}

func quiet(string, int) {}

func TestBuild(t *testing.T) {
	w := newWorld(t)
	r := Recipe{
		Name: "small", From: &w.sh,
		Files: []File{{Path: "/etc/motd", Mode: 0o644, Data: []byte("hello\n")}},
		Steps: []Step{
			{Name: "look", Script: "[ $$ = 1 ] && [ -c /dev/null ] && [ -e /proc/1/stat ] && [ ! -e " + w.data + " ]"},
			{Name: "mark", Script: "echo made > /made; echo gone > /tmp/gone"},
		},
	}
	var steps []string
	var digests []string
	for range 2 { // the second time the tree is there
		digest, err := w.Build(t.Context(), r, []File{{Path: "/usr/lib/agent", Mode: 0o755, Data: []byte("agent")}},
			func(step string, _ int) { steps = append(steps, step) })
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
		w.clean(t)
	}
	if digests[0] != digests[1] {
		t.Error("the same tree made two images")
	}
	if all := strings.Join(steps, "\n"); strings.Count(all, "small: mark") != 1 || strings.Count(all, "writing the image") != 2 {
		t.Errorf("the steps were\n%s", all)
	}
	root := w.extract(t, digests[0])
	for path, want := range map[string]string{"etc/motd": "hello\n", "made": "made\n", "usr/lib/agent": "agent"} {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", path, got, err, want)
		}
	}
	if st, err := os.Stat(filepath.Join(root, "etc/motd")); err != nil || !st.ModTime().Equal(epoch) {
		t.Errorf("the image did not keep a file's time: %v, %v", st, err)
	}
	for _, dir := range []string{"dev", "proc", "tmp"} { // a step's files there are not the tree's
		if entries, err := os.ReadDir(filepath.Join(root, dir)); err != nil || len(entries) != 0 {
			t.Errorf("%s holds %v, %v", dir, entries, err)
		}
	}

	other, err := w.Build(t.Context(), r, []File{{Path: "/usr/lib/agent", Mode: 0o755, Data: []byte("newer")}}, quiet)
	if err != nil || other == digests[0] {
		t.Errorf("a newer agent made the image %s, %v", other, err)
	}
}

func TestBuildThatFailsLeavesNothing(t *testing.T) {
	w := newWorld(t)
	r := Recipe{Name: "bad", From: &w.sh, Steps: []Step{{Name: "fail", Script: "echo so sorry; exit 3"}}}
	_, err := w.Build(t.Context(), r, nil, quiet)
	if cay.KindOf(err) != cay.Internal || !strings.Contains(err.Error(), "so sorry") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(filepath.Join(w.trees, r.Digest())); err == nil {
		t.Error("a half-made tree has its name")
	}
	w.clean(t)
}

func TestBuildEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := Recipe{Name: "slow", From: &w.sh, Steps: []Step{{Name: "wait", Script: "while :; do :; done"}}}
	_, err := w.Build(ctx, r, nil, func(step string, _ int) {
		if strings.HasSuffix(step, "wait") {
			time.AfterFunc(50*time.Millisecond, cancel)
		}
	})
	if cay.KindOf(err) != cay.Unavailable {
		t.Errorf("got %v", err)
	}
	w.clean(t)
}

func TestBuildRemovesWhatKilledOnesLeft(t *testing.T) {
	w := newWorld(t)
	left := filepath.Join(w.trees, tempPrefix+"1", "tree")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Build(t.Context(), w.sh, nil, quiet); err != nil {
		t.Fatal(err)
	}
	w.clean(t)
}

func TestPruneKeepsWhatRecipesStandOn(t *testing.T) {
	w := newWorld(t)
	child := Recipe{Name: "child", From: &w.sh}
	old := Recipe{Name: "old", From: &w.sh}
	for _, r := range []Recipe{child, old} {
		if _, err := w.Build(t.Context(), r, nil, quiet); err != nil {
			t.Fatal(err)
		}
	}
	for _, dry := range []bool{true, false} {
		gone, err := w.Prune(t.Context(), dry, child)
		if err != nil || len(gone) != 1 || gone[0].Name != old.Digest() || gone[0].Bytes == 0 {
			t.Fatalf("dry %v: got %v, %v", dry, gone, err)
		}
		if _, err := os.Lstat(filepath.Join(w.trees, old.Digest())); (err == nil) != dry {
			t.Fatalf("dry %v: the old tree is there: %v", dry, err == nil)
		}
	}
	for _, c := range []struct {
		r    Recipe
		kept bool
	}{{w.sh, true}, {child, true}, {old, false}} {
		if _, err := os.Lstat(filepath.Join(w.trees, c.r.Digest())); (err == nil) != c.kept {
			t.Errorf("%s is kept: %v", c.r.Name, err == nil)
		}
	}
}
