package server_test

import (
	"archive/tar"
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// The ports of a sandbox open to its own tokens alone, by host, by headers and by
// path: no key does, of whatever team, age and scopes, nor do another sandbox's
// tokens and the links that they sign.
func TestPortsOpenToTheirTokensAlone(t *testing.T) {
	w := servertest.New(t)
	w.Config.Paths = "on"
	w.Start()
	ctx := t.Context()
	team, err := w.Admin("").CreateTeam(ctx, "stranger")
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	expired := w.AddKey(cay.APIKey{Team: cay.TeamID(team.ID), Name: "old", ExpiresAt: time.Now().Add(-time.Minute)})
	w.Start()
	stranger, err := w.Admin("stranger").CreateAPIKey(ctx, client.NewAPIKey{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	removed, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "k"})
	if err == nil {
		err = w.Client().RemoveAPIKey(ctx, removed.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := private(t, w, w.Key), private(t, w, stranger.Key)
	viewer := (&keyring{t, w, "default", map[cay.Scopes]string{}}).with(cay.Viewer.Scopes())
	for _, port := range []int{guest.AgentPort, guest.InterpPort, hosttest.AppPort} {
		path := "/"
		if port == guest.AgentPort {
			path = "/envs"
		}
		signed := guest.Signature{Path: path}
		for form, set := range map[string]func(*http.Request){
			"host": func(r *http.Request) { r.Host = fmt.Sprintf("%d-%s.localhost", port, ours.ID) },
			"headers": func(r *http.Request) {
				r.Header.Set("E2b-Sandbox-Id", ours.ID)
				r.Header.Set("E2b-Sandbox-Port", fmt.Sprint(port))
			},
			"path": func(r *http.Request) { r.URL.Path = fmt.Sprintf("/s/%s/%d%s", ours.ID, port, path) },
			"path and a link": func(r *http.Request) {
				r.URL.Path = fmt.Sprintf("/s/%s/%d%s", ours.ID, port, path)
				r.URL.RawQuery = url.Values{"path": {path}, "signature": {signed.Sign("read", theirs.Access)}}.Encode()
			},
		} {
			for what, header := range map[string]map[string]string{
				"nothing":                       {},
				"the team's key":                {"X-API-Key": w.Key},
				"a viewer's key":                {"X-API-Key": viewer},
				"another team's key":            {"X-API-Key": stranger.Key, "Authorization": "Bearer " + stranger.Key},
				"an expired key":                {"X-API-Key": expired, "Authorization": "Bearer " + expired},
				"a removed key":                 {"X-API-Key": removed.Key, "Authorization": "Bearer " + removed.Key},
				"another team's tokens":         {"X-Access-Token": theirs.Access, "E2b-Traffic-Access-Token": theirs.Traffic},
				"the tokens, one for the other": {"X-Access-Token": ours.Traffic, "E2b-Traffic-Access-Token": ours.Access},
			} {
				if code := knock(t, w, path, set, header); code/100 == 2 {
					t.Errorf("port %d by %s opens to %s: %d", port, form, what, code)
				}
			}
			if port == guest.InterpPort { // what answers there is the interpreter's matter
				continue
			}
			own := map[string]string{"X-Access-Token": ours.Access, "E2b-Traffic-Access-Token": ours.Traffic}
			if code := knock(t, w, path, set, own); code/100 != 2 {
				t.Errorf("port %d by %s does not open to its tokens: %d", port, form, code)
			}
		}
	}
}

type tokens struct{ ID, Access, Traffic string }

// private makes a sandbox none of whose ports is public.
func private(t *testing.T, w *servertest.World, key string) (out tokens) {
	t.Helper()
	code, text := call(t, w, key, "POST", "/sandboxes", `{"templateID":"base","secure":true,"timeout":3600,"network":{"allowPublicTraffic":false}}`)
	if code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
	field := func(name string) string {
		_, rest, _ := strings.Cut(text, `"`+name+`":"`)
		value, _, _ := strings.Cut(rest, `"`)
		return value
	}
	return tokens{field("sandboxID"), field("envdAccessToken"), field("trafficAccessToken")}
}

// knock asks for a port of a sandbox.
func knock(t *testing.T, w *servertest.World, path string, set func(*http.Request), header map[string]string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", w.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	set(r)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// SSH lets a key in, as the password, that may go inside, and no other: the
// answer to all others is one. A connection ends with the team's use of it.
func TestSSHOpensToKeysThatMayGoInside(t *testing.T) {
	w := servertest.New(t)
	w.Config.SSHListen = "127.0.0.1:0"
	w.Start()
	ctx := t.Context()
	stranger, err := w.Admin("").CreateTeam(ctx, "stranger")
	if err != nil {
		t.Fatal(err)
	}
	ours := &keyring{t, w, "default", map[cay.Scopes]string{}}
	theirs := &keyring{t, w, stranger.ID, map[cay.Scopes]string{}}
	teams, err := w.Admin("").Teams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	expired := w.AddKey(cay.APIKey{Team: cay.TeamID(teams[0].ID), Name: "old", ExpiresAt: time.Now().Add(-time.Minute)})
	w.Start()
	box, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	login := func(key string) (*ssh.Client, error) {
		return ssh.Dial("tcp", w.SSHAddr(), &ssh.ClientConfig{
			User: box.ID, Auth: []ssh.AuthMethod{ssh.Password(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		})
	}
	for what, key := range map[string]string{
		"a viewer": ours.with(cay.Viewer.Scopes()), "all but exec": ours.with(cay.TeamScopes &^ cay.ExecSandboxes),
		"another team": theirs.with(cay.TeamScopes), "an expired key": expired, "a wrong key": "e2b_" + strings.Repeat("0", 40),
	} {
		if c, err := login(key); err == nil || !strings.Contains(err.Error(), "unable to authenticate") {
			t.Errorf("%s: %v", what, err)
			if c != nil {
				c.Close()
			}
		}
	}
	inside, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "inside", Scopes: []string{"sandboxes:exec"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := login(inside.Key)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := w.Client().RemoveAPIKey(ctx, inside.ID); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // returns when the server has ended it
}

// A stream of events tells nothing of another team, and ends when its team is
// disabled.
func TestStreamsAreOfOneTeam(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	if _, err := w.Admin("").CreateTeam(ctx, "blue"); err != nil {
		t.Fatal(err)
	}
	key, err := w.Admin("blue").CreateAPIKey(ctx, client.NewAPIKey{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	ours, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, "GET", w.URL()+"/cay/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", key.Key)
	r.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	theirs, err := w.ClientOf(key.Key).Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	lines, told := bufio.NewScanner(resp.Body), false
	for lines.Scan() {
		if strings.Contains(lines.Text(), ours.ID) {
			t.Errorf("it tells of another team: %s", lines.Text())
		}
		if !told && strings.Contains(lines.Text(), theirs.ID) {
			told = true
			if _, err := w.Admin("").DisableTeam(ctx, "blue", false); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !told {
		t.Error("it told nothing of its own team")
	}
}

// An archive that is on its way into a volume or out of it stops with the key
// that it came with.
func TestTransfersEndWithTheirKey(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	if _, err := w.Client().CreateVolume(ctx, client.NewVolume{Name: "v", SizeMB: 16}); err != nil {
		t.Fatal(err)
	}
	key, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	body, in := io.Pipe()
	defer in.Close()
	r, err := http.NewRequestWithContext(ctx, "PUT", w.URL()+"/cay/v1/volumes/v/tree", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", key.Key)
	r.Header.Set("Content-Type", "application/x-tar")
	ended := make(chan int, 1)
	go func() {
		resp, err := http.DefaultClient.Do(r)
		code := 0
		if err == nil {
			code = resp.StatusCode
			resp.Body.Close()
		}
		ended <- code
	}()
	out := tar.NewWriter(in)
	if err := out.WriteHeader(&tar.Header{Name: "a", Mode: 0o644, Size: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(make([]byte, 1<<20)); err != nil { // it is read, so the request is under way
		t.Fatal(err)
	}
	if err := w.Client().RemoveAPIKey(ctx, key.ID); err != nil {
		t.Fatal(err)
	}
	for err == nil { // the client sees it when it sends on
		_, err = out.Write(make([]byte, 1))
	}
	if code := <-ended; code != 0 && code < 400 { // cut off, or told so before it was
		t.Errorf("it went on, and was answered with %d", code)
	}
}

// A signed link names no sandbox where one address is for all: its signature finds the one
// that it is of, also one that sleeps, and wakes it. Another's signature finds none.
func TestALinkFindsItsSandbox(t *testing.T) {
	w := servertest.Start(t)
	id := made(t, w, "POST", "/sandboxes", `{"templateID":"base","secure":true,"timeout":3600,"autoPause":true,"autoResume":{"enabled":true}}`, "sandboxID")
	access := made(t, w, "POST", "/cay/v1/sandboxes/"+id+"/access", "", "envdAccessToken")
	if code, text := call(t, w, w.Key, "POST", "/sandboxes/"+id+"/pause", "{}"); code != http.StatusNoContent {
		t.Fatalf("%d %s", code, text)
	}
	state := func() string { return made(t, w, "GET", "/sandboxes/"+id, "", "state") }
	link := func(token string) string {
		file := guest.Signature{Path: "/a"}
		return "/files?" + url.Values{"path": {"/a"}, "signature": {file.Sign("read", token)}}.Encode()
	}
	if code := knock(t, w, link("another"), func(*http.Request) {}, nil); code/100 == 2 || state() != "paused" {
		t.Errorf("by another signature: %d, and it is %s", code, state())
	}
	if knock(t, w, link(access), func(*http.Request) {}, nil); state() != "running" { // what the guest answers is its own
		t.Errorf("by its link: it is %s", state())
	}
}
