package client

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/inside/agent/fs"
	"github.com/cay-run/cay/internal/inside/agent/user"
)

// files is a sandbox whose files an agent's real handler serves, and its home.
func files(t *testing.T) (*Sandbox, string) {
	t.Helper()
	root, home := t.TempDir(), t.TempDir()
	put(t, filepath.Join(root, "etc/passwd"), fmt.Sprintf("user:x:%d:%d::%s:/bin/sh\n", os.Getuid(), os.Getgid(), home))
	put(t, filepath.Join(root, "etc/group"), "")
	service := fs.New(fs.Config{
		Users:       user.DB{Root: root},
		DefaultUser: func() string { return "user" },
		DefaultDir:  func() string { return "" },
		Token:       func() string { return "secret" },
	})
	t.Cleanup(service.Close)
	mux := http.NewServeMux()
	service.Routes(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c, err := New(Config{APIKey: "key", APIURL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return &Sandbox{ID: "ibox", AccessToken: "secret", client: c}, home
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCopyThereAndBack(t *testing.T) {
	s, home := files(t)
	from, back := t.TempDir(), filepath.Join(t.TempDir(), "new", "back")
	put(t, filepath.Join(from, "a/b/text"), "text")
	put(t, filepath.Join(from, "big"), strings.Repeat("0123456789abcdef", 100_000))
	if err := os.Symlink("a/b/text", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	var moved int64
	done, err := s.CopyIn(t.Context(), from, "there", CopyOptions{Progress: func(n int64) { moved = n }})
	if err != nil || done.Entries != 5 || done.Bytes != 1_600_004 || moved <= done.Bytes {
		t.Fatalf("CopyIn = %+v, %v; %d bytes of archive", done, err, moved)
	}
	if target, err := os.Readlink(filepath.Join(home, "there/link")); err != nil || target != "a/b/text" {
		t.Errorf("link inside: %q, %v", target, err)
	}
	e, err := s.Stat(t.Context(), "there", "")
	there, lstatErr := os.Lstat(filepath.Join(home, "there"))
	if lstatErr != nil {
		t.Fatal(lstatErr)
	}
	if err != nil || e != (Entry{
		Name: "there", Path: filepath.Join(home, "there"), Dir: true, Size: there.Size(), Mode: "drwxr-xr-x",
		Owner: "user", Group: strconv.Itoa(os.Getgid()), Modified: there.ModTime().UTC(),
	}) {
		t.Errorf("Stat = %+v, %v", e, err)
	}
	done, err = s.CopyOut(t.Context(), "there", back, CopyOptions{})
	if err != nil || done.Entries != 5 || done.Bytes != 1_600_004 {
		t.Fatalf("CopyOut = %+v, %v", done, err)
	}
	for _, name := range []string{"a/b/text", "big", "link"} {
		want, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(back, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s came back as %d bytes, %v", name, len(got), err)
		}
	}
}

func TestCopyFailures(t *testing.T) {
	s, home := files(t)
	dir := t.TempDir()
	put(t, filepath.Join(dir, "file"), "text")
	put(t, filepath.Join(home, "file"), "text")
	if _, err := s.CopyOut(t.Context(), "none", dir, CopyOptions{}); cay.KindOf(err) != cay.NotFound {
		t.Errorf("CopyOut of none = %v", err)
	}
	if _, err := s.CopyOut(t.Context(), ".", filepath.Join(dir, "file"), CopyOptions{}); cay.KindOf(err) != cay.Invalid {
		t.Errorf("CopyOut over a file = %v", err)
	}
	if _, err := s.CopyIn(t.Context(), dir, "file", CopyOptions{}); cay.KindOf(err) != cay.Invalid {
		t.Errorf("CopyIn over a file = %v", err)
	}
	if _, err := s.CopyIn(t.Context(), dir, "x", CopyOptions{User: "nobody"}); cay.KindOf(err) != cay.Unauthenticated {
		t.Errorf("CopyIn for an unknown user = %v", err)
	}
	if _, err := s.Stat(t.Context(), "none", ""); cay.KindOf(err) != cay.NotFound {
		t.Errorf("Stat of none = %v", err)
	}
}

// An archive that ends in its middle is no success.
func TestCopyOutBreaksOff(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(make([]byte, 100))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	c, err := New(Config{APIKey: "key", APIURL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	s := &Sandbox{ID: "ibox", client: c}
	if _, err := s.CopyOut(t.Context(), "x", t.TempDir(), CopyOptions{}); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("CopyOut = %v", err)
	}
}
