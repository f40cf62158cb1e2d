package fs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay/api/proto/filesystem/filesystemconnect"
	"github.com/cay-run/cay/internal/inside/agent/user"
)

// world is a service over HTTP whose account "user" lives in a directory of
// the test.
type world struct {
	t     *testing.T
	home  string
	url   string
	token string
	svc   *Service
}

// uid is the account's, one that differs from the test's where it can.
func uid() int {
	if os.Getuid() == 0 {
		return 1000
	}
	return os.Getuid()
}

func gid() int {
	if os.Getuid() == 0 {
		return 1000
	}
	return os.Getgid()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root := t.TempDir()
	w := &world{t: t, home: filepath.Join(root, "home")}
	must(t, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
	must(t, os.Mkdir(w.home, 0o755))
	passwd := fmt.Sprintf("user:x:%d:%d::%s:/bin/bash\nother:x:1001:1001::/:/bin/sh\n", uid(), gid(), w.home)
	must(t, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(passwd), 0o644))
	group := fmt.Sprintf("users:x:%d:\n", gid())
	must(t, os.WriteFile(filepath.Join(root, "etc/group"), []byte(group), 0o644))
	w.svc = New(Config{
		Users:       user.DB{Root: root},
		DefaultUser: func() string { return "user" },
		DefaultDir:  func() string { return w.home },
		Token:       func() string { return w.token },
		Log:         slog.New(slog.DiscardHandler),
	})
	t.Cleanup(w.svc.Close)
	mux := http.NewServeMux()
	w.svc.Routes(mux)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	w.url = srv.URL
	return w
}

// both runs a test with each codec of Connect.
func both(t *testing.T, f func(t *testing.T, w *world, c filesystemconnect.FilesystemClient)) {
	t.Helper()
	for name, opts := range map[string][]connect.ClientOption{
		"json":   {connect.WithProtoJSON()},
		"binary": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f(t, w, filesystemconnect.NewFilesystemClient(http.DefaultClient, w.url, opts...))
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// path is a path in the home directory.
func (w *world) path(name string) string { return filepath.Join(w.home, name) }

func (w *world) write(name, text string) string {
	w.t.Helper()
	must(w.t, os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	must(w.t, os.WriteFile(w.path(name), []byte(text), 0o644))
	return w.path(name)
}

func (w *world) read(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(w.path(name))
	must(w.t, err)
	return string(text)
}

func owner(t *testing.T, path string) int {
	t.Helper()
	st, err := os.Lstat(path)
	must(t, err)
	return int(st.Sys().(*syscall.Stat_t).Uid)
}

// answer is an HTTP answer, read whole.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request; headers are pairs.
func (w *world) do(method, target string, body io.Reader, headers ...string) answer {
	w.t.Helper()
	req, err := http.NewRequest(method, w.url+target, body)
	must(w.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	// No silent gzip: what the test asks for is what goes out.
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	must(w.t, err)
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	must(w.t, err)
	return answer{status: resp.StatusCode, header: resp.Header, body: b.String()}
}

// check compares an answer's status and looks for a text in its body.
func (a answer) check(t *testing.T, status int, text string) {
	t.Helper()
	if a.status != status || !strings.Contains(a.body, text) {
		t.Errorf("got %d %.300q, want %d with %q", a.status, a.body, status, text)
	}
}

// unixTime is a time that is easy to recognise.
var unixTime = time.Unix(1_000_000_000, 0)

func jsonCompact(b *bytes.Buffer, text string) error { return json.Compact(b, []byte(text)) }
