package webhooks_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/control/webhooks"
	"github.com/cay-run/cay/internal/keys/seal"
)

// over opens hooks that send over networks.
func (w *world) over(n webhooks.Networks) *webhooks.Hooks {
	w.Helper()
	key, err := seal.NewKey(make([]byte, 32))
	if err != nil {
		w.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	w.ledger = ledger.New(ledger.Config{Store: w.store, Log: log})
	w.hooks = webhooks.New(webhooks.Config{Ledger: w.ledger, Store: w.store, Sealer: key, Networks: n, Log: log})
	return w.hooks
}

// withoutNames has names be found in this machine's own list alone: what a name
// server says, and when, is no matter of a test.
func withoutNames(t *testing.T) {
	t.Helper()
	was := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = was })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("there is no name server")
	}}
}

// closedPort is an address of this machine that no other program can take, and at
// which nothing listens until the test ends.
func closedPort(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

// here trusts this machine.
func here() outside.Networks {
	return outside.Networks{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

// try tests a webhook at an address and returns what is told of it.
func (w *world) try(url string) (cay.WebhookAttempt, error) {
	w.Helper()
	hook := w.add(url, "*")
	a, err := w.hooks.TestWebhook(w.Context(), w.who(), hook.ID)
	if err == nil { // what is recorded is what is told
		if d := w.deliveries(hook.ID); len(d) != 1 || len(d[0].Attempts) != 1 || d[0].Attempts[0].Class != a.Class || d[0].Attempts[0].ID != a.ID {
			w.Errorf("recorded as %+v, told as %+v", d, a)
		}
	}
	return a, err
}

func TestHostileReceivers(t *testing.T) {
	withoutNames(t)
	w := newWorld(t)
	w.over(here())
	followed := false
	mux := http.NewServeMux()
	mux.HandleFunc("/redirect", func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, "/followed", http.StatusFound) })
	mux.HandleFunc("/followed", func(http.ResponseWriter, *http.Request) { followed = true })
	much := make([]byte, 1<<20)
	mux.HandleFunc("/large", func(rw http.ResponseWriter, _ *http.Request) {
		for range 200 { // until the connection breaks
			if _, err := rw.Write(much); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/packed", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Encoding", "gzip")
		fmt.Fprintf(rw, "%q", r.Header.Get("Accept-Encoding"))
	})
	mux.HandleFunc("/headers", func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("X-Long", strings.Repeat("a", 1<<20)) })
	mux.HandleFunc("/binary", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Set-Cookie", "hidden=1")
		_, _ = rw.Write([]byte("a\x00b\xffc"))
	})
	mux.HandleFunc("/reset", func(rw http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/garbage", func(rw http.ResponseWriter, _ *http.Request) {
		if conn, _, err := rw.(http.Hijacker).Hijack(); err == nil {
			_, _ = conn.Write([]byte("SSH-2.0-OpenSSH\r\n"))
			conn.Close()
		}
	})
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	for name, tt := range map[string]struct {
		url, class, says string
		status           int
		body             string
	}{
		"a redirect":         {plain.URL + "/redirect", cay.FailedHTTP, "redirect", 302, ""},
		"a large answer":     {plain.URL + "/large", "", "", 200, strings.Repeat("\ufffd", 4096)},
		"no packed answer":   {plain.URL + "/packed", "", "", 200, `""`},
		"long headers":       {plain.URL + "/headers", cay.FailedTransport, "exceeded", 0, ""},
		"an odd answer":      {plain.URL + "/binary", "", "", 200, "a\ufffdb\ufffdc"},
		"a reset":            {plain.URL + "/reset", cay.FailedTransport, "EOF", 0, ""},
		"no HTTP":            {plain.URL + "/garbage", cay.FailedTransport, "malformed", 0, ""},
		"an unknown issuer":  {secure.URL + "/followed", cay.FailedTransport, "certificate", 0, ""},
		"TLS to plain HTTP":  {strings.Replace(plain.URL, "http", "https", 1) + "/followed", cay.FailedTransport, "TLS", 0, ""},
		"a closed port":      {"http://" + closedPort(t), cay.FailedTransport, "refused", 0, ""},
		"a name without one": {"http://nothing.invalid/", cay.FailedDNS, "nothing.invalid", 0, ""},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a, err := w.try(tt.url)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if a.Class != tt.class || !strings.Contains(a.Error, tt.says) || a.Status != tt.status || tt.body != "" && a.ResponseBody != tt.body {
			t.Errorf("%s: %q %q, status %d, %.40q", name, a.Class, a.Error, a.Status, a.ResponseBody)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; name == "a large answer" && grown > 20<<20 {
			t.Errorf("%s took %d bytes here", name, grown)
		}
		if name == "an odd answer" && (strings.Contains(a.ResponseHeaders, "hidden") || !strings.Contains(a.ResponseHeaders, "redacted")) {
			t.Errorf("headers as recorded: %s", a.ResponseHeaders)
		}
	}
	if followed {
		t.Error("a redirect was followed, or a certificate not checked")
	}
}

