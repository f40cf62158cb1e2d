package parcel

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

// A file that ADD fetches passes the disk only, whether the server says how much
// it is or not, and nothing of it is ever seen there.
func TestFetching(t *testing.T) {
	const size, once = 64 << 20, 1 << 20
	piece := make([]byte, once)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/unknown" {
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		for sent := 0; sent < size; sent += once {
			if r.URL.Path == "/broken" && sent > size/2 {
				panic(http.ErrAbortHandler)
			}
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for path, test := range map[string]struct {
		checksum string
		kind     cay.Kind
	}{
		"/known":   {"", ""},
		"/unknown": {"", ""},
		"/broken":  {"", cay.Unavailable},
		"/other":   {"sha256:0", cay.Invalid},
	} {
		p, err := New()
		if err != nil {
			t.Fatal(err)
		}
		c := &Context{dir: t.TempDir()}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err = c.Pack(t.Context(), p, dockerfile.Copy{Sources: []string{server.URL + path}, Dest: "/x/", Add: true, Checksum: test.checksum})
		if err == nil {
			err = p.Seal()
		}
		runtime.ReadMemStats(&after)
		if cay.KindOf(err) != test.kind || err == nil && p.size < size {
			t.Errorf("%s: got %v, %d bytes", path, err, p.size)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > size/2 {
			t.Errorf("%s took %d MB of memory", path, used>>20)
		}
		if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
			t.Errorf("%s shows %v: %v", path, left, err)
		}
		p.Remove()
	}
}
