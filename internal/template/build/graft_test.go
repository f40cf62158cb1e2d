package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay/internal/guest/archive"
	"github.com/cay-run/cay/internal/machine/erofs"
	"github.com/cay-run/cay/internal/template/layer"
)

// things are the files that the trees below are made of.
var things = []string{"a", "b", "dir", "dir/a", "dir/sub", "dir/sub/c", "dir/b", "x", "x/a", "l"}

// thing is a random entry of an archive.
func thing(r *rand.Rand) *tar.Header {
	h := &tar.Header{
		Name: things[r.IntN(len(things))], Uid: 7, Gid: 8, Mode: []int64{0o644, 0o600, 0o4755, 0o700}[r.IntN(4)],
		ModTime: time.Unix(1_600_000_000+r.Int64N(1000), 0), Typeflag: tar.TypeReg, Format: tar.FormatPAX,
	}
	switch r.IntN(5) {
	case 0:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case 1:
		h.Typeflag, h.Linkname = tar.TypeSymlink, []string{"a", "dir", "../out", "/dir/sub", "none"}[r.IntN(5)]
	case 2:
		h.Typeflag, h.Linkname = tar.TypeLink, things[r.IntN(len(things))]
	default:
		h.Size = int64(r.IntN(20))
	}
	return h
}

func archiveOf(t *testing.T, entries []*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i, h := range entries {
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, strings.Repeat(string(rune('A'+i)), int(h.Size)))
		must(t, err)
	}
	must(t, w.Close())
	return out.Bytes()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onDisk lists a directory, times of files and links' modes left out.
func onDisk(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(name, &st); err != nil {
			return err
		}
		text := ""
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFLNK:
			text, err = os.Readlink(name)
		case syscall.S_IFREG:
			var b []byte
			b, err = os.ReadFile(name)
			text = fmt.Sprint(st.Mtim.Sec, " ", string(b))
		}
		rel, _ := filepath.Rel(dir, name)
		out[rel] = line(st.Mode, st.Uid, st.Gid, text)
		return err
	}))
	return out
}

func line(mode, uid, gid uint32, text string) string {
	if mode&syscall.S_IFMT == syscall.S_IFLNK {
		mode = syscall.S_IFLNK
	}
	return fmt.Sprintf("%o %d:%d %q", mode, uid, gid, text)
}

// inTree lists a directory of a tree as onDisk does.
func inTree(t *testing.T, n *erofs.Node, prefix string, out map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(n.Names()) {
		c, text := n.Child(name), ""
		switch {
		case c.IsSymlink():
			text = c.Target
		case c.IsRegular():
			b, err := io.ReadAll(c.Content())
			must(t, err)
			text = fmt.Sprint(c.Mtime.Unix(), " ", string(b))
		case c.IsDir():
			inTree(t, c, prefix+name+"/", out)
		}
		out[prefix+name] = line(c.Mode, c.UID, c.GID, text)
	}
}

// grafted puts an archive over a tree, through a layer as builds do.
func grafted(t *testing.T, store *layer.Store, base *erofs.Tree, scratch *erofs.Tree, dir string, in []byte) error {
	t.Helper()
	var out bytes.Buffer
	g := &grafting{tree: scratch, owner: account{"user", 1000, 1001}, dir: dir}
	if err := translate(&out, bytes.NewReader(in), copying{from: source{base: "."}, mode: -1, put: g.put}, 1<<20); err != nil {
		return err
	}
	l, err := store.Add(context.Background(), "", nil, &out, 1<<20)
	must(t, err)
	must(t, store.Apply(base, l.Digest))
	return nil
}

