package front

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/control/nodes"
	"github.com/cay-run/cay/internal/keys/member"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
	"github.com/cay-run/cay/internal/trail"
)

// node is a member whose server answers by a function.
type node struct {
	id      cay.NodeID
	epoch   int64
	members *nodes.Members
	front   *Front
	public  *httptest.Server
	serve   atomic.Pointer[http.HandlerFunc]
	has     atomic.Pointer[cay.SandboxID]
	ready   atomic.Bool
	asked   atomic.Pointer[func(what []byte) ([]byte, error)]
}

func (n *node) answer(f http.HandlerFunc) { n.serve.Store(&f) }

// pair is two nodes over one set of records. The first one leads.
func pair(t *testing.T) (*store.DB, *node, *node) {
	t.Helper()
	secret := bytes.Repeat([]byte{7}, 32)
	sealer, err := seal.NewKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	db := storetest.OpenSealed(t, filepath.Join(t.TempDir(), "cay.db"), sealer)
	cert, key, err := member.NewAuthority("c")
	if err != nil {
		t.Fatal(err)
	}
	authority, err := member.OpenAuthority(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	times := nodes.Times{Renew: time.Hour, Lease: time.Hour, Silent: 2 * time.Hour, View: time.Hour}
	one := func(id cay.NodeID, record func(cay.Node) error) *node {
		files, err := authority.Issue("c", id)
		if err != nil {
			t.Fatal(err)
		}
		own, err := member.Parse(files)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		self := cay.Node{ID: id, Machine: string(id), Address: l.Addr().String(), Fingerprint: own.Fingerprint}
		if err := record(self); err != nil {
			t.Fatal(err)
		}
		if self.Epoch, err = db.TakeNode(t.Context(), id, self.Machine, time.Hour); err != nil {
			t.Fatal(err)
		}
		n := &node{id: id, epoch: self.Epoch}
		n.has.Store(new(cay.SandboxID))
		n.ready.Store(true)
		log := slog.New(slog.DiscardHandler)
		n.members = nodes.New(nodes.Config{
			Store: db, Ledger: ledger.New(ledger.Config{Store: db, Log: log}), Self: self, Times: times, Log: log,
			Use: func() (cay.NodeUse, bool) {
				return cay.NodeUse{CPUs: 2, MemoryMB: 1000, MemoryFreeMB: 900}, n.ready.Load()
			},
			Drained: func(cay.Drain) {}, Renewed: func(context.Context, time.Duration) {}, Busy: func() bool { return false }, Silent: func() {},
		})
		n.front = New(Config{
			Members: n.members, Own: own, Homes: db, Log: log,
			Has:   func(_ context.Context, id cay.SandboxID) (bool, error) { return *n.has.Load() == id, nil },
			Adopt: func(context.Context, cay.SandboxID) error { return cay.Errorf(cay.Conflict, "not tried here") },
			Asked: func(_ context.Context, what []byte) ([]byte, error) { return (*n.asked.Load())(what) },
			Dial: func(_ context.Context, id cay.SandboxID, port int) (net.Conn, error) {
				if port != 7 {
					return nil, cay.Errorf(cay.Conflict, "sandbox %s has no port %d", id, port).WithCode(cay.CodeBounds)
				}
				ours, theirs := net.Pipe()
				go fmt.Fprintf(theirs, "%s of %s\n", id, n.id)
				return ours, nil
			},
			Names: func(r *http.Request) (cay.SandboxID, bool) {
				id := r.Header.Get("E2b-Sandbox-Id")
				return cay.SandboxID(id), id != ""
			},
		})
		face := trail.Follow(trail.REST, n.front.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*n.serve.Load())(w, r) })))
		n.public = httptest.NewServer(face)
		t.Cleanup(n.public.Close)
		peers := n.front.Server(face)
		go func() { _ = peers.ServeTLS(Listen(l), "", "") }()
		t.Cleanup(func() { peers.Close() })
		t.Cleanup(func() { _ = n.front.Close() })
		return n
	}
	a := one("na", func(self cay.Node) error {
		return db.MakeCluster(t.Context(), cay.Cluster{ID: "c", Certificate: string(cert), Key: "sealed"}, "local", self)
	})
	b := one("nb", func(self cay.Node) error {
		if _, err := db.AddJoinToken(t.Context(), "digest", "bundle", time.Hour); err != nil {
			return err
		}
		return db.JoinCluster(t.Context(), "digest", func(cay.Cluster, string) (cay.Node, error) { return self, nil })
	})
	if _, err := db.TakeLead(t.Context(), "na", time.Hour); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time each sees the other
		for _, n := range []*node{a, b} {
			if err := n.members.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range []*node{a, b} {
		n.answer(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, n.id) })
	}
	return db, a, b
}

