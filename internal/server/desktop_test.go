package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/edge/desktop"
	"github.com/cay-run/cay/internal/edge/desktop/desktoptest"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// screened is a world whose sandboxes have a VNC server.
func screened(t *testing.T) (*servertest.World, *desktoptest.Server) {
	t.Helper()
	w, vnc := servertest.New(t), desktoptest.New(64, 48)
	w.Machine.Ports = map[int]func(net.Conn){desktop.Port: vnc.Serve}
	w.Start()
	return w, vnc
}

func ticket(t *testing.T, w *servertest.World, key, body string) string {
	t.Helper()
	code, text := call(t, w, key, "POST", "/cay/v1/tickets", body)
	var got struct {
		Ticket    string
		ExpiresAt time.Time
	}
	if err := json.Unmarshal([]byte(text), &got); code != http.StatusCreated || err != nil || len(got.Ticket) != 26 || time.Until(got.ExpiresAt) > 30*time.Second {
		t.Fatalf("%d %s", code, text)
	}
	return got.Ticket
}

// socket asks for a websocket; the status says how that went.
func socket(t *testing.T, w *servertest.World, host, path, ticket string, headers ...string) (*websocket.Conn, int) {
	t.Helper()
	o := &websocket.DialOptions{Host: host, HTTPHeader: http.Header{}, Subprotocols: []string{"cay"}}
	if ticket != "" {
		o.Subprotocols = append(o.Subprotocols, "ticket."+ticket)
	}
	for i := 0; i < len(headers); i += 2 {
		o.HTTPHeader.Set(headers[i], headers[i+1])
	}
	c, resp, err := websocket.Dial(t.Context(), w.URL()+path, o)
	if resp == nil {
		t.Fatal(err)
	}
	if err == nil {
		t.Cleanup(func() { _ = c.CloseNow() })
		if got := c.Subprotocol(); got != "cay" {
			t.Errorf("subprotocol %q", got)
		}
	}
	return c, resp.StatusCode
}

// greeting is the first binary message of a websocket.
func greeting(t *testing.T, c *websocket.Conn) string {
	t.Helper()
	for {
		kind, text, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if kind == websocket.MessageBinary {
			return string(text)
		}
	}
}

// A ticket opens one websocket, soon, for its purpose, its sandbox, its port and its
// caller alone; from no page of another host; and is worth nothing in an address.
func TestTickets(t *testing.T) {
	w, _ := screened(t)
	box, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	other, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	screen := "/cay/v1/sandboxes/" + box.ID + "/desktop"
	body := `{"sandboxID":"` + box.ID + `","purpose":"desktop"}`
	port := `{"sandboxID":"` + box.ID + `","purpose":"port","port":5900}`
	one := ticket(t, w, w.Key, body)
	c, status := socket(t, w, "", screen, one)
	if status != http.StatusSwitchingProtocols || greeting(t, c) != "RFB 003.008\n" {
		t.Errorf("a ticket: %d", status)
	}
	const console = "console.localhost"
	_, here, _ := net.SplitHostPort(w.Addr().String())
	origin := "http://" + console + ":" + here
	c, status = socket(t, w, console+":"+here, "/api"+screen, ticket(t, w, w.Key, body), "Origin", origin, "Sec-Fetch-Dest", "websocket")
	if status != http.StatusSwitchingProtocols || greeting(t, c) != "RFB 003.008\n" {
		t.Errorf("of the console's page: %d", status)
	}
	gone, err := w.Client().CreateAPIKey(t.Context(), client.NewAPIKey{Name: "gone"})
	if err != nil {
		t.Fatal(err)
	}
	ofGone := ticket(t, w, gone.Key, body)
	if err := w.Client().RemoveAPIKey(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]struct {
		host, path, ticket string
		headers            []string
		status             int
	}{
		"a second time":          {"", screen, one, nil, 401},
		"another text":           {"", screen, strings.Repeat("A", 26), nil, 401},
		"another sandbox":        {"", "/cay/v1/sandboxes/" + other.ID + "/desktop", ticket(t, w, w.Key, body), nil, 401},
		"a port":                 {"", "/cay/v1/sandboxes/" + box.ID + "/ports/5900", ticket(t, w, w.Key, body), nil, 401},
		"a desktop, for a port":  {"", screen, ticket(t, w, w.Key, port), nil, 401},
		"another port":           {"", "/cay/v1/sandboxes/" + box.ID + "/ports/8000", ticket(t, w, w.Key, port), nil, 401},
		"a key that is gone":     {"", screen, ofGone, nil, 401},
		"a page of another host": {"", screen, ticket(t, w, w.Key, body), []string{"Origin", "http://evil.example"}, 403},
		"a guest's page":         {console + ":" + here, "/api" + screen, ticket(t, w, w.Key, body), []string{"Origin", "http://8000-" + box.ID + ".localhost:" + here}, 403},
		"in the address":         {"", screen + "?ticket=" + ticket(t, w, w.Key, body), "", nil, 401},
		"nothing":                {"", screen, "", nil, 401},
	} {
		if _, status := socket(t, w, try.host, try.path, try.ticket, try.headers...); status != try.status {
			t.Errorf("%s: %d, want %d", what, status, try.status)
		}
	}
	if code, text := call(t, w, ticket(t, w, w.Key, body), "GET", "/cay/v1/caller", ""); code != http.StatusUnauthorized {
		t.Errorf("a ticket as a key: %d %s", code, text)
	}
	for body, status := range map[string]int{
		`{"sandboxID":"` + box.ID + `","purpose":"all"}`:                               400,
		`{"sandboxID":"` + box.ID + `","purpose":"port"}`:                              400,
		`{"sandboxID":"` + box.ID + `","purpose":"port","port":49983}`:                 403,
		`{"sandboxID":"` + box.ID + `","purpose":"desktop","port":8000}`:               400,
		`{"sandboxID":"` + string(cay.NewSandboxID()) + `","purpose":"port","port":1}`: 404,
	} {
		if code, text := call(t, w, w.Key, "POST", "/cay/v1/tickets", body); code != status {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	if strings.Contains(w.Log(), one) {
		t.Error("the log has a ticket")
	}
}

// A websocket joins a port, byte by byte, and ends with its key.
func TestPortsByWebsocket(t *testing.T) {
	w := servertest.Start(t)
	box, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	key, err := w.Client().CreateAPIKey(t.Context(), client.NewAPIKey{Name: "short"})
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/cay/v1/sandboxes/%s/ports/%d", box.ID, hosttest.AppPort)
	for what, by := range map[string]string{
		"a ticket":     ticket(t, w, w.Key, fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, box.ID, hosttest.AppPort)),
		"a credential": "",
	} {
		headers := []string{}
		if by == "" {
			headers = []string{"X-API-Key", w.Key}
		}
		c, status := socket(t, w, "", path, by, headers...)
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("%s: %d", what, status)
		}
		conn := websocket.NetConn(t.Context(), c, websocket.MessageBinary)
		if _, err := io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(text), "\r\n\r\nhello") {
			t.Errorf("%s: %q %v", what, text, err)
		}
	}
	c, status := socket(t, w, "", path, "", "X-API-Key", key.Key)
	if status != http.StatusSwitchingProtocols {
		t.Fatal(status)
	}
	if err := w.Client().RemoveAPIKey(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	for { // it returns when the server has ended it
		if _, _, err := c.Read(t.Context()); err != nil {
			break
		}
	}
}

