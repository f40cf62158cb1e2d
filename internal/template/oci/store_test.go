package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cay-run/cay"
)

// imageOf makes an image of layers.
func imageOf(t *testing.T, layers ...[]byte) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH,
		Config: v1.Config{Env: []string{"A=1"}, User: "nobody", WorkingDir: "/srv", Cmd: []string{"sh"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// world is a store and a registry beside it, which wants a password when it
// has one.
type world struct {
	*Store
	host     string // of the registry
	server   *httptest.Server
	mu       sync.Mutex
	password string
	gets     int // of blobs
}

func newWorld(t *testing.T) *world {
	needRoot(t)
	w := &world{}
	inner := registry.New(registry.Logger(discard()))
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		want := w.password
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w.gets++
		}
		w.mu.Unlock()
		if _, got, _ := r.BasicAuth(); want != "" && got != want {
			rw.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(rw, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.server.Close)
	w.host = strings.TrimPrefix(w.server.URL, "http://")
	w.open(t, t.TempDir())
	return w
}

func (w *world) open(t *testing.T, dir string) {
	t.Helper()
	s, err := Open(dir, Options{PlainHTTP: []string{w.host}})
	if err != nil {
		t.Fatal(err)
	}
	w.Store = s
}

func (w *world) push(t *testing.T, ref string, img v1.Image) string {
	t.Helper()
	full := w.host + "/" + ref
	parsed, err := name.ParseReference(full, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	auth := authn.FromConfig(authn.AuthConfig{Username: "u", Password: w.password})
	if err := remote.Write(parsed, img, remote.WithAuth(auth)); err != nil {
		t.Fatal(err)
	}
	return full
}

func (w *world) show(t *testing.T, digest string) string {
	t.Helper()
	dir, release, err := w.Tree(digest)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	return listing(t, dir)
}

func TestCollect(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	teams := NewTeams(dir, Options{PlainHTTP: []string{w.host}})
	s, err := teams.Of("team")
	if err != nil {
		t.Fatal(err)
	}
	var digests []string
	for _, name := range []string{"old", "read", "imported", "new"} {
		ref := w.push(t, name+":1", imageOf(t, layerOf(t, item{name: "f", body: name})))
		img, err := s.Pull(t.Context(), ref, Credentials{}, nil)
		if err == nil && name == "imported" {
			_, err = s.name(img.Digest, img.Names[0], true)
		}
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, img.Digest)
		long := time.Now().Add(-100 * time.Hour)
		if err := os.Chtimes(filepath.Join(s.dir, hexOf(img.Digest), recordName), long, long); err != nil {
			t.Fatal(err)
		}
	}
	s.used(digests[3])
	tree, release, err := s.Tree(digests[1])
	if err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		gone, err := teams.Collect(time.Now().Add(-time.Hour), dry)
		if err != nil || len(gone) != 2 || gone[0].Bytes == 0 {
			t.Fatalf("dry %v: got %v, %v", dry, gone, err)
		}
		for i, kept := range []bool{dry, dry, true, true} {
			if _, err := s.Find(digests[i]); (err == nil) != kept {
				t.Errorf("dry %v: image %d is kept: %v", dry, i, err)
			}
		}
	}
	release()
	if _, err := os.Lstat(tree); err == nil {
		t.Error("an image that was removed while it was read is still there")
	}
}

func TestPull(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	ref := w.push(t, "team/app:1", imageOf(t, layerOf(t, item{name: "f", body: "1"}), layerOf(t, item{name: "g", body: "2"})))
	img, err := w.Pull(ctx, ref, Credentials{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.show(t, img.Digest); got != "f=1 g=2" {
		t.Errorf("the tree is %q", got)
	}
	if img.Config.User != "nobody" || img.Config.WorkingDir != "/srv" || len(img.Names) != 1 {
		t.Errorf("the image is %+v", img)
	}

	// Again, and under another name: nothing is fetched but its description.
	layers := w.gets
	other := w.push(t, "team/same:2", imageOf(t, layerOf(t, item{name: "f", body: "1"}), layerOf(t, item{name: "g", body: "2"})))
	again, err := w.Pull(ctx, other, Credentials{}, nil)
	if err != nil || again.Digest != img.Digest || len(again.Names) != 2 {
		t.Fatalf("%+v, %v", again, err)
	}
	if w.gets > layers+1 {
		t.Errorf("%d blobs were fetched again", w.gets-layers)
	}

	// The name moves to another image; the image before loses it.
	w.push(t, "team/app:1", imageOf(t, layerOf(t, item{name: "new", body: "3"})))
	next, err := w.Pull(ctx, ref, Credentials{}, nil)
	if err != nil || next.Digest == img.Digest {
		t.Fatalf("%+v, %v", next, err)
	}
	if old, err := w.Find(img.Digest); err != nil || len(old.Names) != 1 {
		t.Errorf("%+v, %v", old, err)
	}

	// A restart finds the same; the leftovers of a crash are gone.
	dir := w.dir
	if err := os.MkdirAll(filepath.Join(dir, tempPrefix+"x", treeName), 0o755); err != nil {
		t.Fatal(err)
	}
	w.open(t, dir)
	if got := w.List(); len(got) != 2 {
		t.Errorf("after a restart: %+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, tempPrefix+"x")); err == nil {
		t.Error("what was half made is still there")
	}

	// Without the registry, the image that is here serves.
	w.server.Close()
	var said []string
	if got, err := w.Pull(ctx, ref, Credentials{}, func(s string) { said = append(said, s) }); err != nil || got.Digest != next.Digest || len(said) == 0 {
		t.Errorf("%+v, %v, said %q", got, err, said)
	}
	if _, err := w.Pull(ctx, w.host+"/team/none:1", Credentials{}, nil); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("an unknown image without a registry: %v", err)
	}
}

func TestPullRefused(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	w.password = "right"
	private := w.push(t, "private:1", imageOf(t, layerOf(t, item{name: "f", body: "1"})))
	for name, test := range map[string]struct {
		ref   string
		creds Credentials
		kind  cay.Kind
	}{
		"no password":           {private, Credentials{}, cay.Denied},
		"a wrong password":      {private, Credentials{Username: "u", Password: "wrong"}, cay.Denied},
		"the right one":         {private, Credentials{Username: "u", Password: "right"}, ""},
		"no such image":         {w.host + "/none:1", Credentials{Username: "u", Password: "right"}, cay.NotFound},
		"no name":               {"Not A Name", Credentials{}, cay.Invalid},
		"a private network":     {"127.0.0.1:1/x:1", Credentials{}, cay.Unavailable},
		"an AWS region of ours": {private, Credentials{AWS: &AWSCredentials{Region: "evil.example.com/"}}, cay.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Pull(ctx, test.ref, test.creds, nil)
			if test.ref == "127.0.0.1:1/x:1" {
				if err == nil || !strings.Contains(err.Error(), "private network") {
					t.Errorf("got %v", err)
				}
				return
			}
			if got := cay.KindOf(err); got != test.kind {
				t.Errorf("got %q (%v), want %q", got, err, test.kind)
			}
			if err != nil && (strings.Contains(err.Error(), "wrong\"") || strings.Contains(err.Error(), "right")) {
				t.Errorf("the error shows a password: %v", err)
			}
		})
	}
}

func TestPullsAreOne(t *testing.T) {
	w := newWorld(t)
	ref := w.push(t, "app:1", imageOf(t, layerOf(t, item{name: "f", body: strings.Repeat("x", 1<<20)})))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := w.Pull(context.Background(), ref, Credentials{}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if w.gets > 1+8 { // the layer once, the configuration each
		t.Errorf("%d blobs were fetched", w.gets)
	}
}

func TestImport(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	img := imageOf(t, layerOf(t, item{name: "f", body: "1"}))
	tag, err := name.NewTag("saved:v1")
	if err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if err := tarball.Write(tag, img, &saved); err != nil {
		t.Fatal(err)
	}
	var other bytes.Buffer // not the same: the image that is here is not unpacked again
	if err := tarball.Write(tag, imageOf(t, layerOf(t, item{name: "f", body: "2"})), &other); err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(saved.Bytes())
	z.Close()

	for name, test := range map[string]struct {
		archive []byte
		as      string
		want    string // the name it gets
		kind    cay.Kind
	}{
		"docker save":             {saved.Bytes(), "", "index.docker.io/library/saved:v1", ""},
		"docker save, gzipped":    {zipped.Bytes(), "mine/two:2", "index.docker.io/mine/two:2", ""},
		"an OCI layout":           {layoutOf(t, img, "lay:1"), "", "index.docker.io/library/lay:1", ""},
		"an OCI layout, unnamed":  {layoutOf(t, img, ""), "", "", cay.Invalid},
		"a bad name":              {saved.Bytes(), "No Name", "", cay.Invalid},
		"no archive":              {[]byte("hello, world"), "x", "", cay.Invalid},
		"an archive cut short":    {saved.Bytes()[:saved.Len()/2], "x", "", cay.Invalid},
		"a gzip cut short":        {zipped.Bytes()[:zipped.Len()/2], "x", "", cay.Invalid},
		"a layer that is damaged": {damage(other.Bytes()), "x", "", cay.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := w.Import(ctx, bytes.NewReader(test.archive), test.as, nil)
			if cay.KindOf(err) != test.kind {
				t.Fatalf("got %v, want %q", err, test.kind)
			}
			if err != nil {
				return
			}
			if found, err := w.Find(test.want); err != nil || found.Digest != got.Digest || !found.Imported {
				t.Errorf("found %+v, %v", found, err)
			}
			// An imported name is never asked of a registry.
			if pulled, err := w.Pull(ctx, test.want, Credentials{}, nil); err != nil || pulled.Digest != got.Digest {
				t.Errorf("pulled %+v, %v", pulled, err)
			}
			if got := w.show(t, got.Digest); got != "f=1" {
				t.Errorf("the tree is %q", got)
			}
		})
	}
	if entries, _ := os.ReadDir(w.dir); len(entries) != 1 {
		t.Errorf("the failed imports left something: %v", entries)
	}
}

// hole is an endless run of zeros.
type hole struct{}

func (hole) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// An archive of any size passes the disk only, whatever in it says that it is
// a description.
func TestImportsAreNotHeldInMemory(t *testing.T) {
	needRoot(t)
	const large = 64 << 20
	layer := func(w io.Writer) { // one large file
		out := tar.NewWriter(w)
		out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "large", Mode: 0o644, Size: large})
		io.CopyN(out, hole{}, large)
		out.Close()
	}
	sum, size := sha256.New(), &counter{}
	layer(io.MultiWriter(sum, size))
	config := fmt.Sprintf(`{"os":"linux","architecture":%q,"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, runtime.GOARCH, sum.Sum(nil))
	saved := `[{"Config":"config.json","RepoTags":["a:1"],"Layers":["layer.tar"]}]`
	index := `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":9,"digest":"sha256:` + strings.Repeat("a", 64) + `"}]}`
	type entry struct {
		name string
		text string // empty for a large one
	}
	for name, test := range map[string]struct {
		entries []entry
		kind    cay.Kind
	}{
		"a large layer":         {[]entry{{"layer.tar", ""}, {"config.json", config}, {"manifest.json", saved}}, ""},
		"a large configuration": {[]entry{{"manifest.json", saved}, {"config.json", ""}}, cay.Invalid},
		"a large list":          {[]entry{{"manifest.json", ""}}, cay.Invalid},
		"a large index":         {[]entry{{"oci-layout", "{}"}, {"index.json", ""}}, cay.Invalid},
		"a large manifest":      {[]entry{{"oci-layout", "{}"}, {"index.json", index}, {"blobs/sha256/" + strings.Repeat("a", 64), ""}}, cay.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			r, w := io.Pipe()
			go func() {
				out := tar.NewWriter(w)
				for _, e := range test.entries {
					h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o600, Size: int64(len(e.text))}
					switch {
					case e.text != "":
						out.WriteHeader(h)
						io.WriteString(out, e.text)
					case e.name == "layer.tar":
						h.Size = size.n
						out.WriteHeader(h)
						layer(out)
					default: // white space, as JSON may begin with
						h.Size = large
						out.WriteHeader(h)
						io.CopyN(out, blanks{}, large)
					}
				}
				w.CloseWithError(out.Close())
			}()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = s.Import(t.Context(), r, "", nil)
			r.CloseWithError(io.ErrClosedPipe)
			runtime.ReadMemStats(&after)
			if cay.KindOf(err) != test.kind {
				t.Errorf("got %v, want %q", err, test.kind)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > large*3/4 {
				t.Errorf("it took %d MB of memory", used>>20)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, tempPrefix+"*")); len(left) > 0 {
				t.Errorf("%v is left", left)
			}
		})
	}
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// layoutOf packs an OCI layout of an image.
func layoutOf(t *testing.T, img v1.Image, ref string) []byte {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	var opts []layout.Option
	if ref != "" {
		opts = append(opts, layout.WithAnnotations(map[string]string{refAnnotation: ref}))
	}
	if err := p.AppendImage(img, opts...); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// damage changes a layer inside an archive without changing what is said of it.
func damage(archive []byte) []byte {
	var out bytes.Buffer
	in, w := tar.NewReader(bytes.NewReader(archive)), tar.NewWriter(&out)
	for {
		h, err := in.Next()
		if err != nil {
			w.Close()
			return out.Bytes()
		}
		text, _ := io.ReadAll(in)
		if strings.HasSuffix(h.Name, ".tar.gz") {
			var z bytes.Buffer
			gz := gzip.NewWriter(&z)
			plain, _ := gzip.NewReader(bytes.NewReader(text))
			body, _ := io.ReadAll(plain)
			gz.Write(append(body, make([]byte, 1024)...)) // more padding: another digest
			gz.Close()
			text = z.Bytes()
			h.Size = int64(len(text))
		}
		w.WriteHeader(h)
		w.Write(text)
	}
}

func TestRemoveWaitsForReaders(t *testing.T) {
	w := newWorld(t)
	ref := w.push(t, "app:1", imageOf(t, layerOf(t, item{name: "f", body: "1"})))
	img, err := w.Pull(context.Background(), ref, Credentials{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, release, err := w.Tree(img.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(ref); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Find(ref); cay.KindOf(err) != cay.NotFound {
		t.Errorf("it is still found: %v", err)
	}
	if entries, _ := os.ReadDir(w.dir); len(entries) != 1 {
		t.Error("the tree went under its reader")
	}
	release()
	if entries, _ := os.ReadDir(w.dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
}

// The expected signature is of a request that AWS documents.
func TestECR(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08", nil)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	keys := AWSCredentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", Region: "us-east-1"}
	if err := signAWS(context.Background(), req, nil, keys, "iam", at); err != nil {
		t.Fatal(err)
	}
	if got := req.Header.Get("Authorization"); !strings.HasSuffix(got, "Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7") {
		t.Error(got)
	}
	for text, want := range map[string]string{
		`{"authorizationData":[{"authorizationToken":"QVdTOnNlY3JldA=="}]}`: "secret",
		`{"authorizationData":[]}`: "", `{"authorizationData":[{"authorizationToken":"!"}]}`: "", `no`: "",
	} {
		if got, err := ecrToken([]byte(text)); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func discard() *log.Logger { return log.New(io.Discard, "", 0) }
