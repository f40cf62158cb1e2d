package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// me owns what tests unpack, so that they need no rights.
func me() *Owner { return &Owner{UID: os.Getuid(), GID: os.Getgid()} }

// tarOf makes an archive of headers; a file's contents are in Linkname.
func tarOf(t testing.TB, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text, h.Linkname = h.Linkname, ""
			h.Size = int64(len(text))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, text)
		must(t, err)
	}
	must(t, w.Close())
	return &b
}

func reg(name, text string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: text}
}

func link(kind byte, name, target string) tar.Header {
	return tar.Header{Typeflag: kind, Name: name, Linkname: target}
}

// tree lists what is below dir, links with where they lead.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if d.Type()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			name += "@" + target
		}
		if d.IsDir() {
			name += "/"
		}
		out = append(out, name)
		return nil
	}))
	return out
}

func TestRoundTrip(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, filepath.Join(src, "a/b/f"), strings.Repeat("text", 200_000))
	write(t, filepath.Join(src, "a/empty"), "")
	write(t, filepath.Join(src, "script"), "#!/bin/sh\n")
	must(t, os.Chmod(filepath.Join(src, "script"), 0o755))
	must(t, os.Link(filepath.Join(src, "script"), filepath.Join(src, "twin")))
	must(t, os.Symlink("a/b/f", filepath.Join(src, "link")))
	must(t, os.Symlink("/usr/bin/env", filepath.Join(src, "out")))
	must(t, os.Mkdir(filepath.Join(src, "closed"), 0o500))
	must(t, syscall.Mkfifo(filepath.Join(src, "fifo"), 0o600))
	must(t, unix.Setxattr(filepath.Join(src, "script"), "user.e2b.k", []byte("v"), 0))
	long := strings.Repeat("n", 200)
	write(t, filepath.Join(src, long, long, "é"), "deep")
	when := time.Unix(1_000_000_000, 5000)
	for _, p := range []string{"a/b/f", "a/b", "a"} {
		must(t, os.Chtimes(filepath.Join(src, p), when, when))
	}

	var b bytes.Buffer
	must(t, Packer{User: func(uint32) string { return "me" }}.Pack(&b, src, "."))
	stats, err := Unpack(t.Context(), &b, dst, me())
	must(t, err)
	want := []string{"a/", "a/b/", "a/b/f", "a/empty", "closed/", "link@a/b/f", long + "/", long + "/" + long + "/", long + "/" + long + "/é", "out@/usr/bin/env", "script", "twin"}
	slices.Sort(want)
	got := tree(t, dst)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if stats.Entries != int64(len(want)) || stats.Bytes != 800_000+10+4 {
		t.Errorf("stats: %+v", stats)
	}
	if read(t, filepath.Join(dst, "a/b/f")) != read(t, filepath.Join(src, "a/b/f")) {
		t.Error("contents differ")
	}
	for path, mode := range map[string]fs.FileMode{"script": 0o755, "a/empty": 0o644, "closed": fs.ModeDir | 0o500} {
		st, err := os.Stat(filepath.Join(dst, path))
		must(t, err)
		if st.Mode() != mode {
			t.Errorf("%s: %v", path, st.Mode())
		}
	}
	for _, path := range []string{"a/b/f", "a/b", "a"} {
		st, err := os.Stat(filepath.Join(dst, path))
		must(t, err)
		if !st.ModTime().Equal(when) {
			t.Errorf("%s: %v", path, st.ModTime())
		}
	}
	one, err := os.Stat(filepath.Join(dst, "script"))
	must(t, err)
	two, err := os.Stat(filepath.Join(dst, "twin"))
	must(t, err)
	if !os.SameFile(one, two) {
		t.Error("hard links were copied")
	}
	value := make([]byte, 8)
	if n, err := unix.Getxattr(filepath.Join(dst, "script"), "user.e2b.k", value); err != nil || string(value[:n]) != "v" {
		t.Errorf("attribute: %v", err)
	}
}

func TestPackOneFile(t *testing.T) {
	src := filepath.Join(t.TempDir(), "f")
	write(t, src, "text")
	var b bytes.Buffer
	must(t, Packer{}.Pack(&b, src, "name"))
	dst := t.TempDir()
	_, err := Unpack(t.Context(), &b, dst, me())
	must(t, err)
	if read(t, filepath.Join(dst, "name")) != "text" {
		t.Error("contents differ")
	}
}