// A COPY of many files leaves what the agent leaves that unpacks one of few.
func TestGraftIsWhatTheAgentUnpacks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("owners need root")
	}
	store, err := layer.Open(t.TempDir())
	must(t, err)
	refused := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 6))
		var before, over []*tar.Header
		for range r.IntN(6) {
			before = append(before, thing(r))
		}
		for range 1 + r.IntN(6) {
			over = append(over, thing(r))
		}
		dir := t.TempDir()
		must(t, os.Mkdir(filepath.Join(dir, "in"), 0o755))
		_, _ = archive.Unpack(t.Context(), bytes.NewReader(archiveOf(t, before)), filepath.Join(dir, "in"), nil) // as far as it came
		base, scratch := treeOf(t, dir), treeOf(t, dir)
		in := archiveOf(t, over)
		_, agent := archive.Unpack(t.Context(), bytes.NewReader(in), filepath.Join(dir, "in"), &archive.Owner{UID: 1000, GID: 1001})
		host := grafted(t, store, base, scratch, "/in", in)
		if (agent == nil) != (host == nil) {
			t.Fatalf("seed %d: the agent says %v, the host %v", seed, agent, host)
		}
		if agent != nil {
			refused++
			continue
		}
		got := map[string]string{}
		inTree(t, base.Lookup("/"), "", got)
		if want := onDisk(t, dir); !maps.Equal(got, want) {
			t.Fatalf("seed %d: got\n%v\nwant\n%v", seed, got, want)
		}
	}
	if refused < 20 || refused > 350 {
		t.Errorf("%d of 400 refused: the trees are no test", refused)
	}
}

// treeOf reads a directory as a tree.
func treeOf(t *testing.T, dir string) *erofs.Tree {
	t.Helper()
	tree, seen := erofs.New(), map[uint64]string{}
	t.Cleanup(func() { must(t, tree.Close()) })
	must(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(name, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		if first, ok := seen[st.Ino]; ok && st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			return tree.Link(rel, first)
		}
		seen[st.Ino] = rel
		n := erofs.Node{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Mtime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec)}
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFLNK:
			n.Target, err = os.Readlink(name)
		case syscall.S_IFREG:
			n.Size = st.Size
			if n.File, err = os.Open(name); err == nil {
				tree.Own(n.File)
			}
		}
		return errors.Join(err, tree.Put(rel, n))
	}))
	return tree
}

func TestWhereACopyGoes(t *testing.T) {
	tree := erofs.New()
	dir := func(name string) { must(t, tree.Put(name, erofs.Node{Mode: 0o040755})) }
	link := func(name, to string) { must(t, tree.Put(name, erofs.Node{Mode: 0o120777, Target: to})) }
	dir("srv/real/deep")
	link("abs", "/srv/real")
	link("srv/rel", "real/../real")
	link("loop", "loop")
	link("out", "../../srv")
	must(t, tree.Put("file", erofs.Node{Mode: 0o100644}))
	for dest, want := range map[string]struct {
		dir   string
		there bool
	}{
		"/":             {"/", true},
		"/srv/real":     {"/srv/real", true},
		"/abs/deep":     {"/srv/real/deep", true},
		"/abs/new/down": {"/srv/real/new/down", false},
		"/srv/rel":      {"/srv/real", true},
		"/out/real":     {"/srv/real", true},
		"/loop/x":       {"/loop/x", false},
		"/file":         {"/file", false},
		"/none":         {"/none", false},
	} {
		got, there := placeIn(tree, dest)
		if got != want.dir || there != want.there {
			t.Errorf("%s: got %s %v, want %s %v", dest, got, there, want.dir, want.there)
		}
	}
}

func TestAccountsOfATree(t *testing.T) {
	tree := erofs.New()
	name := filepath.Join(t.TempDir(), "passwd")
	must(t, os.WriteFile(name, []byte("# a comment\nroot:x:0:0:root:/root:/bin/sh\napp:x:70:71::/:/x\nodd:x:-1:5::/:\n"), 0o600))
	f, err := os.Open(name)
	must(t, err)
	tree.Own(f)
	defer tree.Close()
	st, err := f.Stat()
	must(t, err)
	must(t, tree.Put("etc/passwd", erofs.Node{Mode: 0o100644, Size: st.Size(), File: f}))
	for user, want := range map[string]account{"root": {"root", 0, 0}, "70": {"app", 70, 71}, "app": {"app", 70, 71}} {
		if got, ok := accountIn(tree, user); !ok || got != want {
			t.Errorf("%s: got %v %v, want %v", user, got, ok, want)
		}
	}
	for _, user := range []string{"nobody", "odd", "", "71"} {
		if got, ok := accountIn(tree, user); ok {
			t.Errorf("%q was found: %v", user, got)
		}
	}
}
