package cargo

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/cay-run/cay"
)

// server is a server of S3 with the bucket "box", which is open to the key "key".
func server(t *testing.T) (env map[string]string, backend gofakes3.Backend) {
	t.Helper()
	backend = s3mem.New()
	must(t, backend.CreateBucket("box"))
	s3 := gofakes3.New(backend).Server()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=key/") {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>")
			return
		}
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return map[string]string{"AWS_ENDPOINT_URL": srv.URL, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}, backend
}

func bucket(t *testing.T, text string, env map[string]string) *Bucket {
	t.Helper()
	b, err := OpenBucket(text, func(name string) string { return env[name] })
	must(t, err)
	return b
}

func TestBucketRoundTrip(t *testing.T) {
	env, backend := server(t)
	content, want := sample(t)
	big := item{Name: "big", Kind: tar.TypeReg, Text: strings.Repeat("0123456789abcdef", 2<<20)} // several parts
	content = append(content[:len(content)-1024], pack(t, []item{big})...)
	stored, err := bucket(t, "s3://box/some/where", env).Store(t.Context(), bytes.NewReader(content))
	must(t, err)
	if diff := cmp.Diff(Stored{Objects: 4, Bytes: 400_000 + int64(len(big.Text)), Left: 1}, stored); diff != "" {
		t.Error(diff)
	}
	_, err = backend.PutObject("box", "some/whereelse", nil, strings.NewReader("x"), 1, nil)
	must(t, err)
	in := bucket(t, "s3://box/some/where/", env).Tar(t.Context())
	defer in.Close()
	got, err := unpack(in)
	must(t, err)
	want = append(want[:3], big) // a link stays behind
	byName := cmpopts.SortSlices(func(a, b item) bool { return a.Name < b.Name })
	if diff := cmp.Diff(want, got, byName); diff != "" {
		t.Error(diff)
	}
}

func TestBucketOfManyObjects(t *testing.T) {
	env, backend := server(t)
	for i := range 2500 { // three pages of a list
		_, err := backend.PutObject("box", "p/"+strings.Repeat("x", i/26+1)+string(rune('a'+i%26)), map[string]string{"Last-Modified": "Mon, 2 Jan 2006 15:04:05 GMT"}, strings.NewReader("y"), 1, nil)
		must(t, err)
	}
	in := bucket(t, "s3://box/p", env).Tar(t.Context())
	defer in.Close()
	got, err := unpack(in)
	if must(t, err); len(got) != 2500 {
		t.Errorf("%d objects", len(got))
	}
}

func TestBucketFromProfile(t *testing.T) {
	env, _ := server(t)
	file := filepath.Join(t.TempDir(), "credentials")
	must(t, os.WriteFile(file, []byte("[me]\naws_access_key_id = key\naws_secret_access_key = secret\n"), 0o600))
	delete(env, "AWS_ACCESS_KEY_ID")
	env["AWS_SHARED_CREDENTIALS_FILE"], env["AWS_PROFILE"] = file, "me"
	_, err := bucket(t, "s3://box/x", env).Store(t.Context(), bytes.NewReader(pack(t, []item{{Name: "f", Kind: tar.TypeReg}})))
	must(t, err)
}

func TestBucketsThatFail(t *testing.T) {
	env, _ := server(t)
	file := pack(t, []item{{Name: "f", Kind: tar.TypeReg}})
	wrong := map[string]string{"AWS_ENDPOINT_URL": env["AWS_ENDPOINT_URL"], "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "other"}
	for _, c := range []struct {
		name, bucket string
		env          map[string]string
		want         cay.Kind
	}{
		{"no bucket", "s3://none/p", env, cay.NotFound},
		{"wrong key", "s3://box/p", wrong, cay.Denied},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := bucket(t, c.bucket, c.env).Store(t.Context(), bytes.NewReader(file)); cay.KindOf(err) != c.want {
				t.Errorf("store: %v", err)
			}
			in := bucket(t, c.bucket, c.env).Tar(t.Context())
			defer in.Close()
			if _, err := io.Copy(io.Discard, in); cay.KindOf(err) != c.want {
				t.Errorf("tar: %v", err)
			}
		})
	}
	if _, err := OpenBucket("s3:///p", func(string) string { return "" }); cay.KindOf(err) != cay.Invalid {
		t.Errorf("no name: %v", err)
	}
	if _, err := OpenBucket("s3://b", func(string) string { return "not a url" }); cay.KindOf(err) != cay.Invalid {
		t.Errorf("no url: %v", err)
	}
	_, err := bucket(t, "s3://box/p", env).Store(t.Context(), bytes.NewReader(pack(t, []item{{Name: "\xff", Kind: tar.TypeReg}})))
	if cay.KindOf(err) != cay.Invalid {
		t.Errorf("a name that is no UTF-8: %v", err)
	}
}

func TestBucketStops(t *testing.T) {
	env, _ := server(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	in := bucket(t, "s3://box/p", env).Tar(ctx)
	defer in.Close()
	if _, err := io.Copy(io.Discard, in); err == nil {
		t.Error("it did not stop")
	}
}
