package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/blob/blobtest"
)

func TestS3(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blobtest.Place {
		s := serve(t, nil)
		return blobtest.Place{
			Open: func() *blob.Bucket { return s.open(t) },
			Stored: func(name string) []byte {
				o, err := s.backend.GetObject("box", "some/"+name, nil)
				noError(t, err)
				out, err := io.ReadAll(o.Contents)
				noError(t, err)
				return out
			},
			Store: func(name string, stored []byte) {
				_, err := s.backend.PutObject("box", "some/"+name, map[string]string{}, bytes.NewReader(stored), int64(len(stored)), nil)
				noError(t, err)
			},
		}
	})
}

// server is a server of S3 with the bucket "box".
type server struct {
	backend  gofakes3.Backend
	env      map[string]string
	requests atomic.Int64
}

// serve starts a server whose requests pass through a handler, unless it is nil.
func serve(t *testing.T, through func(w http.ResponseWriter, r *http.Request, next http.Handler)) *server {
	s := &server{backend: s3mem.New()}
	noError(t, s.backend.CreateBucket("box"))
	next := gofakes3.New(s.backend).Server()
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if through == nil {
			next.ServeHTTP(w, r)
			return
		}
		through(w, r, next)
	}))
	t.Cleanup(at.Close)
	s.env = environment(at.URL)
	return s
}

func environment(url string) map[string]string {
	return map[string]string{"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-of-the-key"}
}

func (s *server) open(t *testing.T) *blob.Bucket {
	t.Helper()
	b, err := blob.Open("s3://box/some", func(name string) string { return s.env[name] })
	noError(t, err)
	return blob.Hurry(b)
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code><Message>no</Message></Error>")
}

// TestS3Fails has a server refuse in the ways that an operator meets.
func TestS3Fails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		code   string
		want   error
		kind   cay.Kind
	}{
		{"another key", 403, "InvalidAccessKeyId", blob.ErrCredentials, cay.Denied},
		{"another secret", 403, "SignatureDoesNotMatch", blob.ErrCredentials, cay.Denied},
		{"no rights", 403, "AccessDenied", blob.ErrCredentials, cay.Denied},
		{"a session that is over", 401, "ExpiredToken", blob.ErrCredentials, cay.Denied},
		{"another clock", 403, "RequestTimeTooSkewed", blob.ErrClock, cay.Unavailable},
		{"no bucket", 404, "NoSuchBucket", blob.ErrNoBucket, cay.NotFound},
		{"a full bucket", 507, "XMinioStorageFull", blob.ErrFull, cay.NoSpace},
		{"busy or broken", 503, "SlowDown", blob.ErrUnreachable, cay.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { refuse(w, tt.status, tt.code) })
			b := s.open(t)
			_, got := b.Get(t.Context(), "a")
			var listed error
			for _, listed = range b.List(t.Context(), "") {
			}
			before := s.requests.Load()
			for what, err := range map[string]error{
				"get": got, "list": listed, "put": b.Put(t.Context(), "a", nil), "probe": b.Probe(t.Context()),
			} {
				if !errors.Is(err, tt.want) || cay.KindOf(err) != tt.kind || strings.Contains(err.Error(), "secret-of-the-key") {
					t.Errorf("%s: %v (%s)", what, err, cay.KindOf(err))
				}
			}
			want := int64(2)
			if tt.want == blob.ErrUnreachable {
				want = 2 * blob.Tries
			}
			if asked := s.requests.Load() - before; asked != want {
				t.Errorf("two writes are %d requests, want %d", asked, want)
			}
		})
	}
	b, err := blob.Open("s3://box", func(name string) string { return environment("http://127.0.0.1:1")[name] })
	noError(t, err)
	if err := blob.Hurry(b).Probe(t.Context()); !errors.Is(err, blob.ErrUnreachable) {
		t.Errorf("a port without a server: %v", err)
	}
}