// An archive changes nothing outside its directory, whatever it says.
func TestUnpackStaysInside(t *testing.T) {
	for name, headers := range map[string][]tar.Header{
		"parent":           {reg("../evil", "x")},
		"hidden parent":    {reg("a/../../evil", "x")},
		"absolute":         {reg("/tmp/evil", "x")},
		"parent itself":    {{Typeflag: tar.TypeDir, Name: ".."}},
		"through a link":   {link(tar.TypeSymlink, "l", "OUT"), reg("l/evil", "x")},
		"through two":      {link(tar.TypeSymlink, "d/l", "../.."), reg("d/l/evil", "x")},
		"dir over a link":  {link(tar.TypeSymlink, "l", "OUT"), {Typeflag: tar.TypeDir, Name: "l/sub"}},
		"hard link out":    {link(tar.TypeLink, "h", "../out/victim"), reg("h", "x")},
		"hard link up":     {link(tar.TypeSymlink, "l", "OUT"), link(tar.TypeLink, "h", "l/victim")},
		"absolute hard":    {link(tar.TypeLink, "h", "OUT/victim")},
		"hard link to in":  {link(tar.TypeSymlink, "d/l", "../../out"), link(tar.TypeLink, "h", "d/l/victim")},
		"inside link":      {reg("d/f", "x"), link(tar.TypeSymlink, "l", "d"), reg("l/g", "x")},
		"link under a dir": {{Typeflag: tar.TypeDir, Name: "d"}, link(tar.TypeSymlink, "d", "OUT")},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, out := filepath.Join(top, "dir"), filepath.Join(top, "out")
			must(t, os.Mkdir(dir, 0o755))
			write(t, filepath.Join(out, "victim"), "safe")
			for i := range headers {
				headers[i].Linkname = strings.Replace(headers[i].Linkname, "OUT", out, 1)
			}
			_, err := Unpack(t.Context(), tarOf(t, headers...), dir, me())
			var bad *FormatError
			if !errors.As(err, &bad) {
				t.Errorf("got %v", err)
			}
			st, serr := os.Stat(filepath.Join(out, "victim"))
			must(t, serr)
			if st.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Error("outside was linked to")
			}
			if got := tree(t, out); !slices.Equal(got, []string{"victim"}) || read(t, filepath.Join(out, "victim")) != "safe" {
				t.Errorf("outside: %v", got)
			}
			if items, _ := os.ReadDir(top); len(items) != 2 {
				t.Errorf("beside: %v", items)
			}
		})
	}
}

// A link that stands where a file is to go is replaced, never written
// through, even inside.
func TestUnpackReplacesLinks(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "dir")
	write(t, filepath.Join(top, "victim"), "safe")
	write(t, filepath.Join(dir, "inside"), "safe")
	must(t, os.Symlink("../victim", filepath.Join(dir, "a")))
	must(t, os.Symlink("inside", filepath.Join(dir, "b")))
	must(t, os.Link(filepath.Join(top, "victim"), filepath.Join(dir, "c")))
	_, err := Unpack(t.Context(), tarOf(t, reg("a", "new"), reg("b", "new"), reg("c", "new")), dir, me())
	must(t, err)
	if read(t, filepath.Join(top, "victim")) != "safe" || read(t, filepath.Join(dir, "inside")) != "safe" {
		t.Error("written through a link")
	}
	for _, f := range []string{"a", "b", "c"} {
		if read(t, filepath.Join(dir, f)) != "new" {
			t.Errorf("%s is not new", f)
		}
	}
}

func TestUnpackMerges(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "d/old"), "old")
	write(t, filepath.Join(dir, "f"), "old")
	_, err := Unpack(t.Context(), tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700},
		tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755}, reg("./d/new", "new"), reg("f", "new"),
		tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3},
		tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o6755}), dir, me())
	must(t, err)
	if got := tree(t, dir); !slices.Equal(got, []string{"d/", "d/new", "d/old", "f", "suid"}) {
		t.Errorf("got %v", got)
	}
	if st, _ := os.Stat(filepath.Join(dir, "suid")); st.Mode() != 0o755 {
		t.Errorf("mode: %v", st.Mode())
	}
	_, err = Unpack(t.Context(), tarOf(t, reg("d", "x")), dir, me())
	var bad *FormatError
	if !errors.As(err, &bad) || read(t, filepath.Join(dir, "d/new")) != "new" {
		t.Errorf("a file over a directory: %v", err)
	}
}

