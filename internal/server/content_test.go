package server_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/server/servertest"
)

// shelf is a volume of a server, reached as the SDKs do.
type shelf struct {
	t     *testing.T
	w     *servertest.World
	id    cay.VolumeID
	token string
	dir   string // its files
}

// shelve makes a volume of the first team.
func shelve(t *testing.T, w *servertest.World) shelf {
	t.Helper()
	return shelveOf(t, w, w.Key)
}

func shelveOf(t *testing.T, w *servertest.World, key string) shelf {
	t.Helper()
	status, text := call(t, w, key, http.MethodPost, "/volumes", fmt.Sprintf(`{"name":"v-%s"}`, cay.NewVolumeID()[:8]))
	var made struct {
		ID    cay.VolumeID `json:"volumeID"`
		Token string
	}
	if err := json.Unmarshal([]byte(text), &made); err != nil || status != http.StatusCreated {
		t.Fatalf("%d %s: %v", status, text, err)
	}
	return shelf{t, w, made.ID, made.Token, filepath.Join(w.Config.Data, "volumes", string(made.ID), "root")}
}

func (s shelf) url(what string, query ...string) string {
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	return s.w.URL() + "/volumecontent/" + string(s.id) + "/" + what + "?" + q.Encode()
}

func (s shelf) send(req *http.Request) (*http.Response, string) {
	s.t.Helper()
	if req.Header.Get("Authorization") == "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req.WithContext(s.t.Context()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp, string(text)
}

// do asks for something, and wants a status.
func (s shelf) do(want int, method, what, body string, query ...string) string {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url(what, query...), strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	resp, text := s.send(req)
	if resp.StatusCode != want {
		s.t.Fatalf("%s %s %v: %d %s, want %d", method, what, query, resp.StatusCode, text, want)
	}
	if want >= 400 {
		var e struct {
			Code    *string `json:"code"`
			Message string  `json:"message"`
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Code == nil || *e.Code == "" || e.Message == "" {
			s.t.Errorf("%s %s %v: the error is %s (%v)", method, what, query, text, err)
		}
	}
	return text
}

type stat struct {
	Name, Type, Path, Target string
	Size                     int64
	Mode, UID, GID           uint32
	ATime, MTime, CTime      string
}

func (s shelf) stat(want int, method, what, body string, query ...string) (e stat) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.do(want, method, what, body, query...)), &e); err != nil {
		s.t.Fatal(err)
	}
	return e
}

func TestFilesOfAVolume(t *testing.T) {
	s := shelve(t, servertest.Start(t))
	e := s.stat(201, "PUT", "file", "content", "path", "/a/b.txt", "force", "true", "mode", fmt.Sprint(0o640))
	if e.Name != "b.txt" || e.Type != "file" || e.Path != "/a/b.txt" || e.Size != 7 || e.Mode != 0o640 || e.MTime == "" || e.ATime == "" || e.CTime == "" {
		t.Errorf("it is %+v", e)
	}
	if got := s.do(200, "GET", "file", "", "path", "a/b.txt"); got != "content" {
		t.Errorf("it has %q", got)
	}
	if e := s.stat(200, "GET", "path", "", "path", "/a"); e.Type != "directory" || e.Path != "/a" {
		t.Errorf("it is %+v", e)
	}
	if e := s.stat(200, "PATCH", "path", `{"mode":384,"uid":null,"more":1}`, "path", "/a/b.txt"); e.Mode != 0o600 {
		t.Errorf("it is %+v", e)
	}
	if e := s.stat(201, "POST", "dir", "", "path", "/d", "mode", fmt.Sprint(0o700), "uid", fmt.Sprint(os.Getuid())); e.Mode != 0o700 || e.Type != "directory" {
		t.Errorf("it is %+v", e)
	}
	s.do(409, "POST", "dir", "", "path", "/d")
	s.do(201, "POST", "dir", "", "path", "/d", "force", "true")
	s.do(404, "POST", "dir", "", "path", "/x/y")
	s.do(404, "PUT", "file", "x", "path", "/x/y")
	s.do(409, "PUT", "file", "x", "path", "/d")
	if err := os.Symlink("a/b.txt", filepath.Join(s.dir, "link")); err != nil {
		t.Fatal(err)
	}
	var all []stat
	if err := json.Unmarshal([]byte(s.do(200, "GET", "dir", "", "path", "/", "depth", "2")), &all); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Path+e.Target)
	}
	if got := strings.Join(names, " "); got != "/a /a/b.txt /d /linka/b.txt" {
		t.Errorf("there are %s", got)
	}
	if got := s.do(200, "GET", "dir", "", "path", "/d"); strings.TrimSpace(got) != "[]" {
		t.Errorf("an empty directory has %s", got)
	}
	s.do(204, "DELETE", "path", "", "path", "/a")
	s.do(404, "DELETE", "path", "", "path", "/a")
	s.do(404, "GET", "path", "", "path", "/a")
	s.do(404, "GET", "file", "", "path", "/link")
	s.do(404, "GET", "dir", "", "path", "/a")
}