// Addresses that are closed are refused when a webhook is made, where the URL
// has them, and when they are dialled, where a name stands for them.
func TestClosedAddresses(t *testing.T) {
	withoutNames(t)
	reached := false
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	w := newWorld(t)
	w.over(outside.Networks{})
	for _, url := range []string{
		s.URL, "http://10.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://[::1]:" + port, "http://[::ffff:127.0.0.1]:" + port, "http://0.0.0.0:" + port,
	} {
		_, _, err := w.hooks.CreateWebhook(t.Context(), w.who(), webhooks.WebhookChange{Name: pointer("a"), URL: &url, Events: []string{"*"}})
		if cay.KindOf(err) != cay.Invalid || cay.CodeOf(err) != cay.CodeWebhookAddress {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, host := range []string{"localhost", "127.1", "2130706433", "0x7f.1", "localhost."} {
		a, err := w.try("http://" + host + ":" + port)
		if err != nil || a.Class != cay.FailedTransport && a.Class != cay.FailedDNS {
			t.Errorf("%s: %q %q %v", host, a.Class, a.Error, err)
		}
		if host == "localhost" && !strings.Contains(a.Error, "private network") {
			t.Errorf("%s: %q", host, a.Error)
		}
	}
	hook := w.add("https://a.example/", "*")
	if _, err := w.hooks.UpdateWebhook(t.Context(), w.who(), hook.ID, webhooks.WebhookChange{URL: &s.URL}); cay.CodeOf(err) != cay.CodeWebhookAddress {
		t.Errorf("moved to %s: %v", s.URL, err)
	}
	if reached {
		t.Error("a closed address was reached")
	}
}

// pipes connect to a function that has the other end.
type pipes func(net.Conn)

func (pipes) Outside(netip.Addr) (bool, error) { return true, nil }

func (p pipes) DialContext(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p(far)
	return near, nil
}

// A receiver that does not answer, or slowly, or never to the end, has 15
// seconds.
func TestSlowReceivers(t *testing.T) {
	// read returns when a request is there, which no answer may come before, and
	// goes on reading.
	read := func(c net.Conn) {
		head := bufio.NewReader(c)
		for {
			if text, err := head.ReadString('\n'); err != nil || text == "\r\n" {
				break
			}
		}
		go func() { _, _ = io.Copy(io.Discard, c) }()
	}
	for name, tt := range map[string]struct {
		serve func(net.Conn)
		class string
	}{
		"silence":       {func(c net.Conn) { read(c) }, cay.FailedTimeout},
		"not even read": {func(net.Conn) {}, cay.FailedTimeout},
		"a header a second": {func(c net.Conn) {
			read(c)
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for i := 0; err == nil; i++ {
				time.Sleep(time.Second)
				_, err = fmt.Fprintf(c, "X-%d: a\r\n", i)
			}
		}, cay.FailedTimeout},
		"provisional answers without end": {func(c net.Conn) {
			read(c)
			for err := error(nil); err == nil; {
				time.Sleep(time.Second)
				_, err = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\n")
			}
		}, cay.FailedTimeout},
		"an answer that does not end": {func(c net.Conn) {
			read(c)
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
			for err == nil {
				time.Sleep(time.Second)
				_, err = io.WriteString(c, "a")
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var conns []net.Conn
				var serving sync.WaitGroup
				w.over(pipes(func(c net.Conn) {
					conns = append(conns, c)
					serving.Go(func() { tt.serve(c) })
				}))
				a, err := w.try("http://a.example/")
				if err != nil || a.Class != tt.class || a.Took > 16*time.Second {
					t.Errorf("%q %q after %s, %v", a.Class, a.Error, a.Took, err)
				}
				for _, c := range conns {
					c.Close()
				}
				serving.Wait()
				synctest.Wait()
			})
		})
	}
}

// Requests are signed by both schemes, and for a day with the secret before.
func TestSignatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run(w.hooks)
		hook := w.add("https://a.example/", string(cay.SandboxForked))
		next := func() request {
			t.Helper()
			w.tell("i1", cay.SandboxForked, cay.ReasonAsked)
			synctest.Wait()
			got := w.receiver.all()
			if len(got) != 1 {
				t.Fatalf("%d requests", len(got))
			}
			return got[0]
		}
		signed := func(r request, secrets ...string) {
			t.Helper()
			var want []string
			for _, s := range secrets {
				key := []byte(s)
				if text, ok := strings.CutPrefix(s, "whsec_"); ok {
					key, _ = base64.StdEncoding.DecodeString(text)
				}
				mac := hmac.New(sha256.New, key)
				fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), r.body)
				want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
			}
			if got := r.Header.Get("webhook-signature"); got != strings.Join(want, " ") {
				t.Errorf("signed as %s, not %s", got, want)
			}
			sum := sha256.Sum256([]byte(secrets[0] + r.body))
			if got := r.Header.Get("e2b-signature"); got != base64.RawURLEncoding.EncodeToString(sum[:]) {
				t.Errorf("E2B's is %s", got)
			}
			if at := r.Header.Get("webhook-timestamp"); at != fmt.Sprint(time.Now().Unix()) {
				t.Errorf("its time is %s", at)
			}
		}
		signed(next(), secret)
		if _, _, err := w.hooks.RotateWebhook(t.Context(), w.who(), hook.ID, secret); cay.KindOf(err) != cay.Invalid {
			t.Errorf("rotated to the same secret: %v", err)
		}
		_, second, err := w.hooks.RotateWebhook(t.Context(), w.who(), hook.ID, "")
		if err != nil || !strings.HasPrefix(second, "whsec_") {
			t.Fatalf("%q %v", second, err)
		}
		signed(next(), second, secret)
		time.Sleep(24*time.Hour + time.Second)
		signed(next(), second)
		if _, err := w.hooks.UpdateWebhook(t.Context(), w.who(), hook.ID, webhooks.WebhookChange{Secret: pointer("a plain text")}); err != nil {
			t.Fatal(err)
		}
		signed(next(), "a plain text", second)
		row, err := w.store.Webhook(t.Context(), w.team.ID, hook.ID)
		if err != nil || strings.Contains(fmt.Sprint(row), "plain") {
			t.Errorf("the record tells the secret: %+v, %v", row, err)
		}
		for _, d := range w.deliveries(hook.ID) {
			if text := d.Attempts[0].RequestHeaders; strings.Contains(text, "v1,") || !strings.Contains(text, `"webhook-signature":"[redacted]"`) {
				t.Errorf("the record of a request has its signature: %s", text)
			}
		}
	})
}

