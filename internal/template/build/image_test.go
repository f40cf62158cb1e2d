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

// A build extends the image that its steps ran on, and another one of the same
// files writes a new image: beside it, or later, while the bucket alone has the first.
// Their files lie elsewhere, so that what was saved on the one does not start on the
// other. No name ever stands for both.
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
	made := func(r *run) (name string, booted []byte) {
		image, err := r.image(t.Context())
		must(t, err)
		booted, err = os.ReadFile(image.file)
		must(t, err)
		must(t, image.kept())
		return image.digest, booted
	}
	extended, one := made(ran)
	must(t, snapshots.RemoveImage(extended))
	anew, other := made(build())
	if bytes.Equal(one, other) {
		t.Fatal("an extended image lies as a new one: this test tests nothing")
	}
	for _, c := range []struct {
		name   string
		booted []byte
	}{{extended, one}, {anew, other}} {
		path, err := snapshots.Image(c.name)
		if err != nil {
			continue // the bucket has it
		}
		if named, err := os.ReadFile(path); err != nil || !bytes.Equal(named, c.booted) {
			t.Errorf("the image %.12s is another one than its build has booted: %v", c.name, err)
		}
	}

	// A build that comes later takes the one that was made last, and if that is gone,
	// the one that was written anew.
	again := filepath.Join(t.TempDir(), "again")
	must(t, os.WriteFile(again, one, 0o600))
	must(t, snapshots.AddNamed(again, extended))
	for _, want := range []string{anew, extended} {
		must(t, b.layers.Remember(filesKey(root, above.Digest), imageOf{want}))
		if later, err := build().image(t.Context()); err != nil || later.digest != want || later.tmp != "" {
			t.Errorf("a later build has %+v, %v; want the image %.12s", later, err, want)
		}
	}
	must(t, snapshots.RemoveImage(extended))
	if later, err := build().image(t.Context()); err != nil || later.digest != anew || later.tmp != "" {
		t.Errorf("a build after a removal has %+v, %v; want the image %.12s", later, err, anew)
	}
}

// tarOf is an archive with one file.
func tarOf(t *testing.T, name string) []byte {
	t.Helper()
	return archiveOf(t, []*tar.Header{{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 5000, ModTime: time.Unix(3, 0), Format: tar.FormatPAX,
	}})
}
