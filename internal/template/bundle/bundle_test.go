package bundle

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// sample is the file of a template with a file of every sort.
// sample is a template's file; words is how long its largest content is.
func sample(t testing.TB, words int) []byte {
	t.Helper()
	content, err := os.Create(filepath.Join(t.TempDir(), "content"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := content.WriteString(strings.Repeat("content", words)); err != nil {
		t.Fatal(err)
	}
	tree := erofs.New()
	tree.Own(content)
	defer tree.Close()
	mtime := time.Unix(1700000000, 123456789)
	for name, n := range map[string]erofs.Node{
		"etc":        {Mode: 0o040750, UID: 3, GID: 4, Mtime: mtime},
		"etc/file":   {Mode: 0o104755, UID: 1, Mtime: mtime, Size: 7 * int64(words), File: content},
		"etc/link":   {Mode: 0o120777, Mtime: mtime, Target: "../outside"},
		"etc/pipe":   {Mode: 0o010600, Mtime: mtime},
		"etc/null":   {Mode: 0o020666, Mtime: mtime, Rdev: 1<<8 | 3},
		"etc/.wh.x":  {Mode: 0o100644, Mtime: mtime},
		"etc/socket": {Mode: 0o140644, Mtime: mtime},
	} {
		if err := tree.Put(name, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Link("second", "etc/file"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Write(t.Context(), &out, Manifest{Name: "sample", Limits: cay.Limits{CPUs: 2}}, tree); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func read(text []byte) (Manifest, []byte, error) {
	r, err := Open(bytes.NewReader(text))
	if err != nil {
		return Manifest{}, nil, err
	}
	defer r.Close()
	var out bytes.Buffer
	err = r.Files(&out)
	return r.Manifest, out.Bytes(), err
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	m, files, err := read(sample(t, 3000))
	if err != nil || m.Name != "sample" || m.Limits.CPUs != 2 || m.Format != Format {
		t.Fatalf("got %+v, %v", m, err)
	}
	got := map[string]*tar.Header{}
	for in := tar.NewReader(bytes.NewReader(files)); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = h
	}
	f := got["/etc/file"]
	switch {
	case len(got) != 7:
		t.Errorf("it has %d files: %v", len(got), got)
	case f.Size != 21000 || f.Mode != 0o4755 || f.Uid != 1 || f.ModTime.Nanosecond() != 123456789:
		t.Errorf("a file became %+v", f)
	case got["/second"].Typeflag != tar.TypeLink || got["/second"].Linkname != "etc/file":
		t.Errorf("a second name became %+v", got["/second"])
	case got["/etc/link"].Linkname != "../outside" || got["/etc/"].Gid != 4 || got["/etc/null"].Devminor != 3:
		t.Errorf("a link, a directory or a device is wrong: %v", got)
	}
}

func TestDamageIsSeen(t *testing.T) {
	good := sample(t, 3000)
	for _, cut := range []int{0, 1, 10, len(good) / 2, len(good) - 1} {
		if _, _, err := read(good[:cut]); cay.KindOf(err) != cay.Invalid {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
	z, err := zstd.NewReader(bytes.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(plain, []byte("contentcontent")) + 10
	for what, change := range map[string]func([]byte) []byte{
		"content":            func(b []byte) []byte { b[at] ^= 1; return b },
		"no end":             func(b []byte) []byte { return b[:len(b)/512*512-2048] },
		"something after it": func(b []byte) []byte { return append(b[:len(b)-1024:len(b)-1024], plain...) },
		"no manifest":        func(b []byte) []byte { return bytes.Replace(b, []byte(manifestName), []byte("templet.json!"), 1) },
	} {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := read(w.EncodeAll(change(bytes.Clone(plain)), nil)); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// FuzzRead has what is inside the compression, which is another project's to
// fuzz: mutations of a compressed file hardly ever come that far.
func FuzzRead(f *testing.F) {
	pack, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		f.Fatal(err)
	}
	unpack, err := zstd.NewReader(nil)
	if err != nil {
		f.Fatal(err)
	}
	plain, err := unpack.DecodeAll(sample(f, 3), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add([]byte("no template"))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, files, err := read(pack.EncodeAll(text, nil))
		if err != nil {
			return
		}
		for in := tar.NewReader(bytes.NewReader(files)); ; {
			if _, err := in.Next(); err == io.EOF {
				return
			} else if err != nil {
				t.Fatalf("what was read is no tar: %v", err)
			}
		}
	})
}