// put records a sandbox of a node.
func put(t *testing.T, db *store.DB, at cay.NodeID) cay.SandboxID {
	t.Helper()
	return putIn(t, db, at, cay.Running)
}

// putPaused does so of one that is paused.
func putPaused(t *testing.T, db *store.DB, at cay.NodeID) cay.SandboxID {
	t.Helper()
	return putIn(t, db, at, cay.Paused)
}

func putIn(t *testing.T, db *store.DB, at cay.NodeID, state cay.State) cay.SandboxID {
	t.Helper()
	team := cay.Team{ID: cay.NewTeamID(), Name: string(cay.NewTeamID())[:8], CreatedAt: time.Now()}
	box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, Template: "t", State: state, Node: at, StartedAt: time.Now()}
	if err := db.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	if err := db.AddSandbox(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	return box.ID
}

func ask(t *testing.T, n *node, method, path string, body io.Reader, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, n.public.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// arriving are records that have a sandbox at nb, where it arrives with each look.
type arriving struct {
	Homes
	arrive func()
}

func (a arriving) SandboxHome(context.Context, cay.SandboxID) (cay.Home, error) {
	a.arrive()
	return cay.Home{Node: "nb", State: cay.Running}, nil
}

func TestFront(t *testing.T) {
	db, a, b := pair(t)
	box := put(t, db, "nb")
	b.has.Store(&box)
	t.Run("where", func(t *testing.T) {
		for _, x := range []struct {
			at           *node
			method, path string
			want         string
		}{
			{a, "GET", "/sandboxes/" + string(box), "nb"},
			{b, "GET", "/sandboxes/" + string(box), "nb"},
			{a, "POST", "/v2/sandboxes/" + string(box) + "/connect", "nb"},
			{a, "GET", "/sandboxes/" + string(box) + "-client/logs", "nb"},
			{a, "GET", "/cay/v1/sandboxes/" + string(box) + "/events", "nb"},
			{b, "GET", "/sandboxes/inone", "nb"}, // which says so itself
			{b, "GET", "/v2/sandboxes", "na"},
			{b, "POST", "/templates/tags", "na"},
			{b, "GET", "/cay/v1/checkpoints/none", "na"},
		} {
			if _, text := ask(t, x.at, x.method, x.path, nil); text != x.want {
				t.Errorf("%s %s at %s: %q, want %s", x.method, x.path, x.at.id, text, x.want)
			}
		}
	})
	t.Run("ids", func(t *testing.T) {
		b.answer(func(w http.ResponseWriter, r *http.Request) {
			of := trail.Of(r.Context())
			fmt.Fprintf(w, "%s %s %q", of.Request, of.Trace, r.Header[trail.IDHeader])
		})
		for _, given := range [][]string{nil, {trail.IDHeader, "mine-1"}} {
			resp, text := ask(t, a, "GET", "/sandboxes/"+string(box), nil, append(given, "Cay-Hop-Trail", "forged "+strings.Repeat("1", 32))...)
			ids, traces := resp.Header[trail.IDHeader], resp.Header[trail.TraceHeader]
			if len(ids) != 1 || len(traces) != 1 || text != fmt.Sprintf("%s %s %q", ids[0], traces[0], given[len(given)/2:]) || ids[0] == "forged" || given != nil && ids[0] != "mine-1" {
				t.Errorf("with %q the node has %s, and the answer %q, %q", given, text, ids, traces)
			}
		}
		b.answer(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		resp, _ := ask(t, a, "POST", "/sandboxes/"+string(box), strings.NewReader("{}"))
		if resp.StatusCode != http.StatusServiceUnavailable || len(resp.Header[trail.IDHeader]) != 1 || len(resp.Header[trail.TraceHeader]) != 1 {
			t.Errorf("a node that breaks off: %d %v", resp.StatusCode, resp.Header)
		}
	})
	t.Run("a ticket", func(t *testing.T) {
		echo := func(n *node) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				fmt.Fprintf(w, "%s %s", n.id, body)
			}
		}
		a.answer(echo(a))
		b.answer(echo(b))
		for body, at := range map[string]string{
			`{"sandboxID":"` + string(box) + `","purpose":"desktop"}`: "nb",
			`{"sandboxID":"` + string(box) + `-client"}`:              "nb",
			`{"sandboxID":"inone"}`:                                   "na", // which says so itself
			`{"sandboxID":7}`:                                         "na",
			`{`:                                                       "na",
			strings.Repeat(" ", 2*mostBody):                           "na",
		} {
			if _, text := ask(t, a, "POST", "/cay/v1/tickets", strings.NewReader(body)); text != at+" "+body {
				t.Errorf("%.50q was answered by %.60q, want %s", body, text, at)
			}
		}
		if _, text := ask(t, b, "POST", "/cay/v1/tickets", strings.NewReader("{}")); text != "na {}" {
			t.Errorf("of no sandbox: %q", text)
		}
	})
	t.Run("as it came", func(t *testing.T) {
		b.answer(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Trailer", "After")
			fmt.Fprintf(w, "%s %s %s %s %s %v %q %s", r.Method, r.RequestURI, r.Host, r.Header.Get("X-Forwarded-For"), r.Header.Get("Cay-Hop-For"), r.TLS != nil, r.Header["User-Agent"], body)
			w.Header().Set("After", "all")
		})
		r, err := http.NewRequestWithContext(t.Context(), "PUT", a.public.URL+"/sandboxes/"+string(box)+"/a%2Fb?x=;&y=%zz", strings.NewReader("the body"))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "some.host"
		r.Header.Set("X-Forwarded-For", "9.9.9.9")
		r.Header.Set("Cay-Hop-For", "lead")
		r.Header.Set("User-Agent", "")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		want := "PUT /sandboxes/" + string(box) + "/a%2Fb?x=;&y=%zz some.host 9.9.9.9  false [] the body"
		if string(text) != want || err != nil || resp.Trailer.Get("After") != "all" {
			t.Errorf("it came as %q, trailers %v, %v; want %q", text, resp.Trailer, err, want)
		}
	})
	t.Run("streams", func(t *testing.T) {
		b.answer(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			in := bufio.NewReader(r.Body)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				fmt.Fprint(w, "got ", line)
				_ = http.NewResponseController(w).Flush()
			}
		})
		body, write := io.Pipe()
		r, err := http.NewRequestWithContext(t.Context(), "POST", a.public.URL+"/sandboxes/"+string(box), body)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = fmt.Fprintln(write, "one") }()
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		out := bufio.NewReader(resp.Body)
		for _, word := range []string{"one", "two"} { // two is sent when the answer to one is here
			if line, err := out.ReadString('\n'); line != "got "+word+"\n" {
				t.Fatalf("%q, %v", line, err)
			}
			go func() { _, _ = fmt.Fprintln(write, "two") }()
		}
		write.Close()
	})
	t.Run("upgrades", func(t *testing.T) {
		b.answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "echo")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_ = buffered.Flush()
			_, _ = io.Copy(conn, buffered)
		})
		conn, err := net.Dial("tcp", a.public.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /sandboxes/%s HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", box)
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(resp, err)
		}
		fmt.Fprint(conn, "hello\n")
		if line, err := in.ReadString('\n'); line != "hello\n" {
			t.Errorf("%q, %v", line, err)
		}
	})
	t.Run("a stale way costs a round trip", func(t *testing.T) {
		got := make(chan string, 10)
		for _, n := range []*node{a, b} {
			n.answer(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got <- string(n.id) + " " + string(body)
			})
		}
		moving, before := put(t, db, "na"), a.front.Counts()
		a.has.Store(new(cay.SandboxID))
		b.has.Store(&moving) // it has moved: b has it, and a says so
		a.front.homes.put(moving, home{cay.Home{Node: "nb", State: cay.Running}, time.Now().Add(time.Hour)})
		if _, _ = ask(t, a, "POST", "/sandboxes/"+string(moving), strings.NewReader("once")); <-got != "nb once" {
			t.Error("it did not reach its node")
		}
		b.has.Store(new(cay.SandboxID)) // and back: the records say na
		a.front.homes.put(moving, home{cay.Home{Node: "nb", State: cay.Running}, time.Now().Add(time.Hour)})
		if _, _ = ask(t, a, "POST", "/sandboxes/"+string(moving), strings.NewReader("twice")); <-got != "na twice" {
			t.Error("after it moved it did not reach its node")
		}
		records := a.front.cfg.Homes
		a.front.homes.put(moving, home{cay.Home{Node: "nb", State: cay.Running}, time.Now().Add(time.Hour)})
		a.front.cfg.Homes = arriving{records, func() { b.has.Store(&moving) }} // it comes to b meanwhile
		if _, _ = ask(t, a, "POST", "/sandboxes/"+string(moving), strings.NewReader("thrice")); <-got != "nb thrice" {
			t.Error("after a second way to another node it did not reach it whole")
		}
		a.front.cfg.Homes = records
		if len(got) != 0 {
			t.Errorf("a request was served again: %s", <-got)
		}
		now := a.front.Counts()
		if here, node, moved := now.Here-before.Here, now.Node-before.Node, now.Moved-before.Moved; here != 1 || node != 2 || moved != 2 {
			t.Errorf("counted %d here, %d by another node, %d that moved", here, node, moved)
		}
	})
	t.Run("what has begun is not sent twice", func(t *testing.T) {
		var seen atomic.Int32
		b.has.Store(&box)
		b.answer(func(http.ResponseWriter, *http.Request) {
			seen.Add(1)
			panic(http.ErrAbortHandler)
		})
		resp, text := ask(t, a, "POST", "/sandboxes/"+string(box), strings.NewReader("x"))
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, cay.CodeNodeAway) || seen.Load() != 1 {
			t.Errorf("%d %s, seen %d times", resp.StatusCode, text, seen.Load())
		}
	})
	t.Run("a body that no node reads", func(t *testing.T) {
		b.has.Store(&box)
		b.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) })
		for range 10 { // each by the connection of the one before
			if resp, text := ask(t, a, "POST", "/sandboxes/"+string(box), strings.NewReader("x")); resp.StatusCode != http.StatusConflict {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
		}
	})
	t.Run("a refusal is read by a client that sends all first", func(t *testing.T) {
		b.has.Store(&box)
		b.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
		conn, err := net.Dial("tcp", a.public.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const size = 32 << 20 // more than the kernel keeps
		fmt.Fprintf(conn, "PUT /sandboxes/%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", box, size)
		for sent := 0; sent < size; {
			n, err := conn.Write(make([]byte, 1<<20))
			if sent += n; err != nil {
				t.Fatalf("after %d bytes: %v", sent, err)
			}
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusForbidden || !resp.Close {
			t.Fatal(resp, err)
		}
	})
	t.Run("a body that its client breaks", func(t *testing.T) {
		b.has.Store(&box)
		b.answer(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		for what, sent := range map[string]string{
			"it ends early":       "Content-Length: 1000\r\n\r\nten bytes.",
			"it is not in chunks": "Transfer-Encoding: chunked\r\n\r\nnot hex\r\n",
		} {
			conn, err := net.Dial("tcp", a.public.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "PUT /sandboxes/%s HTTP/1.1\r\nHost: a\r\n%s", box, sent)
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: %v, %v", what, resp, err)
			}
		}
	})
	t.Run("a search of logs names who gives no answer, a sum fails", func(t *testing.T) {
		a.answer(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/cay/v1/logs" {
				fmt.Fprint(w, `{"lines":[],"complete":true,"sandboxes":3}`)
				return
			}
			fmt.Fprint(w, `[]`)
		})
		b.answer(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		resp, text := ask(t, a, "GET", "/cay/v1/logs?search=x", nil)
		if resp.StatusCode != http.StatusOK || strings.TrimSpace(text) != `{"lines":[],"complete":false,"sandboxes":3,"unanswered":["nb"]}` {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		resp, text = ask(t, a, "GET", "/cay/v1/disk-use", nil)
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "nb") {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		b.answer(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "level: must be one of some", http.StatusBadRequest)
		})
		if resp, text = ask(t, a, "GET", "/cay/v1/logs?level=x", nil); resp.StatusCode != http.StatusBadRequest || !strings.Contains(text, "level") {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
	})
	t.Run("creates", func(t *testing.T) {
		for _, n := range []*node{a, b} {
			n.answer(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				fmt.Fprintf(w, "%s %s", n.id, body)
			})
		}
		on := map[string]bool{}
		for range 40 {
			_, text := ask(t, a, "POST", "/sandboxes", strings.NewReader(`{"templateID":"base"}`))
			id, body, _ := strings.Cut(text, " ")
			on[id] = true
			if body != `{"templateID":"base"}` {
				t.Fatalf("the body came as %q", text)
			}
		}
		if len(on) != 2 {
			t.Errorf("40 creates are on %v", on)
		}
		beside := `{"templateID":"base","near":"` + string(box) + `"}`
		for _, n := range []*node{a, b} {
			if _, text := ask(t, n, "POST", "/sandboxes", strings.NewReader(beside)); text != "nb "+beside {
				t.Errorf("beside one of nb, at %s: %q", n.id, text)
			}
		}
		full := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
		b.answer(full)
		if resp, text := ask(t, a, "POST", "/sandboxes", strings.NewReader(beside)); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("beside one of nb, which is full: %d %q", resp.StatusCode, text)
		}
		for range 8 {
			if resp, text := ask(t, b, "POST", "/sandboxes", strings.NewReader("{}")); text != "na {}" {
				t.Errorf("with one node full: %d %q", resp.StatusCode, text)
			}
		}
		if a.front.Counts().Refused+b.front.Counts().Refused == 0 {
			t.Error("no create was counted that a node refused")
		}
		a.answer(full)
		if resp, _ := ask(t, b, "POST", "/sandboxes", strings.NewReader("{}")); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("with all nodes full: %d", resp.StatusCode)
		}
	})
	t.Run("a member that was removed", func(t *testing.T) {
		b.has.Store(&box)
		b.answer(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "nb") })
		if err := db.StopNode(t.Context(), "na", a.epoch); err != nil {
			t.Fatal(err)
		}
		if err := db.RemoveNode(t.Context(), "na", time.Hour); cay.KindOf(err) != cay.Conflict {
			t.Errorf("a node with a sandbox was removed: %v", err)
		}
	})
}

// BenchmarkHomes is the memory of a way that a front knows.
func BenchmarkHomes(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var h homes
		for range homesMost {
			id := cay.NewSandboxID()
			h.put(id, home{cay.Home{Node: "0123456789abcdef", Team: "team", State: cay.Running}, time.Now()})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/homesMost, "B/way")
		runtime.KeepAlive(&h)
	}
}

// TestStatusWithoutALead: the node that is asked says which nodes there are. Changes and all
// else about no sandbox are for the one that leads.
func TestStatusWithoutALead(t *testing.T) {
	_, one, two := pair(t)
	one.answer(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the lead") })
	two.answer(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "another") })
	for request, want := range map[string]string{
		"GET /cay/v1/admin/cluster": "another", "GET /cay/v1/admin/teams": "the lead", "POST /cay/v1/admin/cluster/tokens": "the lead",
	} {
		method, path, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, two.public.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(text) != want {
			t.Errorf("%s is answered by %q, %v; want %q", request, text, err, want)
		}
	}
}