// TestS3WithoutConditions finds a server out that ignores conditions, or refuses them.
func TestS3WithoutConditions(t *testing.T) {
	for name, through := range map[string]func(w http.ResponseWriter, r *http.Request, next http.Handler){
		"ignored": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Del("If-None-Match")
			next.ServeHTTP(w, r)
		},
		"refused": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Header.Get("If-None-Match") != "" {
				refuse(w, http.StatusNotImplemented, "NotImplemented")
				return
			}
			next.ServeHTTP(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := serve(t, through).open(t).Probe(t.Context())
			if !errors.Is(err, blob.ErrConditional) || cay.KindOf(err) != cay.Unsupported {
				t.Error(err)
			}
		})
	}
}

// TestS3TriesAgain loses answers: each thing is done once, and is answered.
func TestS3TriesAgain(t *testing.T) {
	drop := func(w http.ResponseWriter) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	}
	var calls atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch calls.Add(1) % 4 {
		case 1: // not done
			drop(w)
		case 2: // done, and the answer is lost
			record := httptest.NewRecorder()
			next.ServeHTTP(record, r)
			if r.Method != http.MethodGet || record.Code != http.StatusOK {
				drop(w)
				return
			}
			w.Header().Set("Content-Length", record.Header().Get("Content-Length"))
			_, _ = w.Write(record.Body.Bytes()[:record.Body.Len()/2]) // breaks off in the middle
		case 3:
			refuse(w, http.StatusServiceUnavailable, "SlowDown")
		default:
			next.ServeHTTP(w, r)
		}
	})
	b := s.open(t)
	noError(t, b.Create(t.Context(), "a", []byte("once")))
	if err := b.Create(t.Context(), "a", []byte("twice")); !errors.Is(err, blob.ErrExists) {
		t.Errorf("it was made twice: %v", err)
	}
	for range 4 {
		if got, err := b.Get(t.Context(), "a"); err != nil || string(got) != "once" {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := b.GetRange(t.Context(), "a", 1, 2); err != nil || string(got) != "nc" {
			t.Errorf("%q, %v", got, err)
		}
	}
	noError(t, b.Remove(t.Context(), "a"))
	if _, err := b.Get(t.Context(), "a"); !errors.Is(err, blob.ErrMissing) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := s.requests.Load()
	if err := b.Put(ctx, "a", nil); err == nil || s.requests.Load() != before {
		t.Errorf("a request that is over: %v", err)
	}
}

// TestVersity runs the suite on versitygw, a real server of S3 (make test-bucket).
func TestVersity(t *testing.T) {
	program := os.Getenv("CAY_TEST_VERSITYGW")
	if program == "" {
		t.Skip("NOT TESTED HERE: make test-bucket builds the server and runs this")
	}
	root := t.TempDir()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	at := free.Addr().String()
	noError(t, free.Close())
	var log bytes.Buffer
	cmd := exec.Command(program, "--access", "key", "--secret", "secret-of-the-key", "--port", at, "posix", root)
	cmd.Stdout, cmd.Stderr = &log, &log
	noError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	ready, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			conn.Close()
			break
		}
		if ready.Err() != nil {
			t.Fatal("it does not answer: " + log.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
	open := func(t *testing.T, bucket string, change map[string]string) *blob.Bucket {
		env := environment("http://" + at)
		for name, value := range change {
			env[name] = value
		}
		b, err := blob.Open("s3://"+bucket+"/some", func(name string) string { return env[name] })
		noError(t, err)
		return blob.Hurry(b)
	}
	boxes := 0
	blobtest.Run(t, func(t *testing.T) blobtest.Place {
		boxes++
		box := "box" + strings.Repeat("x", boxes)
		noError(t, os.Mkdir(filepath.Join(root, box), 0o700))
		inside := inDir(t, filepath.Join(root, box, "some"))
		return blobtest.Place{Open: func() *blob.Bucket { return open(t, box, nil) }, Stored: inside.Stored, Store: inside.Store}
	})
	for what, tt := range map[string]struct {
		bucket string
		change map[string]string
		want   error
	}{
		"another key":    {"boxx", map[string]string{"AWS_ACCESS_KEY_ID": "other"}, blob.ErrCredentials},
		"another secret": {"boxx", map[string]string{"AWS_SECRET_ACCESS_KEY": "other"}, blob.ErrCredentials},
		"no bucket":      {"none", nil, blob.ErrNoBucket},
	} {
		if err := open(t, tt.bucket, tt.change).Probe(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
