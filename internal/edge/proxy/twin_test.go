package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// A session that an app began below its prefix reaches its websockets outside it,
// and no other sandbox.
func TestTwins(t *testing.T) {
	w := pathWorld(t)
	app := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if isUpgrade(r) {
			c, err := websocket.Accept(rw, r, nil)
			if err != nil {
				return
			}
			defer c.CloseNow()
			_ = c.Write(r.Context(), websocket.MessageText, []byte(r.Header.Get("Cookie")))
			_, _, _ = c.Read(r.Context())
			return
		}
		for _, set := range r.URL.Query()["set"] {
			rw.Header().Add("Set-Cookie", set)
		}
		_, _ = rw.Write([]byte(r.Header.Get("Cookie")))
	})
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: app})
	w.sandbox(t, "i2", nil, map[int]http.Handler{3000: app})
	page := "; " + openedCookie + "=3000-i1-" + teamTag("")

	for _, tt := range []struct{ path, cookie, want string }{
		{"/ws", "js=1; cay_twin_3000-i1_s=a=b; cay_twin_3000-i2_s=2; cay_twin_3001-i1_s=3", "js=1; s=a=b"},
		{"/ws", "cay_twin_3000-i1_cay_opened=1; cay_twin_3000-i1_=1", "=1"},
		{"/s/i1/3000/ws", "s=0; cay_twin_3000-i1_s=1", "s=0"}, // has them itself
	} {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		c, _, err := websocket.Dial(ctx, w.front.URL+tt.path, &websocket.DialOptions{
			HTTPClient: client(t, false), HTTPHeader: http.Header{"Cookie": {tt.cookie + page}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != tt.want {
			t.Errorf("%s with %s: %q, %v; want %q", tt.path, tt.cookie, got, err, tt.want)
		}
		c.CloseNow()
	}
	req := w.request(t, "GET", "/s/i1/3000/", "", nil)
	req.Header.Set("Cookie", "cay_twin_3000-i1_s=1; a=2")
	if _, body := w.do(t, req); body != "a=2" {
		t.Errorf("a guest sees %q", body)
	}
}

func TestTwinsOfAnswers(t *testing.T) {
	at := place{route: route{id: "i1", port: 3000}, way: byPath, prefix: "/s/i1/3000"}
	const path = "; Path=/; HttpOnly; SameSite=Strict"
	few := strings.Split(strings.TrimSpace(strings.Repeat("x=1 ", maxTwins)), " ")
	for i := range few {
		few[i] = "cay_twin_3000-i1_" + string(rune('a'+i)) + "=1"
	}
	for name, tt := range map[string]struct {
		set    []string
		cookie string
		opened bool
		want   []string
	}{
		"set":              {[]string{"s=1; Secure; Max-Age=9; Domain=x; Partitioned"}, "", false, []string{"cay_twin_3000-i1_s=1; Path=/; Max-Age=9; HttpOnly; Secure; SameSite=Strict"}},
		"at the prefix":    {[]string{"s=1; Path=/s/i1/3000/"}, "", false, []string{"cay_twin_3000-i1_s=1" + path}},
		"taken back":       {[]string{"s=; Max-Age=0"}, "cay_twin_3000-i1_s=1", false, []string{"cay_twin_3000-i1_s=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"}},
		"the same":         {[]string{"s=1"}, "cay_twin_3000-i1_s=1", true, nil},
		"deeper":           {[]string{"s=1; Path=/api"}, "", false, nil},
		"large":            {[]string{"s=" + strings.Repeat("a", maxTwin)}, "", false, nil},
		"ours":             {[]string{"cay_opened=1"}, "", false, nil},
		"no cookie":        {[]string{"", ";;", "=;"}, "", true, nil},
		"too many":         {[]string{"s=1", "a=2"}, strings.Join(few, "; "), false, []string{"cay_twin_3000-i1_a=2" + path}},
		"opened with some": {[]string{"b=3"}, "a=1; b=2; cay_opened=x", true, []string{"cay_twin_3000-i1_b=3" + path, "cay_twin_3000-i1_a=1" + path}},
		"opened next":      {nil, "cay_twin_3000-i2_s=1", true, []string{"cay_twin_3000-i2_s=; Path=/; Max-Age=0"}},
		"not opened":       {nil, "a=1; cay_twin_3000-i2_s=1", false, nil},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if tt.cookie != "" {
			r.Header.Set("Cookie", tt.cookie)
		}
		if got := twins(tt.set, r, at, tt.opened); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// FuzzTwins: whatever a guest sets and a browser brings, a twin is never another
// sandbox's or one of the proxy's own cookies.
func FuzzTwins(f *testing.F) {
	f.Add("s=1; Path=/; HttpOnly", "a=1; cay_twin_3000-i1_s=1; cay_twin_3000-i2_s=2")
	f.Add("cay_opened=1;Path", "cay_twin_3000-i1_cay_opened=1;;=;")
	at := place{route: route{id: "i1", port: 3000}, way: byPath, prefix: "/s/i1/3000"}
	f.Fuzz(func(t *testing.T, set, cookie string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Cookie", cookie)
		for _, line := range twins([]string{set}, r, at, true) {
			c, err := http.ParseSetCookie(line)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			own := strings.HasPrefix(c.Name, "cay_twin_3000-i1_") && !strings.HasPrefix(c.Name, "cay_twin_3000-i1_cay_") && c.HttpOnly
			gone := strings.HasPrefix(c.Name, twinCookie) && c.MaxAge < 0
			if c.Path != "/" || c.Domain != "" || !own && !gone {
				t.Errorf("twins(%q, %q) has %q", set, cookie, line)
			}
		}
		for name := range pairs([]string{withTwins("", r, at)}) {
			if strings.HasPrefix(name, ownCookies) {
				t.Errorf("withTwins(%q) gives %s", cookie, name)
			}
		}
	})
}