// A webhook is told the types that it names, each event once, E2B's in E2B's
// form.
func TestFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run(w.hooks)
		began := ledger.Now()
		s := cay.Sandbox{
			ID: "i1", Team: w.team.ID, Template: "t1", Build: "b1", Instance: "n1", State: cay.Running, StartedAt: began,
			Limits: cay.Limits{CPUs: 3, MemoryMB: 700}, Metadata: map[string]string{"user": "ann"},
			Network: cay.NetworkPolicy{AllowOut: []string{"1.2.3.0/24", "*.example.com"}, DenyOut: []string{"0.0.0.0/0"}},
		}
		if err := w.store.AddSandbox(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.add("https://both.example/", cay.LifecycleCreated, cay.LifecycleKilled, cay.LifecycleUpdated, string(cay.SandboxRunning), string(cay.SandboxKilled))
		w.add("https://ours.example/", "*")
		tell := func(what cay.EventType, reason string, data ...string) {
			t.Helper()
			if err := w.ledger.Add(t.Context(), ledger.NewEvent(w.who(), s, what, reason, data...)); err != nil {
				t.Fatal(err)
			}
		}
		tell(cay.SandboxCreated, cay.ReasonAsked)
		tell(cay.SandboxRunning, cay.ReasonAsked, "endAt", "2000-01-01T01:00:00.000Z")
		tell(cay.SandboxRunning, cay.ReasonFailed) // a pause that failed
		tell(cay.SandboxNetworkChanged, cay.ReasonAsked)
		time.Sleep(90 * time.Second)
		tell(cay.SandboxKilled, cay.ReasonTimeout)
		synctest.Wait()
		var both, ours []map[string]any
		for _, r := range w.receiver.all() {
			var body map[string]any
			if err := json.Unmarshal([]byte(r.body), &body); err != nil {
				t.Fatal(err)
			}
			if r.Host == "both.example" {
				both = append(both, body)
			} else {
				ours = append(ours, body)
			}
		}
		types := func(list []map[string]any) (out []string) {
			for _, b := range list {
				out = append(out, b["type"].(string))
			}
			return out
		}
		want := []string{cay.LifecycleCreated, string(cay.SandboxRunning), cay.LifecycleUpdated, cay.LifecycleKilled}
		if got := types(both); !slices.Equal(got, want) {
			t.Fatalf("told %v", got)
		}
		want = []string{"sandbox.created", "sandbox.running", "sandbox.running", "sandbox.network_changed", "sandbox.killed"}
		if got := types(ours); !slices.Equal(got, want) {
			t.Errorf("in ours, told %v", got)
		}
		list, err := w.hooks.LifecycleEvents(t.Context(), w.who(), webhooks.LifecycleQuery{Ascending: true, Limit: 9})
		if err != nil || len(list) != 3 {
			t.Fatalf("listed %+v, %v", list, err)
		}
		for i, n := range []int{0, 2, 3} {
			text, _ := json.Marshal(list[i])
			var same map[string]any
			_ = json.Unmarshal(text, &same)
			if fmt.Sprint(same) != fmt.Sprint(both[n]) {
				t.Errorf("listed as %v, told as %v", same, both[n])
			}
		}
		text := func(v any) string { out, _ := json.Marshal(v); return string(out) }
		killed := both[3]
		if killed["version"] != "v2" || killed["sandboxId"] != "i1" || killed["sandboxExecutionId"] != "n1" || killed["sandboxTemplateId"] != "t1" ||
			killed["sandboxBuildId"] != "b1" || killed["sandboxTeamId"] != string(w.team.ID) || !cay.ValidUUID(killed["id"].(string)) {
			t.Errorf("killed is %v", killed)
		}
		if got := text(killed["eventData"]); got != `{"execution":{"execution_time":90000,"memory_mb":700,"started_at":"`+ledger.Stamp(began)+
			`","vcpu_count":3},"kill_reason":"timeout","sandbox_metadata":{"user":"ann"}}` {
			t.Errorf("its data is %s", got)
		}
		if got := text(both[0]["eventData"]); got != `{"sandbox_metadata":{"user":"ann"},"set_timeout":"2000-01-01T01:00:00.000Z"}` {
			t.Errorf("that of created is %s", got)
		}
		if got := text(both[2]["eventData"].(map[string]any)["network_egress"]); got != `{"allowed_cidrs":["1.2.3.0/24"],"allowed_domains":["*.example.com"],"denied_cidrs":["0.0.0.0/0"]}` {
			t.Errorf("the network is %s", got)
		}
	})
}