func TestErrorsOfFilesOfAVolume(t *testing.T) {
	s := shelve(t, servertest.Start(t))
	if err := syscall.Mkfifo(filepath.Join(s.dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		method, what, body string
		query              []string
		code               string
	}{
		{"GET", "path", "", nil, "invalid_request"},
		{"GET", "path", "", []string{"path", ""}, "invalid_request"},
		{"GET", "path", "", []string{"path", "\xff"}, "invalid_request"},
		{"GET", "path", "", []string{"path", "a\x00"}, "invalid_request"},
		{"GET", "path", "", []string{"path", strings.Repeat("a/", 3000)}, "invalid_request"},
		{"GET", "file", "", []string{"path", "/"}, "invalid_request"},
		{"GET", "file", "", []string{"path", "fifo"}, "invalid_request"},
		{"GET", "dir", "", []string{"path", "/", "depth", "0"}, "depth_out_of_range"},
		{"GET", "dir", "", []string{"path", "/", "depth", "101"}, "depth_out_of_range"},
		{"GET", "dir", "", []string{"path", "/", "depth", "deep"}, "depth_out_of_range"},
		{"DELETE", "path", "", []string{"path", "/"}, "cannot_delete_root"},
		{"DELETE", "path", "", []string{"path", "a/../.."}, "cannot_delete_root"},
		{"POST", "dir", "", []string{"path", "a", "mode", "4096"}, "invalid_request"},
		{"POST", "dir", "", []string{"path", "a", "uid", "4294967295"}, "invalid_request"},
		{"POST", "dir", "", []string{"path", "a", "gid", "-1"}, "invalid_request"},
		{"POST", "dir", "", []string{"path", "a", "force", "maybe"}, "invalid_request"},
		{"PATCH", "path", "{", []string{"path", "/"}, "invalid_request"},
		{"PATCH", "path", `{"mode":"rwx"}`, []string{"path", "/"}, "invalid_request"},
		{"PATCH", "path", `{"uid":1.5}`, []string{"path", "/"}, "invalid_request"},
		{"PATCH", "path", `{"x":"` + strings.Repeat("x", 70_000) + `"}`, []string{"path", "/"}, "invalid_request"},
	} {
		text := s.do(400, tc.method, tc.what, tc.body, tc.query...)
		if !strings.Contains(text, `"`+tc.code+`"`) {
			t.Errorf("%s %s %.60q: %s, want %s", tc.method, tc.what, tc.query, text, tc.code)
		}
	}
}

// A token opens its own volume and no other, and
// nothing once the volume is gone; no key does.
func TestTokensOfVolumes(t *testing.T) {
	w := servertest.Start(t)
	s, other := shelve(t, w), shelve(t, w)
	s.do(201, "PUT", "file", "mine", "path", "a")
	tokens, err := auth.OpenTokens(w.Config.Data)
	if err != nil {
		t.Fatal(err)
	}
	team, mac, _ := strings.Cut(s.token, ".")
	for what, token := range map[string]string{
		"none": "", "another volume's": other.token, "a key": w.Key, "cut": s.token[:len(s.token)-1], "longer": s.token + "0",
		"without a team": "." + mac, "of another team": string(cay.NewTeamID()) + "." + mac, "without its proof": team + ".",
		"a sandbox's": tokens.Access(cay.SandboxID(s.id)), "a link's": team + "." + tokens.Sign(team+"/"+string(s.id)),
	} {
		for _, call := range []struct{ method, what string }{
			{"GET", "path"}, {"PATCH", "path"}, {"DELETE", "path"}, {"GET", "dir"}, {"POST", "dir"}, {"GET", "file"}, {"PUT", "file"},
		} {
			wrong := s
			wrong.token = token
			if text := wrong.do(401, call.method, call.what, "{}", "path", "a"); strings.Contains(text, "mine") {
				t.Errorf("%s: %s", what, text)
			}
		}
	}
	req, err := http.NewRequest("GET", s.url("file", "path", "a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Basic "+s.token)
	req.Header.Set("X-API-Key", w.Key)
	if resp, _ := s.send(req); resp.StatusCode != 401 {
		t.Errorf("a key opens a volume: %d", resp.StatusCode)
	}
	if got := s.do(200, "GET", "file", "", "path", "a"); got != "mine" {
		t.Errorf("it has %q", got)
	}
	if err := w.Client().DeleteVolume(t.Context(), string(s.id)); err != nil {
		t.Fatal(err)
	}
	s.do(404, "GET", "file", "", "path", "a")
	if strings.Contains(w.Log(), s.token) {
		t.Error("the log has a token")
	}
}

// The volumes of a disabled team are closed until it is enabled again.
func TestVolumesOfADisabledTeam(t *testing.T) {
	w := servertest.Start(t)
	admin := w.Admin("")
	made, err := admin.CreateTeam(t.Context(), "navy")
	if err != nil {
		t.Fatal(err)
	}
	key, err := w.Admin(made.ID).CreateAPIKey(t.Context(), client.NewAPIKey{Name: "navy"})
	if err != nil {
		t.Fatal(err)
	}
	s := shelveOf(t, w, key.Key)
	s.do(201, "PUT", "file", "mine", "path", "a")
	if _, err := admin.DisableTeam(t.Context(), "navy", false); err != nil {
		t.Fatal(err)
	}
	s.do(403, "GET", "file", "", "path", "a")
	s.do(403, "PUT", "file", "other", "path", "a")
	if _, err := admin.DisableTeam(t.Context(), "navy", true); err != nil {
		t.Fatal(err)
	}
	if got := s.do(200, "GET", "file", "", "path", "a"); got != "mine" {
		t.Errorf("it has %q", got)
	}
}

// Content goes both ways in one stream of any length, known or not, and by
// ranges.
func TestContentIsStreamed(t *testing.T) {
	s := shelve(t, servertest.Start(t))
	much := bytes.Repeat([]byte("0123456789abcdef"), 300_000)
	req, err := http.NewRequest("PUT", s.url("file", "path", "much"), io.MultiReader(bytes.NewReader(much))) // chunked
	if err != nil {
		t.Fatal(err)
	}
	if resp, text := s.send(req); resp.StatusCode != 201 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	if got := s.do(200, "GET", "file", "", "path", "much"); got != string(much) {
		t.Errorf("of %d bytes %d came back", len(much), len(got))
	}
	s.do(201, "PUT", "file", "", "path", "empty")
	if got := s.do(200, "GET", "file", "", "path", "empty"); got != "" {
		t.Errorf("an empty file has %q", got)
	}
	req, err = http.NewRequest("GET", s.url("file", "path", "much"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=10-15")
	resp, text := s.send(req)
	if resp.StatusCode != 206 || text != "abcdef" {
		t.Errorf("a range is %d %q", resp.StatusCode, text)
	}
	if h := resp.Header; h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("its headers are %v", h)
	}
}

// Content that has no room is refused before it is sent.
func TestContentWithoutRoom(t *testing.T) {
	s := shelve(t, servertest.Start(t))
	conn, err := net.Dial("tcp", s.w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	u, err := url.Parse(s.url("file", "path", "huge"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", u.RequestURI(), s.token, int64(1)<<60)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 507") {
		t.Errorf("it says %q: %v", line, err)
	}
}

// A file of 100 GB, which holes make possible in any volume, is told of, read in
// ranges and replaced.
func TestAFileOf100GB(t *testing.T) {
	s := shelve(t, servertest.Start(t))
	const size = int64(100) << 30
	file := filepath.Join(s.dir, "huge")
	if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Truncate(file, size)); err != nil {
		t.Fatal(err)
	}
	if e := s.stat(200, "GET", "path", "", "path", "/huge"); e.Size != size {
		t.Errorf("it is told of as %+v", e)
	}
	if text := s.do(200, "GET", "dir", "", "path", "/"); !strings.Contains(text, fmt.Sprint(size)) {
		t.Errorf("it is listed as %s", text)
	}
	req, err := http.NewRequest("GET", s.url("file", "path", "/huge"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-", size-4))
	if resp, text := s.send(req); resp.StatusCode != http.StatusPartialContent || text != "\x00\x00\x00\x00" {
		t.Errorf("its end is %d %q", resp.StatusCode, text)
	}
	s.do(201, "PUT", "file", "small", "path", "/huge")
	if e := s.stat(200, "GET", "path", "", "path", "/huge"); e.Size != 5 {
		t.Errorf("after it was replaced: %+v", e)
	}
	s.do(204, "DELETE", "path", "", "path", "/huge")
}

// A client that goes away while it sends leaves what was there.
func TestACutUploadWritesNothing(t *testing.T) {
	s := shelve(t, servertest.Start(t))
	s.do(201, "PUT", "file", "before", "path", "a")
	conn, err := net.Dial("tcp", s.w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(s.url("file", "path", "a"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\nafter", u.RequestURI(), s.token)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn) // until the server is done with it
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if strings.HasPrefix(string(answer), "HTTP/1.1 2") {
		t.Errorf("it says %s", answer)
	}
	if got := s.do(200, "GET", "file", "", "path", "a"); got != "before" {
		t.Errorf("it has %q", got)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 1 {
		t.Errorf("there are %v: %v", left, err)
	}
}

// Pages of any origin may call with a token.
func TestPagesReachVolumes(t *testing.T) {
	s := shelve(t, servertest.Start(t))
	req, err := http.NewRequest("OPTIONS", s.url("file", "path", "a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", "https://example.com")
	req.Header.Set("Access-Control-Request-Method", "PUT")
	resp, _ := s.send(req)
	h := resp.Header
	if resp.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != "*" ||
		!strings.Contains(h.Get("Access-Control-Allow-Methods"), "PUT") || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "Authorization") {
		t.Errorf("%d %v", resp.StatusCode, h)
	}
}
