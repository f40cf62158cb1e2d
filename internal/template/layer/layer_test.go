package layer

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// model is a file system as a step sees it: names of directories (ending with
// "/") and files with their contents.
type model map[string]string

func (m model) dirs() []string {
	out := []string{""}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if strings.HasSuffix(name, "/") {
			out = append(out, name)
		}
	}
	return out
}

func (m model) remove(name string) {
	for other := range m {
		if other == name || strings.HasSuffix(name, "/") && strings.HasPrefix(other, name) {
			delete(m, other)
		}
	}
}

// change does something at random.
func (m model) change(r *rand.Rand) {
	dirs := m.dirs()
	dir := dirs[r.IntN(len(dirs))]
	name := dir + string(rune('a'+r.IntN(6)))
	switch r.IntN(6) {
	case 0:
		m.remove(name)
		m.remove(name + "/")
	case 1:
		m.remove(name)
		m[name+"/"] = ""
	case 2:
		if dir != "" {
			m.remove(dir)
		}
	default:
		m.remove(name + "/")
		m[name] = strings.Repeat(fmt.Sprint(r.IntN(20)), r.IntN(3000))
	}
}

// since writes how m differs from base, as an engine does.
func (m model) since(t *testing.T, base model) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	put := func(h *tar.Header, body string) {
		h.Size, h.ModTime = int64(len(body)), time.Unix(1_600_000_000, 0)
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(base)) {
		bare := strings.TrimSuffix(name, "/")
		_, file := m[bare]
		_, dir := m[bare+"/"]
		parent, _ := path.Split(bare)
		if _, stands := m[parent]; !file && !dir && (parent == "" || stands) {
			put(&tar.Header{Name: parent + whiteout + path.Base(bare), Typeflag: tar.TypeReg}, "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if old, there := base[name]; there && old == m[name] {
			continue
		}
		if strings.HasSuffix(name, "/") {
			put(&tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, "")
		} else {
			put(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o4640, Uid: 7}, m[name])
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// check compares a tree with a model.
func (m model) check(t *testing.T, tree *erofs.Tree, candidates ...model) {
	t.Helper()
	for name, want := range m {
		n := tree.Lookup(strings.TrimSuffix(name, "/"))
		if n == nil || n.IsDir() != strings.HasSuffix(name, "/") {
			t.Fatalf("%q is %+v", name, n)
		}
		if n.IsDir() {
			continue
		}
		got, err := io.ReadAll(n.Content())
		if err != nil || string(got) != want || n.Mode != 0o104640 || n.UID != 7 {
			t.Fatalf("%q has %d bytes of mode %#o: %v; want %d bytes", name, len(got), n.Mode, err, len(want))
		}
	}
	for _, other := range candidates {
		for name := range other {
			bare := strings.TrimSuffix(name, "/")
			_, file := m[bare]
			_, dir := m[bare+"/"]
			if !file && !dir && tree.Lookup(bare) != nil {
				t.Fatalf("%q is still there", name)
			}
		}
	}
}

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFlattenedIsWhatTheStepSaw plays builds of several sessions: each begins
// with the layer that the last left, and keeps one after every step.
func TestFlattenedIsWhatTheStepSaw(t *testing.T) {
	for seed := range uint64(20) {
		s, r := open(t), rand.New(rand.NewPCG(seed, 2))
		seen := model{}
		below := ""
		history := []model{}
		for range 3 {
			booted, last := maps.Clone(seen), (*Layer)(nil)
			for range 4 {
				for range 5 {
					seen.change(r)
				}
				l, err := s.Add(t.Context(), below, last, seen.since(t, booted), 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				last = l
				history = append(history, maps.Clone(seen))
				tree := erofs.New()
				if err := s.Apply(tree, l.Digest); err != nil {
					t.Fatal(err)
				}
				seen.check(t, tree, history...)
				tree.Close()
			}
			below = last.Digest
		}
	}
}

func archive(t *testing.T, headers ...*tar.Header) *bytes.Buffer {
	t.Helper()
	out := new(bytes.Buffer)
	w := tar.NewWriter(out)
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestContentsAreStoredOnce(t *testing.T) {
	s := open(t)
	body := bytes.Repeat([]byte("x"), 100_000)
	var first bytes.Buffer
	w := tar.NewWriter(&first)
	for _, name := range []string{"a", "b"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text := first.Bytes()
	one, err := s.Add(t.Context(), "", nil, bytes.NewReader(text), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Add(t.Context(), "", one, bytes.NewReader(text), 1<<20)
	if err != nil || two.Digest != one.Digest {
		t.Fatalf("the same changes are another layer: %v", err)
	}
	packs, err := filepath.Glob(filepath.Join(s.packs(), "*"))
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs %q, %v", packs, err)
	}
	if st, err := os.Stat(packs[0]); err != nil || st.Size() > 110_000 {
		t.Errorf("the pack is %v, %v", st, err)
	}
}

func TestCapabilitiesThatAreLostAreKnown(t *testing.T) {
	s := open(t)
	records := map[string]string{paxCapability: "x"}
	in := archive(t,
		&tar.Header{Name: "plain", Typeflag: tar.TypeReg, Mode: 0o755},
		&tar.Header{Name: "bin/ping", Typeflag: tar.TypeReg, Mode: 0o755, PAXRecords: records},
		&tar.Header{Name: "dev/none", Typeflag: tar.TypeReg, Mode: 0o755, PAXRecords: records})
	l, err := s.Add(t.Context(), "", nil, in, 1<<20)
	if err != nil || !slices.Equal(l.Capable, []string{"bin/ping"}) {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestWhatAGuestMakesIsBounded(t *testing.T) {
	s := open(t)
	for name, h := range map[string]*tar.Header{
		"too much":  {Name: "big", Typeflag: tar.TypeReg, Size: 2 << 20},
		"long name": {Name: strings.Repeat("n/", 3000), Typeflag: tar.TypeDir},
	} {
		if _, err := s.Add(t.Context(), "", nil, archive(t, h), 1<<20); err == nil {
			t.Errorf("%s: it was stored", name)
		}
	}
	in := archive(t, &tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 5000})
	in.Truncate(3000)
	if _, err := s.Add(t.Context(), "", nil, in, 1<<20); err == nil {
		t.Error("half a tar was stored")
	}
	left, err := filepath.Glob(filepath.Join(s.tmp(), "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestNothingLeavesTheTree(t *testing.T) {
	s := open(t)
	l, err := s.Add(t.Context(), "", nil, archive(t,
		&tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../../../../etc"},
		&tar.Header{Name: "link/passwd", Typeflag: tar.TypeReg, Size: 3},
		&tar.Header{Name: "../../out", Typeflag: tar.TypeReg, Size: 3},
		&tar.Header{Name: "proc/1/mem", Typeflag: tar.TypeReg, Size: 3},
		&tar.Header{Name: ".cay/host", Typeflag: tar.TypeReg, Size: 3},
	), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	tree := erofs.New()
	defer tree.Close()
	if err := tree.Put("etc", erofs.Node{Mode: 0o40755}); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(tree, l.Digest); err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{"etc/passwd": true, "out": true, "proc/1/mem": false, ".cay/host": false} {
		if (tree.Lookup(name) != nil) != there {
			t.Errorf("%s is there: %v", name, !there)
		}
	}
}

func TestCollect(t *testing.T) {
	s := open(t)
	value := func(l *Layer) map[string]string { return map[string]string{"Layer": l.Digest} }
	layerOf := func(v json.RawMessage) string {
		var m map[string]string
		if json.Unmarshal(v, &m) != nil {
			return ""
		}
		return m["Layer"]
	}
	key := func(c string) string { return strings.Repeat(c, 64) }
	add := func(below string, size int64) *Layer {
		l, err := s.Add(t.Context(), below, nil, archive(t, &tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: size}), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	bottom := add("", 1)
	top, old := add(bottom.Digest, 2), add("", 3)
	for k, l := range map[string]*Layer{key("a"): top, key("b"): old} {
		if err := s.Remember(k, value(l)); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-100 * time.Hour)
	if err := os.Chtimes(s.key(key("b")), long, long); err != nil {
		t.Fatal(err)
	}
	before := time.Now().Add(-time.Hour)
	for _, dry := range []bool{true, false} {
		gone, err := s.Collect(before, layerOf, dry)
		if err != nil || len(gone) != 2 || gone[0].Name != old.Digest || gone[0].Bytes == 0 { // it and its pack
			t.Fatalf("dry %v: got %v, %v", dry, gone, err)
		}
		if _, err := s.Load(old.Digest); (err == nil) != dry {
			t.Fatalf("dry %v: the old layer: %v", dry, err)
		}
	}
	var values []string
	if err := s.Values(before, func(v json.RawMessage) { values = append(values, layerOf(v)) }); err != nil || !slices.Equal(values, []string{top.Digest}) {
		t.Errorf("values that are in use: %v, %v", values, err)
	}
	for l, kept := range map[*Layer]bool{bottom: true, top: true, old: false} {
		_, err := s.Load(l.Digest)
		if kept && err != nil || !kept && cay.KindOf(err) != cay.NotFound {
			t.Errorf("layer %.8s: %v, want kept %v", l.Digest, err, kept)
		}
	}
	var got map[string]string
	if s.Find(key("b"), &got) || !s.Find(key("a"), &got) || got["Layer"] != top.Digest {
		t.Errorf("keys are wrong: %v", got)
	}
}

// Adds looks through all layers of a chain for files, not for what is gone.
func TestAdds(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	first := model{"a/": "", "a/old": "1", "b": "2"}
	below, err := s.Add(t.Context(), "", nil, first.since(t, model{}), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	second := model{"a/": "", "a/old": "1", "c": "3"}
	above, err := s.Add(t.Context(), below.Digest, nil, second.since(t, first), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"c": true, "a/old": true, "a": false, "none": false} {
		got, err := s.Adds(above.Digest, func(n string) bool { return n == name })
		if got != want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := s.Adds(below.Digest, func(n string) bool { return n == "c" }); got || err != nil {
		t.Errorf("a layer has what stands on it: %v, %v", got, err)
	}
	if _, err := s.Adds(strings.Repeat("0", 64), func(string) bool { return true }); cay.KindOf(err) != cay.NotFound {
		t.Errorf("a layer that is not there: %v", err)
	}
}
