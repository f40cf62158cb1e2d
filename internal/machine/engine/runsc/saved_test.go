package runsc

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// message builds a protocol buffer of number fields, in the order 1, 2, 3…
func message(values ...uint64) []byte {
	var out []byte
	for i, v := range values {
		out = protowire.AppendTag(out, protowire.Number(i+1), protowire.VarintType)
		out = protowire.AppendVarint(out, v)
	}
	return out
}

// index builds the metadata of a memory file: its ranges with their state.
func index(ranges ...[3]uint64) []byte {
	var body []byte
	for _, r := range ranges {
		body = protowire.AppendTag(body, 3, protowire.BytesType)
		body = protowire.AppendBytes(body, message(r[0], r[1], 0, 0, r[2]))
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(body))), body...)
}

func segments(size uint64, of ...uint64) []byte {
	out := binary.LittleEndian.AppendUint64(nil, size)
	for _, n := range of {
		out = binary.LittleEndian.AppendUint64(out, n)
	}
	return out
}

// memoryFile is a saved one whose pages hold 1, 2 and 3 at 10–14, 14–16
// (not committed) and 20–24.
func memoryFile(t testing.TB) *savedTree {
	t.Helper()
	meta := index([3]uint64{10, 14, 1}, [3]uint64{14, 16, 0}, [3]uint64{20, 24, 1})
	x, err := parseIndex(meta, savedManifest{metaEnd: int64(len(meta)), pagesStart: 2})
	if err != nil {
		t.Fatal(err)
	}
	if want := []extent{{10, 14, 2}, {20, 24, 6}}; !slices.Equal(x, want) {
		t.Fatalf("index %v, want %v", x, want)
	}
	pages, err := os.Create(filepath.Join(t.TempDir(), "pages"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pages.Close() })
	if _, err := pages.WriteString("--abcdwxyz"); err != nil {
		t.Fatal(err)
	}
	return &savedTree{index: x, pages: pages}
}

func TestBody(t *testing.T) {
	s := memoryFile(t)
	for _, c := range []struct {
		raw  []byte
		want string
	}{
		{segments(0), ""},
		{segments(3), "\x00\x00\x00"},
		{segments(4, 0, 4, 10), "abcd"},
		{segments(2, 0, 4, 11), "bc"}, // ends within its last page
		{segments(7, 2, 6, 20), "\x00\x00wxyz\x00"},
		{segments(14, 0, 14, 10), "abcd\x00\x00\x00\x00\x00\x00wxyz"},
		{segments(4, 0, 2, 22, 2, 4, 10), "yzab"},
		{segments(2, 0, 2, 100), "\x00\x00"},
	} {
		body, size, err := s.body(bytes.NewReader(c.raw), int64(len(c.raw)))
		if err != nil {
			t.Errorf("%v: %v", c.raw, err)
			continue
		}
		got, err := io.ReadAll(body)
		if err != nil || string(got) != c.want || size != int64(len(c.want)) {
			t.Errorf("%v: %q of %d, %v, want %q", c.raw, got, size, err, c.want)
		}
	}
}