// Over the server: a view-only ticket's input reaches no guest, a pause ends the
// screen with a reason, and a sandbox that sleeps is not woken by a viewer.
func TestDesktopsOfSandboxes(t *testing.T) {
	w, vnc := screened(t)
	box, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	screen := "/cay/v1/sandboxes/" + box.ID + "/desktop"
	hello := append([]byte("RFB 003.008\n"), 1, 1)
	take := func(c *websocket.Conn) {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"do":"take"}`)); err != nil {
			t.Fatal(err)
		}
	}
	key := []byte{4, 1, 0, 0, 0, 0, 0, 'x'}
	for _, by := range []struct{ purpose, query string }{{"desktop.view", ""}, {"desktop", "?viewOnly=true"}, {"desktop", ""}} {
		c, status := socket(t, w, "", screen+by.query, ticket(t, w, w.Key, `{"sandboxID":"`+box.ID+`","purpose":"`+by.purpose+`"}`))
		if status != http.StatusSwitchingProtocols {
			t.Fatal(status)
		}
		if err := c.Write(t.Context(), websocket.MessageBinary, hello); err != nil {
			t.Fatal(err)
		}
		take(c)
		// A request for the picture is read after the key, so that its answer says that
		// the key was.
		if err := c.Write(t.Context(), websocket.MessageBinary, append(key, 3, 0, 0, 0, 0, 0, 0, 64, 0, 48)); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < 12+2+4+24+4+64; {
			kind, text, err := c.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if kind == websocket.MessageBinary {
				n += len(text)
			}
		}
		_ = c.CloseNow()
	}
	<-vnc.Heard()
	if got := vnc.Events(); len(got) == 0 || got[0][0] != 4 || len(got) > 2 {
		t.Errorf("the guest heard %v", got)
	}
	c, _ := socket(t, w, "", screen, ticket(t, w, w.Key, `{"sandboxID":"`+box.ID+`","purpose":"desktop"}`))
	greeting(t, c)
	if err := w.Client().Pause(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	last := ""
	for {
		kind, text, err := c.Read(context.WithoutCancel(t.Context()))
		if err != nil {
			break
		}
		if kind == websocket.MessageText {
			last = string(text)
		}
	}
	if !strings.Contains(last, `"end"`) || !strings.Contains(last, "is over") {
		t.Errorf("the last word: %s", last)
	}
	for _, path := range []string{screen, screen + "/recording"} {
		if code, text := call(t, w, w.Key, "GET", path, ""); code != http.StatusConflict {
			t.Errorf("%s of one that is paused: %d %s", path, code, text)
		}
	}
	if got, err := w.Client().Info(t.Context(), box.ID); err != nil || got.State != "paused" {
		t.Errorf("it is %q, %v", got.State, err)
	}
}

// A recording goes on until its client leaves, or its key does; so does a viewer that came
// with a ticket of the key.
func TestRecordingsEndWithTheirKey(t *testing.T) {
	w, _ := screened(t)
	box, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	key, err := w.Client().CreateAPIKey(t.Context(), client.NewAPIKey{Name: "short"})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", w.URL()+"/cay/v1/sandboxes/"+box.ID+"/desktop/recording", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key.Key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	begin := make([]byte, 8)
	if _, err := io.ReadFull(resp.Body, begin); err != nil || string(begin) != "CAYRFB1\n" || resp.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%q %v %v", begin, resp.Header, err)
	}
	viewer, _ := socket(t, w, "", "/cay/v1/sandboxes/"+box.ID+"/desktop", ticket(t, w, key.Key, `{"sandboxID":"`+box.ID+`","purpose":"desktop"}`))
	greeting(t, viewer)
	if err := w.Client().RemoveAPIKey(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // ends when the server has ended it
	for err == nil {
		_, _, err = viewer.Read(t.Context())
	}
}
