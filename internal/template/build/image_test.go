package build

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cay-run/cay/internal/machine/erofs"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

// Two builds have the same files at the same time: one has extended the image
// that its steps ran on, and the other has written a new one. Their files lie
// elsewhere, so that what was saved on the one does not start on the other:
// whichever gets its name first, each build's name is that of what it booted.
func TestAnImageIsWhatItsNameSays(t *testing.T) {
	dir := t.TempDir()
	snapshots, err := snapshot.Open(dir)
	must(t, err)
	b, err := New(Config{Data: dir, Snapshots: snapshots})
	must(t, err)
	tree := erofs.New()
	must(t, tree.Put("tmp", erofs.Node{Mode: 0o041777, Mtime: time.Unix(1, 0)}))
	for _, name := range []string{"kept", "removed"} {
		must(t, tree.Put(name, erofs.Node{Mode: 0o120777, Target: "x", Mtime: time.Unix(2, 0)}))
	}
	first := &run{Builder: b}
	plain, err := first.write(t.Context(), tree)
	must(t, err)
	root, err := snapshots.AddImage(plain)
	must(t, err)
	steps := tarOf(t, "first")
	below, err := b.layers.Add(t.Context(), "", nil, bytes.NewReader(steps), 1<<20)
	must(t, err)
	above, err := b.layers.Add(t.Context(), below.Digest, nil, bytes.NewReader(tarOf(t, "second")), 1<<20)
	must(t, err)

	build := func() *run { return &run{Builder: b, root: root, state: state{Layer: above.Digest}} }
	ran := build()
	ran.base, ran.last = below.Digest, above
	if ran.own, err = ran.flatten(t.Context(), below.Digest); err != nil {
		t.Fatal(err)
	}
	type made struct {
		rootImage
		booted []byte
	}
	var all []made
	for _, r := range []*run{ran, build()} {
		image, err := r.image(t.Context())
		must(t, err)
		booted, err := os.ReadFile(image.file)
		must(t, err)
		all = append(all, made{image, booted})
		// The other build has not looked yet: this one has no name so far.
		must(t, image.kept())
		must(t, os.Remove(filepath.Join(dir, "layers", "keys", filesKey(root, above.Digest)+".json")))
	}
	if bytes.Equal(all[0].booted, all[1].booted) {
		t.Fatal("an extended image lies as a new one: this test tests nothing")
	}
	for _, m := range all {
		path, err := snapshots.Image(m.digest)
		must(t, err)
		if named, err := os.ReadFile(path); err != nil || !bytes.Equal(named, m.booted) {
			t.Errorf("the image %.12s is another one than its build has booted: %v", m.digest, err)
		}
	}

	// A build that comes later takes one that is there.
	must(t, b.layers.Remember(filesKey(root, above.Digest), imageOf{all[0].digest}))
	if later, err := build().image(t.Context()); err != nil || later.digest != all[0].digest || later.tmp != "" {
		t.Errorf("a later build has %+v, %v; want the image %.12s", later, err, all[0].digest)
	}
	must(t, snapshots.RemoveImage(all[0].digest))
	if later, err := build().image(t.Context()); err != nil || later.digest != all[1].digest || later.tmp != "" {
		t.Errorf("a build after the removal has %+v, %v; want the image %.12s", later, err, all[1].digest)
	}
}

// tarOf is an archive with one file.
func tarOf(t *testing.T, name string) []byte {
	t.Helper()
	return archiveOf(t, []*tar.Header{{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 5000, ModTime: time.Unix(3, 0), Format: tar.FormatPAX,
	}})
}
