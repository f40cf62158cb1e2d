package cargo

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
)

// item is what the tests look at of an entry.
type item struct {
	Name, Link, Text string
	Kind             byte
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sample is a tar of all that a tree may have.
func sample(t testing.TB) ([]byte, []item) {
	t.Helper()
	items := []item{
		{Name: "d/", Kind: tar.TypeDir},
		{Name: "d/empty", Kind: tar.TypeReg},
		{Name: "d/é", Kind: tar.TypeReg, Text: strings.Repeat("text", 100_000)},
		{Name: "link", Kind: tar.TypeSymlink, Link: "d/é"},
	}
	return pack(t, items), items
}

func pack(t testing.TB, items []item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		must(t, w.WriteHeader(&tar.Header{Typeflag: i.Kind, Name: i.Name, Linkname: i.Link, Size: int64(len(i.Text)), Mode: 0o755, ModTime: time.Unix(1e9, 0)}))
		_, err := io.WriteString(w, i.Text)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func unpack(r io.Reader) (out []item, err error) {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return out, err
		}
		out = append(out, item{Name: h.Name, Link: h.Linkname, Text: string(text), Kind: h.Typeflag})
	}
}

func opened(t testing.TB, content []byte) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "archive")
	must(t, os.WriteFile(name, content, 0o600))
	f, err := os.Open(name)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestArchives(t *testing.T) {
	content, want := sample(t)
	for _, name := range []string{"a.tar", "a.tar.gz", "a.TGZ", "a.tar.zst", "a.zip"} {
		t.Run(name, func(t *testing.T) {
			kind, ok := KindOf(name)
			if !ok {
				t.Fatal("its kind is not known")
			}
			var b bytes.Buffer
			must(t, Save(&b, kind, bytes.NewReader(content)))
			in, err := Open(opened(t, b.Bytes()))
			must(t, err)
			defer in.Close()
			got, err := unpack(in)
			must(t, err)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNoArchives(t *testing.T) {
	for name, content := range map[string]string{
		"nothing": "", "text": strings.Repeat("text ", 100), "gzip": "\x1f\x8b no", "zip": "PK\x03\x04 no",
	} {
		in, err := Open(opened(t, []byte(content)))
		if err == nil {
			_, err = unpack(in)
		}
		if cay.KindOf(err) != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, ok := KindOf("a.txt"); ok {
		t.Error("a.txt is an archive")
	}
}

func TestZipFromAStream(t *testing.T) {
	content, _ := sample(t)
	var b bytes.Buffer
	must(t, Save(&b, Zip, bytes.NewReader(content)))
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	go func() {
		_, _ = w.Write(b.Bytes()) // the reader goes before the end
		w.Close()
	}()
	if _, err := Open(r); cay.KindOf(err) != cay.Invalid {
		t.Errorf("got %v", err)
	}
}

func TestHostileZips(t *testing.T) {
	for name, write := range map[string]func(*zip.Writer) error{
		"name": func(z *zip.Writer) error {
			_, err := z.CreateHeader(&zip.FileHeader{Name: "\xff", NonUTF8: true})
			return err
		},
		"device": func(z *zip.Writer) error {
			h := &zip.FileHeader{Name: "d"}
			h.SetMode(fs.ModeDevice | 0o600)
			_, err := z.CreateHeader(h)
			return err
		},
		"long link": func(z *zip.Writer) error {
			h := &zip.FileHeader{Name: "l", Method: zip.Deflate}
			h.SetMode(fs.ModeSymlink | 0o777)
			w, err := z.CreateHeader(h)
			return errors.Join(err, writeText(w, strings.Repeat("x", 1<<20)))
		},
		"more than it says": func(z *zip.Writer) error {
			w, err := z.CreateRaw(&zip.FileHeader{Name: "f", Method: zip.Store, UncompressedSize64: 1, CompressedSize64: 100})
			return errors.Join(err, writeText(w, strings.Repeat("x", 100)))
		},
		"less than it says": func(z *zip.Writer) error {
			w, err := z.CreateRaw(&zip.FileHeader{Name: "f", Method: zip.Store, UncompressedSize64: 1 << 40, CompressedSize64: 100})
			return errors.Join(err, writeText(w, strings.Repeat("x", 100)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			z := zip.NewWriter(&b)
			must(t, write(z))
			must(t, z.Close())
			in, err := Open(opened(t, b.Bytes()))
			if err == nil {
				_, err = unpack(in)
			}
			if cay.KindOf(err) != cay.Invalid {
				t.Errorf("got %v", err)
			}
		})
	}
}

func writeText(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

func TestZipHasNoSecondNames(t *testing.T) {
	content := pack(t, []item{{Name: "f", Kind: tar.TypeReg}, {Name: "g", Kind: tar.TypeLink, Link: "f"}})
	if err := Save(io.Discard, Zip, bytes.NewReader(content)); cay.KindOf(err) != cay.Invalid {
		t.Errorf("got %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	content, _ := sample(f)
	for _, kind := range []Kind{Tar, TarGzip, TarZstd, Zip} {
		var b bytes.Buffer
		must(f, Save(&b, kind, bytes.NewReader(content)))
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in, err := Open(opened(t, data))
		if err != nil {
			return
		}
		defer in.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(in, 1<<20)) // it ends, and does not panic
	})
}
