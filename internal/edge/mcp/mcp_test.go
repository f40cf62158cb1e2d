package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"
)

// A sandbox never sees the credential of the caller; the API gets it, and no other.
func TestCredentialsAreForTheAPIAlone(t *testing.T) {
	var seen http.Header
	rt := &within{
		serve:       http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header }),
		credentials: http.Header{"Authorization": {"Bearer the key"}},
		header:      http.Header{"User-Agent": {"a client"}},
	}
	ask := func(header http.Header) http.Header {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://localhost/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header
		resp, err := rt.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return seen
	}
	inside := ask(http.Header{"E2b-Sandbox-Id": {"i1"}, "Authorization": {"Basic dXNlcjo="}, "X-Access-Token": {"its own"}})
	if inside.Get("Authorization") != "Basic dXNlcjo=" || inside.Get("X-Access-Token") != "its own" || inside.Get("X-Api-Key") != "" {
		t.Errorf("a sandbox gets %v", inside)
	}
	api := ask(http.Header{"X-Api-Key": {"another"}})
	if api.Get("Authorization") != "Bearer the key" || api.Get("X-Api-Key") != "" || api.Get("User-Agent") != "a client" {
		t.Errorf("the API gets %v", api)
	}
}

// An answer comes while it is made; what breaks off, before or after its beginning,
// is an error; who closes it ends the request.
func TestWithin(t *testing.T) {
	ended := make(chan struct{})
	handler := http.NewServeMux()
	handler.HandleFunc("/whole", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-A", "b")
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(append(body, '!'))
	})
	handler.HandleFunc("/none", func(http.ResponseWriter, *http.Request) {})
	handler.HandleFunc("/early", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	handler.HandleFunc("/late", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("a"))
		panic(http.ErrAbortHandler)
	})
	handler.HandleFunc("/long", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	})
	c := &http.Client{Transport: &within{serve: handler}}
	ask := func(path string) (int, string, error) {
		resp, err := c.Post("http://localhost"+path, "text/plain", strings.NewReader("body"))
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text), err
	}
	if code, text, err := ask("/whole"); code != http.StatusTeapot || text != "body!" || err != nil {
		t.Error(code, text, err)
	}
	if code, text, err := ask("/none"); code != http.StatusOK || text != "" || err != nil {
		t.Error(code, text, err)
	}
	if _, _, err := ask("/early"); err == nil {
		t.Error("what broke off before it began is no error")
	}
	if _, text, err := ask("/late"); text != "a" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(text, err)
	}
	resp, err := c.Get("http://localhost/long")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	<-ended
	ctx, cancel := context.WithCancel(t.Context())
	stuck := &within{serve: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })}
	r, _ := http.NewRequestWithContext(ctx, "GET", "http://localhost/", nil)
	if resp, err := stuck.RoundTrip(r); !errors.Is(err, context.Canceled) {
		t.Error(resp, err)
	}
}

func TestExcerpt(t *testing.T) {
	for _, one := range []struct {
		most   int
		writes []string
		want   string
	}{
		{30, []string{"abc", "def"}, "abcdef"},
		{30, []string{strings.Repeat("x", 20), strings.Repeat("y", 10)}, strings.Repeat("x", 20) + strings.Repeat("y", 10)},
		{30, []string{strings.Repeat("x", 100), "the end"}, strings.Repeat("x", 20) + "\n[… 77 bytes are left out …]\nxxxthe end"},
		{30, []string{"a\xffb\x00ü"}, "a\ufffdb\x00ü"},
	} {
		e := &excerpt{most: one.most}
		for _, w := range one.writes {
			if n, err := e.Write([]byte(w)); n != len(w) || err != nil {
				t.Error(n, err)
			}
		}
		if got := e.text(); got != one.want {
			t.Errorf("%q: %q, want %q", one.writes, got, one.want)
		}
		if e.cut() != strings.Contains(one.want, "left out") {
			t.Errorf("%q: cut is %v", one.writes, e.cut())
		}
	}
	e := &excerpt{most: 3000}
	for range 1000 {
		_, _ = e.Write(bytes.Repeat([]byte("0123456789"), 1000))
	}
	if len(e.head)+cap(e.tail) > 100_000 || e.total != 10_000_000 {
		t.Errorf("it keeps %d and %d of %d", len(e.head), cap(e.tail), e.total)
	}
}

func TestNearNames(t *testing.T) {
	all := []string{"run_code", "fork", "list_files", "list_sandboxes"}
	for name, want := range map[string]string{
		"runcode": "did you mean run_code?", "list_file": "did you mean list_files?", "list": "did you mean list_files or list_sandboxes?",
		"for": "did you mean fork?", "": "there are run_code, fork, list_files, list_sandboxes",
		strings.Repeat("x", 1<<20): "there are run_code, fork, list_files, list_sandboxes",
	} {
		if got := didYouMean(name, all); got != want {
			t.Errorf("%.40q: %s, want %s", name, got, want)
		}
	}
}

// Text of models and guests is taken apart without a surprise.
func FuzzText(f *testing.F) {
	f.Add([]byte("a\x1b[31mb"), "aaaaaaaaaa-1", 10)
	f.Add([]byte("\xff\xe2\x82"), "-", 0)
	f.Fuzz(func(t *testing.T, b []byte, id string, most int) {
		most = min(max(most, 0), 1000)
		if s := readable(b); !utf8.ValidString(s) {
			t.Errorf("%q is no UTF-8", s)
		}
		if s := cut(string(b), most); len(s) > 3*max(len(b), most)+64 {
			t.Errorf("%d bytes of %d", len(s), most)
		}
		plain(string(b))
		if w := whole(b, true); len(w) < len(b)-3 {
			t.Errorf("%d of %d bytes are left", len(w), len(b))
		}
		if dir, pid, err := process(id); err == nil && (pid == 0 || strings.Contains(strings.TrimPrefix(dir, "/tmp/"), "/")) {
			t.Errorf("%q is %s, %d", id, dir, pid)
		}
		didYouMean(id, []string{"run_code"})
	})
}
