package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A reload of a path that an app has put into the address line finds the app;
// the server's own pages stay the server's.
func TestLost(t *testing.T) {
	w := pathWorld(t)
	server := httptest.NewServer(w.Wrap(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			fmt.Fprint(rw, "well")
		case "/sandboxes":
			http.Error(rw, "no key", http.StatusUnauthorized)
		default:
			http.Error(rw, "no such route", http.StatusNotFound)
		}
	})))
	t.Cleanup(server.Close)
	const opened, page = openedCookie + "=3000-i1-x", "text/html,*/*"
	for _, tt := range []struct {
		name, method, path, cookie, accept, key string
		status                                  int
		want                                    string // the body, or where to
	}{
		{"an app's page", "GET", "/about//me?a=1", opened, page, "", 307, "/s/i1/3000/about//me?a=1"},
		{"its form", "POST", "/save", opened, page, "", 307, "/s/i1/3000/save"},
		{"the server's page", "GET", "/health", opened, page, "", 200, "well"},
		{"the API", "GET", "/sandboxes", opened, page, "", 401, "no key\n"},
		{"nothing opened", "GET", "/about", "a=1", page, "", 404, "no such route\n"},
		{"not a sandbox", "GET", "/about", openedCookie + "=evil", page, "", 404, "no such route\n"},
		{"a program with a key", "GET", "/about", opened, page, "k", 404, "no such route\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, server.URL+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Cookie", tt.cookie)
			req.Header.Set("Accept", tt.accept)
			if tt.key != "" {
				req.Header.Set("X-API-Key", tt.key)
			}
			resp, err := stay(w).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			got := string(body)
			if resp.StatusCode == 307 {
				got += resp.Header.Get("Location")
			}
			if resp.StatusCode != tt.status || got != tt.want {
				t.Errorf("got %d %q, want %d %q", resp.StatusCode, got, tt.status, tt.want)
			}
		})
	}
}
