package fs

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/inside/agent/user"
)

func TestParseDisposition(t *testing.T) {
	for header, want := range map[string]formPart{
		`form-data; name="file"; filename="/home/user/a b.txt"`:    {"file", "/home/user/a b.txt", true},
		`form-data; name="file"`:                                   {"file", "", false},
		`Form-Data;name=file;filename=plain/é.txt`:                 {"file", "plain/é.txt", true},
		`form-data; name="file"; filename=""`:                      {"file", "", true},
		`form-data; name="file"; filename="we\"ird\\name"`:         {"file", `we"ird\name`, true},
		`form-data; name="file"; filename="C:\dir\f"`:              {"file", `C:\dir\f`, true},
		`form-data; name="file"; filename="a%22b%0Ac%25"`:          {"file", "a\"b\nc%25", true},
		`form-data; name="file"; filename="a;b=c"; x=y`:            {"file", "a;b=c", true},
		`form-data; filename*=UTF-8'en'%C3%A9%2Fx; filename="old"`: {"", "é/x", true},
		`form-data; filename="old"; filename*=latin1''x`:           {"", "old", true},
		`form-data; name="file"; filename="open`:                   {"file", "open", true},
		`form-data; name ; filename = "x"`:                         {"", "x", true},
	} {
		if got, ok := parseDisposition(header); !ok || got != want {
			t.Errorf("%s: got %+v, want %+v", header, got, want)
		}
	}
	for _, header := range []string{"", "attachment; name=file", "; name=file"} {
		if got, ok := parseDisposition(header); ok {
			t.Errorf("%q: got %+v", header, got)
		}
	}
}

func FuzzParseDisposition(f *testing.F) {
	for _, s := range []string{
		`form-data; name="file"; filename="a/b.txt"`, `form-data; name=file; filename*=utf-8''%41`,
		`form-data; filename="\\\""; ;;=;`, `form-data;filename="`, `form-data; name="file" filename=x`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		part, ok := parseDisposition(header)
		if ok && len(part.file) > len(header) {
			t.Errorf("%q grew to %q", header, part.file)
		}
	})
}

// A client that quotes as HTML says can send any name.
func FuzzFileNames(f *testing.F) {
	f.Add("/home/user/a b.txt")
	f.Add("we\"ird\r\nname")
	f.Fuzz(func(t *testing.T, name string) {
		if strings.ContainsAny(name, `\%`) {
			return // quoting loses these
		}
		quoted := strings.NewReplacer(`"`, "%22", "\r", "%0D", "\n", "%0A").Replace(name)
		part, ok := parseDisposition(`form-data; name="file"; filename="` + quoted + `"`)
		if !ok || part.file != name {
			t.Errorf("%q became %q", name, part.file)
		}
	})
}

func FuzzResolve(f *testing.F) {
	for _, s := range []string{"", "~", "~/x", "~x", "/", "../..", "a/./b//c/", "/..", "a\x00"} {
		f.Add(s)
	}
	u := user.User{Home: "/home/user"}
	f.Fuzz(func(t *testing.T, path string) {
		got, err := resolve(u, path, "")
		if err != nil {
			if !strings.ContainsRune(path, 0) {
				t.Errorf("%q: %v", path, err)
			}
			return
		}
		if !filepath.IsAbs(got) || filepath.Clean(got) != got {
			t.Errorf("%q became %q", path, got)
		}
	})
}

// A range answer is a part of the file, or an error; never more, never a
// panic.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-1", "bytes=-1", "bytes=5-,1-2", "bytes=9999999999999999999-", "bytes=0-0,0-0,0-0", "chars=1-2", "bytes=2-1"} {
		f.Add(s, "gzip")
	}
	root := f.TempDir()
	text := strings.Repeat("0123456789", 10_000)
	path := filepath.Join(root, "f")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
	s := New(Config{})
	f.Fuzz(func(t *testing.T, ranges, accept string) {
		r := httptest.NewRequest(http.MethodGet, "/files", nil)
		r.Header["Range"], r.Header["Accept-Encoding"] = []string{ranges}, []string{accept}
		w := httptest.NewRecorder()
		err := s.download(w, r, call{query: url.Values{"path": {path}}})
		if err != nil {
			return
		}
		if w.Code == http.StatusPartialContent && !strings.HasPrefix(w.Header().Get("Content-Type"), "multipart/") &&
			!strings.Contains(text, w.Body.String()) {
			t.Errorf("%q: %d bytes that are no part", ranges, w.Body.Len())
		}
		if w.Code == http.StatusOK && w.Header().Get("Content-Encoding") == "" && w.Body.String() != text {
			t.Errorf("%q: %d bytes", ranges, w.Body.Len())
		}
	})
}

// Forms of any shape end in files or a client's fault.
func FuzzForm(f *testing.F) {
	f.Add("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\ntext\r\n--b--\r\n")
	f.Add("--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\r\n--b--")
	f.Add("--b\r\n\r\n--b\r\n")
	f.Fuzz(func(t *testing.T, body string) {
		var up uploading
		count := 0
		err := up.form(strings.NewReader(body), "b", func(path string, content io.Reader) error {
			count++
			if path == "" {
				t.Error("a file without a path")
			}
			_, err := io.Copy(io.Discard, content)
			return err
		})
		var fault *fault
		if err == nil && count == 0 || err != nil && !errors.As(err, &fault) {
			t.Errorf("%d files, %v", count, err)
		}
	})
}