// Bad webhooks are refused, and leave nothing.
func TestBadWebhooks(t *testing.T) {
	w := newWorld(t)
	w.over(here())
	good := func() webhooks.WebhookChange {
		return webhooks.WebhookChange{Name: pointer("a"), URL: pointer("https://a.example/"), Events: []string{"*"}, Secret: pointer(secret)}
	}
	for name, change := range map[string]func(*webhooks.WebhookChange){
		"no name":           func(c *webhooks.WebhookChange) { c.Name = nil },
		"a long name":       func(c *webhooks.WebhookChange) { c.Name = pointer(strings.Repeat("a", 129)) },
		"no url":            func(c *webhooks.WebhookChange) { c.URL = nil },
		"another scheme":    func(c *webhooks.WebhookChange) { c.URL = pointer("file:///etc/passwd") },
		"a path":            func(c *webhooks.WebhookChange) { c.URL = pointer("/hook") },
		"no host":           func(c *webhooks.WebhookChange) { c.URL = pointer("https:///hook") },
		"a password":        func(c *webhooks.WebhookChange) { c.URL = pointer("https://a:b@a.example/") },
		"a fragment":        func(c *webhooks.WebhookChange) { c.URL = pointer("https://a.example/#a") },
		"a line in it":      func(c *webhooks.WebhookChange) { c.URL = pointer("https://a.example/\r\nX: y") },
		"a long url":        func(c *webhooks.WebhookChange) { c.URL = pointer("https://a.example/" + strings.Repeat("a", 2048)) },
		"no events":         func(c *webhooks.WebhookChange) { c.Events = []string{} },
		"an unknown event":  func(c *webhooks.WebhookChange) { c.Events = []string{"sandbox.lifecycle.born"} },
		"a short secret":    func(c *webhooks.WebhookChange) { c.Secret = pointer("short") },
		"a broken secret":   func(c *webhooks.WebhookChange) { c.Secret = pointer("whsec_not base64!") },
		"an endless secret": func(c *webhooks.WebhookChange) { c.Secret = pointer(strings.Repeat("a", 513)) },
	} {
		c := good()
		change(&c)
		if _, _, err := w.hooks.CreateWebhook(t.Context(), w.who(), c); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := w.hooks.Webhooks(t.Context(), w.who()); err != nil || len(list) > 0 {
		t.Errorf("there are %v, %v", list, err)
	}
	for range cay.MaxWebhooks {
		if _, _, err := w.hooks.CreateWebhook(t.Context(), w.who(), good()); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.hooks.CreateWebhook(t.Context(), w.who(), good()); cay.CodeOf(err) != cay.CodeWebhookLimit {
		t.Errorf("one too many: %v", err)
	}
	n, err := w.store.LastEvent(t.Context(), w.team.ID)
	if err != nil || n != cay.MaxWebhooks {
		t.Errorf("%d events tell of them, %v", n, err)
	}
}
