package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest/archive"
)

// listing says all of a tree but the times of directories, which are those of
// the last file that was put into them.
func listing(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `cd "$1" && find . ! -type d -printf '%P %m %U:%G %s %l %T@\n' -o -printf '%P/ %m %U:%G\n' | sort && find . -type f -exec sha256sum {} + | sort`, "sh", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestPackedTreesMakeTheSameImages(t *testing.T) {
	w := newWorld(t)
	if _, err := write(filepath.Join(w.trees, w.sh.Digest()), []File{
		{Path: bundlePath, Mode: 0o644, Data: []byte("this host's")},
		{Path: localAuthorities + "/mine.crt", Mode: 0o644, Data: []byte("mine")},
		{Path: "/usr/bin/tool", Mode: os.ModeSetuid | 0o755, Data: []byte("tool")},
	}); err != nil {
		t.Fatal(err)
	}
	child := Recipe{Name: "child", From: &w.sh, Files: []File{{Path: "/etc/motd", Mode: 0o644, Data: []byte("hello\n")}}}
	var file bytes.Buffer
	if err := w.Pack(t.Context(), &file, []Recipe{w.sh, child}, quiet); err != nil {
		t.Fatal(err)
	}
	w.clean(t)
	data := t.TempDir()
	other := world{Builder: NewBuilder(data, shelf{data}), data: data}
	for range 2 { // what is there already stays
		if err := other.Unpack(t.Context(), bytes.NewReader(file.Bytes()), []Recipe{child, w.sh}, quiet); err != nil {
			t.Fatal(err)
		}
		other.clean(t)
	}
	for _, path := range []string{bundlePath, localAuthorities + "/mine.crt"} {
		if _, err := os.Lstat(filepath.Join(other.trees, child.Digest(), path)); err == nil {
			t.Errorf("%s of the packing host is in the file", path)
		}
	}
	var inodes []uint64
	for _, r := range []Recipe{w.sh, child} {
		st, err := os.Stat(filepath.Join(other.trees, r.Digest(), "usr/bin/tool"))
		if err != nil {
			t.Fatal(err)
		}
		inodes = append(inodes, st.Sys().(*syscall.Stat_t).Ino)
	}
	if inodes[0] != inodes[1] {
		t.Error("a file of two trees is in the file twice")
	}
	own := []File{ // as HostFiles has them
		{Path: bundlePath, Mode: 0o644, Data: []byte("the image's")},
		{Path: pipPath, Mode: 0o644, Data: []byte("[global]\n")},
		{Path: npmPath, Mode: 0o644, Data: []byte("fund=false\n")},
	}
	for _, r := range []Recipe{child, w.sh} {
		here, err := w.Build(t.Context(), r, own, quiet)
		if err != nil {
			t.Fatal(err)
		}
		there, err := other.Build(t.Context(), r, own, func(step string, _ int) {
			if !strings.HasSuffix(step, "writing the image") {
				t.Errorf("%s is built again: %s", r.Name, step)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if a, b := listing(t, w.extract(t, here)), listing(t, other.extract(t, there)); a != b {
			t.Errorf("%s was packed with\n%s\nand unpacked with\n%s", r.Name, a, b)
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	w := newWorld(t)
	zipped := func(paths ...string) []byte {
		dir := t.TempDir()
		for _, path := range paths {
			if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		z, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		if err := (archive.Packer{}).Pack(z, dir, "."); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	child := Recipe{Name: "child", From: &w.sh}
	good := zipped(runtime.GOARCH + "/" + child.Digest())
	for name, file := range map[string][]byte{
		"nothing":              nil,
		"text":                 []byte("no file of trees"),
		"an empty file":        zipped(),
		"a cut file":           good[:len(good)-8],
		"another architecture": zipped("vax/" + child.Digest()),
		"another version":      zipped(runtime.GOARCH+"/"+child.Digest(), runtime.GOARCH+"/0123"),
	} {
		t.Run(name, func(t *testing.T) {
			err := w.Unpack(t.Context(), bytes.NewReader(file), []Recipe{child}, quiet)
			if cay.KindOf(err) != cay.Invalid {
				t.Errorf("got %v", err)
			}
			w.clean(t)
			if _, err := os.Lstat(filepath.Join(w.trees, child.Digest())); err == nil {
				t.Error("a tree of it has its name")
			}
		})
	}
	if err := w.Unpack(t.Context(), bytes.NewReader(good), []Recipe{child}, quiet); err != nil {
		t.Errorf("what is right is refused: %v", err)
	}
}
