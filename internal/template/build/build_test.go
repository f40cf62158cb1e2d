package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
)

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "1", "PATH": "/bin", "E": ""}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for in, want := range map[string]string{
		"plain":               "plain",
		"$A-${A}x$PATH:/opt":  "1-1x/bin:/opt",
		`\$A`:                 "$A",
		"$NONE.${NONE}":       ".",
		"${NONE:-a$A}${A:-b}": "a11",
		"${E:-empty}":         "empty",
		"${A:+yes}${NONE:+n}": "yes",
		"$":                   "$",
		"$1":                  "$1",
		"${A":                 "${A",
		"${X:-${Y:-${A}}}":    "1",
	} {
		if got := expand(in, lookup); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// pack makes an archive; names that end with "/" are directories, with " ->"
// links.
func pack(t *testing.T, names ...string) *bytes.Buffer {
	t.Helper()
	out := new(bytes.Buffer)
	w := tar.NewWriter(out)
	for _, name := range names {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o6644, Uid: 9, Size: int64(len(name))}
		if link, to, ok := strings.Cut(name, " -> "); ok {
			h = &tar.Header{Name: link, Typeflag: tar.TypeSymlink, Linkname: to}
		} else if strings.HasSuffix(name, "/") {
			h = &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCopyPutsNamesWhereTheyBelong(t *testing.T) {
	tree := []string{"folder/", "folder/a", "folder/sub/", "folder/sub/b", "folder/l -> a"}
	for name, c := range map[string]struct {
		src    string
		in     []string
		single string // the destination's name, for one file
		want   []string
	}{
		"a directory's content":   {"folder", tree, "", []string{"a", "sub/", "sub/b", "l"}},
		"the same with a slash":   {"folder/", tree, "", []string{"a", "sub/", "sub/b", "l"}},
		"a pattern":               {"folder/*", tree[1:], "", []string{"a", "sub/", "sub/b", "l"}},
		"a pattern at the top":    {"*", tree, "", []string{"folder/", "folder/a", "folder/sub/", "folder/sub/b", "folder/l"}},
		"everything":              {".", tree, "", []string{"folder/", "folder/a", "folder/sub/", "folder/sub/b", "folder/l"}},
		"a file":                  {"folder/a", []string{"folder/a"}, "", []string{"a"}},
		"a file under a new name": {"folder/a", []string{"folder/a"}, "new", []string{"new"}},
		"what is not meant":       {"folder/sub", tree, "", []string{"b"}},
	} {
		from, err := newSource(c.src)
		if err != nil {
			t.Fatal(err)
		}
		from.single = len(c.in) == 1
		var out bytes.Buffer
		if err := translate(&out, pack(t, c.in...), copying{from: from, name: c.single, mode: -1}, 1<<20); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Mode&0o7000 != 0 || h.Uid != 0 {
				t.Errorf("%s: %s keeps mode %#o and owner %d", name, h.Name, h.Mode, h.Uid)
			}
			got = append(got, h.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestCopyRefuses(t *testing.T) {
	if _, err := newSource("../x"); err == nil {
		t.Error("a source outside the context was taken")
	}
	whole := pack(t, "long-name").Bytes()
	for name, in := range map[string]io.Reader{
		"a name that leads out": pack(t, "../../etc/passwd"),
		"an absolute name":      pack(t, "/etc/passwd"),
		"half an archive":       bytes.NewReader(whole[:513]),
		"no archive":            strings.NewReader(strings.Repeat("x", 2000)),
		"too much":              pack(t, strings.Repeat("x", 90), strings.Repeat("y", 90)),
	} {
		err := translate(io.Discard, in, copying{from: source{base: "."}, mode: -1}, 100)
		if err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// zeros is a tar of one file of n bytes, which is made as it is read.
func zeros(t *testing.T, n int64) io.Reader {
	t.Helper()
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		err := out.WriteHeader(&tar.Header{Name: "large", Typeflag: tar.TypeReg, Mode: 0o644, Size: n})
		block := make([]byte, 1<<20)
		for left := n; err == nil && left > 0; left -= int64(len(block)) {
			_, err = out.Write(block[:min(left, int64(len(block)))])
		}
		w.CloseWithError(errors.Join(err, out.Close()))
	}()
	t.Cleanup(func() { r.Close() })
	return r
}

// Archives are streamed, on their way to the disk and from it.
func TestArchivesAreNotHeldInMemory(t *testing.T) {
	const size = 256 << 20
	b := &Builder{contexts: t.TempDir()}
	steps := map[string]func() error{
		"a step": func() error {
			return translate(io.Discard, zeros(t, 4*size), copying{from: source{base: "."}, mode: -1}, 8*size)
		},
		"an upload": func() error {
			r, w := io.Pipe()
			go func() {
				z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
				if err == nil {
					_, err = io.Copy(z, zeros(t, size))
				}
				w.CloseWithError(errors.Join(err, z.Close()))
			}()
			return b.Upload(t.Context(), "team", "hash", r, -1)
		},
	}
	for name, do := range steps {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := do(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
			t.Errorf("%s took %d MB of memory", name, used>>20)
		}
	}
}

// Files that would be written twice inside, and read again by every later step,
// becomes a layer on the host, however few files it is.
func TestMuchAndLittle(t *testing.T) {
	b := &Builder{contexts: t.TempDir()}
	const diskMB = 2 * graftBytes >> 20
	r := &run{Builder: b, spec: cay.BuildSpec{Team: "team", Limits: cay.Limits{DiskMB: diskMB}}}
	must(t, os.Mkdir(filepath.Join(b.contexts, "team"), 0o700))
	for name, tc := range map[string]struct {
		sizes        []int64
		much, single bool
		kind         cay.Kind
	}{
		"one file":                 {sizes: []int64{1}, single: true},
		"two":                      {sizes: []int64{1, 1}},
		"a large one":              {sizes: []int64{graftBytes + 1}, much: true, single: true},
		"a large one later":        {sizes: []int64{scanMost, 1, graftBytes}, much: true},
		"as much as little":        {sizes: []int64{scanMost, scanMost, 1}},
		"many":                     {sizes: make([]int64, graftAbove+1), much: true},
		"one larger than the disk": {sizes: []int64{diskMB<<20 + 1}, kind: cay.NoSpace},
	} {
		var heads bytes.Buffer
		f, err := os.Create(b.upload("team", "hash"))
		must(t, err)
		var end int64
		for i, size := range tc.sizes { // contents are holes
			heads.Reset()
			must(t, tar.NewWriter(&heads).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strconv.Itoa(i), Size: size}))
			_, err := f.WriteAt(heads.Bytes(), end)
			must(t, err)
			end += int64(heads.Len()) + (size+511)/512*512
		}
		must(t, errors.Join(f.Truncate(end+1024), f.Close()))
		much, single, err := r.firstNames(cay.BuildStep{FilesHash: "hash"})
		if cay.KindOf(err) != tc.kind || much != tc.much || single != tc.single {
			t.Errorf("%s: much %v, single %v: %v", name, much, single, err)
		}
	}
}

func FuzzTranslate(f *testing.F) {
	f.Add([]byte("x"), "a/*")
	f.Fuzz(func(t *testing.T, data []byte, src string) {
		from, err := newSource(src)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if translate(&out, bytes.NewReader(data), copying{from: from, mode: -1}, 1<<16) != nil {
			return
		}
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if err != nil {
				return
			}
			if h.Name == ".." || strings.HasPrefix(h.Name, "../") || filepath.IsAbs(h.Name) {
				t.Errorf("%q leads out", h.Name)
			}
		}
	})
}

func TestCommandErrorsInTheContractsWords(t *testing.T) {
	refused := connect.NewError(connect.CodeUnauthenticated, errors.New("invalid username: 'root123'"))
	for want, err := range map[string]error{
		"failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'": refused,
		"failed to run command 'whoami': exit status 3\nlast line":                                     &exit{Status: "exit status 3"},
	} {
		got := commandError("whoami", err, []string{"last line"})
		var ours *cay.Error
		if !errors.As(got, &ours) || ours.Msg != want {
			t.Errorf("got %v, want %q", got, want)
		}
	}
	if commandError("true", nil, nil) != nil {
		t.Error("success is an error")
	}
}

func TestUploads(t *testing.T) {
	b := &Builder{contexts: t.TempDir()}
	const team, hash = "team", "hash"
	if b.Uploaded(team, hash) {
		t.Error("it is there already")
	}
	if err := b.Upload(t.Context(), team, hash, broken{}, 1<<60); cay.KindOf(err) != cay.NoSpace || b.Uploaded(team, hash) {
		t.Errorf("more than the disk has: %v", err)
	}
	if err := b.Upload(t.Context(), team, hash, io.MultiReader(strings.NewReader("half"), broken{}), 10); cay.KindOf(err) != cay.Invalid {
		t.Errorf("half an archive: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Upload(ctx, team, hash, strings.NewReader("x"), 1); err == nil || b.Uploaded(team, hash) {
		t.Errorf("a client that went away: %v", err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(pack(t, "f").Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Upload(t.Context(), team, hash, bytes.NewReader(zipped.Bytes()[:zipped.Len()/2]), -1); err != nil {
		t.Fatal(err)
	}
	r := &run{Builder: b, spec: cay.BuildSpec{Team: team, Limits: cay.Limits{DiskMB: 1}}}
	_, _, err := r.firstNames(cay.BuildStep{FilesHash: hash})
	if b.forget(team, hash, context.Canceled); !b.Uploaded(team, hash) {
		t.Error("an archive went that is good, as far as the builder knows")
	}
	if b.forget(team, hash, err); cay.KindOf(err) != cay.Invalid || b.Uploaded(team, hash) {
		t.Errorf("a damaged archive stays: %v", err)
	}
	for name, text := range map[string][]byte{"plain": pack(t, "f").Bytes(), "compressed": zipped.Bytes()} {
		if err := b.Upload(t.Context(), team, hash, bytes.NewReader(text), int64(len(text))); err != nil {
			t.Fatal(err)
		}
		in, err := b.openUpload(team, hash)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := tar.NewReader(in).Next(); err != nil || h.Name != "f" {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}
	if b.Uploaded("another", hash) {
		t.Error("a team sees another's archive")
	}
	left := filepath.Join(b.contexts, team, tempPrefix+"left")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.removeUploads(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(left); err == nil || !b.Uploaded(team, hash) {
		t.Error("the wrong one was removed")
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestLines(t *testing.T) {
	var got []string
	l := lines{stream: "stdout", to: func(_, line string) { got = append(got, line) }}
	for _, part := range []string{"a\nb", "c\r\n\n10%\r20%\rdone\n", strings.Repeat("x", lineMost+1), "rest"} {
		l.write([]byte(part))
	}
	l.flush()
	want := []string{"a", "bc", "done", strings.Repeat("x", lineMost+1), "rest"}
	if !slices.Equal(got, want) {
		t.Errorf("got %.80q, want %.80q", got, want)
	}
}