func TestUnpackBadArchives(t *testing.T) {
	whole := tarOf(t, reg("f", strings.Repeat("x", 10_000))).Bytes()
	for name, text := range map[string]string{
		"cut":     string(whole[:5000]),
		"nothing": strings.Repeat("no tar at all ", 100),
	} {
		dir := t.TempDir()
		_, err := Unpack(t.Context(), strings.NewReader(text), dir, me())
		var bad *FormatError
		if !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
		if got := tree(t, dir); len(got) != 0 {
			t.Errorf("%s left %v", name, got)
		}
	}
}

// An archive of a kilobyte that announces an exabyte of holes.
func TestUnpackHugeSparseFile(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 1 << 60, Mode: 0o644, Format: tar.FormatPAX}))
	dir := t.TempDir()
	if _, err := Unpack(t.Context(), &b, dir, me()); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if got := tree(t, dir); len(got) != 0 {
		t.Errorf("left %v", got)
	}
}

// The work for a path grows with its levels, so they are bounded; a directory on the
// way is opened once for all its neighbours.
func TestUnpackDeepPaths(t *testing.T) {
	deepest := strings.Repeat("d/", maxLevels-1) + "f"
	dir := t.TempDir()
	_, err := Unpack(t.Context(), tarOf(t, reg(deepest, "text"), link(tar.TypeLink, "near", deepest), reg("last", "text")), dir, me())
	must(t, err)
	if read(t, filepath.Join(dir, "near")) != "text" {
		t.Error("the deepest file is not linked")
	}
	for name, h := range map[string]tar.Header{
		"levels":      reg("d/"+deepest, "x"),
		"very many":   reg(strings.Repeat("d/", 100_000)+"f", "x"),
		"bytes":       reg(strings.Repeat(strings.Repeat("n", 100)+"/", maxName/100+1)+"f", "x"),
		"a directory": {Typeflag: tar.TypeDir, Name: "d/" + deepest},
		"a target":    link(tar.TypeLink, "l", "d/"+deepest),
	} {
		dir, bad := t.TempDir(), new(FormatError)
		if _, err := Unpack(t.Context(), tarOf(t, h), dir, me()); !errors.As(err, &bad) {
			t.Errorf("too many %s: %v", name, err)
		}
		if got := tree(t, dir); len(got) != 0 {
			t.Errorf("too many %s: left %d entries", name, len(got))
		}
	}
}

// endless repeats a text, and calls a function each time.
type endless struct {
	text   []byte
	at     int
	repeat func()
}

func (e *endless) Read(p []byte) (int, error) {
	if e.at == len(e.text) {
		e.at = 0
		e.repeat()
	}
	n := copy(p, e.text[e.at:])
	e.at += n
	return n, nil
}

// An archive without an end, and one long file, end with the request that brought them.
func TestUnpackEndsWithItsContext(t *testing.T) {
	entries := tarOf(t, reg("f", "text"), reg("g", "text")).Bytes()
	var long bytes.Buffer
	must(t, tar.NewWriter(&long).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 1 << 20, Mode: 0o644}))
	for name, text := range map[string][]byte{"entries": entries[:len(entries)-1024], "a long file": long.Bytes()} {
		ctx, stop := context.WithCancel(t.Context())
		left := 3 * bufSize / len(text)
		in := &endless{text: text, repeat: func() {
			if left--; left == 0 {
				stop()
			}
		}}
		if _, err := (Unpacker{Owner: me(), Endless: true}).Into(ctx, openRoot(t, t.TempDir()), in); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		stop()
	}
}

func TestCopyIsStrict(t *testing.T) {
	src := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(src, "fifo"), 0o600))
	if err := Copy(src, t.TempDir()); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("got %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	for _, headers := range [][]tar.Header{
		{reg("a/f", "text"), link(tar.TypeSymlink, "l", "../x"), link(tar.TypeLink, "h", "a/f")},
		{link(tar.TypeSymlink, "l", ".."), reg("l/evil", "x")},
		{{Typeflag: tar.TypeDir, Name: "d/"}, reg("../evil", "x")},
		{link(tar.TypeSymlink, "l", "../out"), link(tar.TypeLink, "l/h", "l/victim"), reg("l/victim", "x")},
	} {
		f.Add(tarOf(f, headers...).Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		dir, out := filepath.Join(top, "dir"), filepath.Join(top, "out")
		must(t, os.Mkdir(dir, 0o755))
		write(t, filepath.Join(out, "victim"), "safe")
		_, _ = Unpack(t.Context(), bytes.NewReader(data), dir, me()) // only what it did matters
		items, err := os.ReadDir(top)
		must(t, err)
		if len(items) != 2 || read(t, filepath.Join(out, "victim")) != "safe" || len(tree(t, out)) != 1 {
			t.Errorf("outside changed: %v", items)
		}
	})
}