func TestBodyRefuses(t *testing.T) {
	s := memoryFile(t)
	for name, raw := range map[string][]byte{
		"short":     {1, 2, 3},
		"odd":       append(segments(4), 1),
		"huge":      segments(1 << 63),
		"backwards": segments(9, 4, 2, 10),
		"overlap":   segments(9, 0, 4, 10, 2, 6, 20),
		"far":       segments(9, 0, 4, 1<<63-2),
	} {
		if _, _, err := s.body(bytes.NewReader(raw), int64(len(raw))); !errors.Is(err, errFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLayer(t *testing.T) {
	var tree bytes.Buffer
	in := tar.NewWriter(&tree)
	body := segments(4, 0, 4, 10)
	for _, h := range []*tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./srv/", Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}},
		{Name: "./srv/a", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 7, Size: int64(len(body)), PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}},
		{Name: "./srv/b", Typeflag: tar.TypeLink, Linkname: "./srv/a"},
		{Name: "./gone", Typeflag: tar.TypeChar},
		{Name: "./srv/too", Typeflag: tar.TypeLink, Linkname: "./gone"},
		{Name: "./.wh.fake", Typeflag: tar.TypeReg, Size: int64(len(body))},
		{Name: "./null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
	} {
		if err := in.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := in.Write(body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	root, store := memoryFile(t), memoryFile(t)
	root.tree, store.tree, store.below = bytes.NewReader(tree.Bytes()), bytes.NewReader(tree.Bytes()), "var/lib/docker"
	var layer bytes.Buffer
	if err := (&saved{trees: []*savedTree{root, store}}).layer(&layer); err != nil {
		t.Fatal(err)
	}

	var names []string
	for out := tar.NewReader(&layer); ; {
		h, err := out.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		text, _ := io.ReadAll(out)
		switch h.Name {
		case "srv/a":
			if string(text) != "abcd" || h.Mode != 0o4755 || h.Uid != 7 || h.PAXRecords["SCHILY.xattr.user.x"] != "y" {
				t.Errorf("file: %q %+v", text, h)
			}
		case "srv/b":
			if h.Linkname != "srv/a" {
				t.Errorf("link: %+v", h)
			}
		case "var/lib/docker/srv/b":
			if h.Linkname != "var/lib/docker/srv/a" {
				t.Errorf("link in the store: %+v", h)
			}
		case "null":
			if h.Devmajor != 1 || h.Devminor != 3 {
				t.Errorf("device: %+v", h)
			}
		}
	}
	want := []string{
		"srv/", "srv/.wh..wh..opq", "srv/a", "srv/b", ".wh.gone", "srv/.wh.too", "null",
		// Removals in images are not removals of the sandbox's files.
		"var/lib/docker/srv/", "var/lib/docker/srv/a", "var/lib/docker/srv/b", "var/lib/docker/null",
	}
	if !slices.Equal(names, want) {
		t.Errorf("layer holds %q, want %q", names, want)
	}
}

func TestManifest(t *testing.T) {
	bytesField := func(n protowire.Number, text []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), text)
	}
	at := func(path string, n protowire.Number, values ...uint64) []byte {
		return bytesField(n, append(bytesField(1, bytesField(2, []byte(path))), message(values...)...))
	}
	part := func(n protowire.Number, values ...uint64) []byte { return at("/", n, values...) }
	whole := slices.Concat(message(1), part(5, 0, 2, 9, 4), part(6, 0, 3, 8))
	root := savedManifest{at: "/", tarStart: 3, tarEnd: 8, metaStart: 2, metaEnd: 9, pagesStart: 4, parts: 2}
	if m, err := parseManifest(whole); err != nil || !slices.Equal(m, []savedManifest{root}) {
		t.Errorf("manifest %+v, %v, want %+v", m, err, root)
	}
	const docker = "/var/lib/docker"
	both := slices.Concat(at(docker, 5, 0, 9, 20, 8), at(docker, 6, 0, 8, 30), whole)
	store := savedManifest{at: docker, tarStart: 8, tarEnd: 30, metaStart: 9, metaEnd: 20, pagesStart: 8, parts: 2}
	if m, err := parseManifest(both); err != nil || !slices.Equal(m, []savedManifest{root, store}) {
		t.Errorf("manifest of two %+v, %v, want %+v and %+v", m, err, root, store)
	}
	for name, text := range map[string][]byte{
		"empty":        nil,
		"no tree":      part(5, 0, 2, 9, 4),
		"two trees":    slices.Concat(whole, part(6, 0, 3, 8)),
		"a stranger":   slices.Concat(whole, at("/etc", 5, 0, 2, 9, 4), at("/etc", 6, 0, 3, 8)),
		"half a store": slices.Concat(whole, at(docker, 6, 0, 3, 8)),
		"backwards":    slices.Concat(part(5, 0, 2, 9, 4), part(6, 0, 8, 3)),
		"cut":          whole[:len(whole)-1],
		"negative":     slices.Concat(part(5, 0, 1<<63, 9, 4), part(6, 0, 3, 8)),
	} {
		if _, err := parseManifest(text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzSaved(f *testing.F) {
	f.Add(message(1, 2, 3), segments(4, 0, 4, 10))
	f.Add(index([3]uint64{10, 14, 1}), segments(1<<40))
	f.Fuzz(func(t *testing.T, meta, raw []byte) {
		_, _ = parseManifest(meta)
		x, err := parseIndex(meta, savedManifest{metaEnd: int64(len(meta))})
		if err != nil {
			return
		}
		pages, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer pages.Close()
		body, _, err := (&savedTree{index: x, pages: pages}).body(bytes.NewReader(raw), int64(len(raw)))
		if err == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(body, 1<<16))
		}
	})
}
