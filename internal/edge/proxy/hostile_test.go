package proxy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"github.com/cay-run/cay"
)

// Pages of other teams, of other ports and of other sites attack a sandbox's
// page in a real Chromium, in a network of its own: a browser drops what it is
// loading when addresses of its machine change.
func TestHostilePagesInChromium(t *testing.T) {
	const python, chromium, child = "../../../build/sdk/python/bin/python", "/usr/bin/chromium", "CAY_TEST_NAMESPACE"
	for _, needed := range []string{python, chromium} {
		if _, err := os.Stat(needed); err != nil {
			t.Skipf("NOT TESTED HERE: %v", err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED HERE: network namespaces need root")
	}
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w := pathWorld(t)
	for id, team := range map[cay.SandboxID]cay.TeamID{"victim": "ours", "neighbour": "ours", "thief": "theirs"} {
		w.sandbox(t, id, func(tg *Target) { tg.Team = team }, map[int]http.Handler{3000: hostileApp(string(id))})
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprint(rw, "<body>elsewhere")
	}))
	defer elsewhere.Close()
	port := func(raw string) string {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		return u.Port()
	}
	out, err := exec.Command(python, "testdata/hostile.py", port(w.front.URL), port(elsewhere.URL)).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "done" {
		t.Errorf("%v\n%s", err, out)
	}
}

// hostileApp is a page that has a session, and clears its origin where asked.
func hostileApp(name string) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/clear":
			rw.Header().Set("Clear-Site-Data", `"*"`)
		case "/secret":
			rw.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
			rw.Header().Set("Access-Control-Allow-Credentials", "true")
			fmt.Fprintf(rw, "asked by %s", r.Header.Get("Cookie"))
			return
		case "/socket":
			if c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true}); err == nil {
				c.CloseNow()
			}
			return
		}
		http.SetCookie(rw, &http.Cookie{Name: "session", Value: "secret", HttpOnly: true})
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, "<link rel=icon href=data:,><body>page of %s with %s", name, r.Header.Get("Cookie"))
	})
}
