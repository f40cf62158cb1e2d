package agent_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/guest"
)

const certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"

func TestPlainRoutes(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/health", 204, ""},
		{"GET", "/envs", 200, "{}"},
		{"GET", "/nowhere", 404, `{"code":404,"message":"not found: /nowhere"}`},
		{"POST", "/freeze", 404, `{"code":404,"message":"not found: /freeze"}`},
		{"POST", "/health", 405, `{"code":405,"message":"method not allowed: POST"}`},
		{"DELETE", "/files", 405, `{"code":405,"message":"method not allowed: DELETE"}`},
		{"POST", "/process.Process/Nothing", 404, ""},
		{"POST", "/init", 400, `{"code":400,"message":"decode body: unexpected end of JSON input"}`},
	} {
		code, h, body := w.call(c.method, c.path, "")
		if code != c.code || c.body != "" && body != c.body {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, body)
		}
		if h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Expose-Headers") != "*" {
			t.Errorf("%s %s: closed to web pages: %v", c.method, c.path, h)
		}
	}
	if _, h, _ := w.call("GET", "/health", ""); h.Get("Cache-Control") != "no-store" {
		t.Errorf("/health: %v", h)
	}
}

func TestPreflight(t *testing.T) {
	w := newWorld(t)
	w.mustInit("", guest.Init{Mode: guest.ModeCreate, AccessToken: "secret"})
	code, h, _ := w.call("OPTIONS", "/process.Process/Start", "",
		"Origin", "https://example.org", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-access-token,connect-protocol-version")
	if code != 204 || h.Get("Access-Control-Allow-Headers") != "x-access-token,connect-protocol-version" || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") {
		t.Errorf("%d %v", code, h)
	}
}

func TestToken(t *testing.T) {
	w := newWorld(t)
	w.mustInit("", guest.Init{Mode: guest.ModeCreate, AccessToken: "secret"})
	for _, c := range []struct {
		method, path, token string
		code                int
	}{
		{"GET", "/health", "", 204},
		{"GET", "/envs", "", 401},
		{"GET", "/envs", "secre", 401},
		{"GET", "/envs", "secret", 200},
		{"GET", "/metrics", "wrong", 401},
		{"POST", "/process.Process/List", "", 401},
		{"POST", "/process.Process/List", "secret", 200},
		{"POST", "/filesystem.Filesystem/Stat", "", 401},
		{"GET", "/files", "", 401},
		{"GET", "/nowhere", "", 401},
		{"POST", "/init", "", 401},
		{"POST", "/init", "wrong", 401},
	} {
		code, h, body := w.call(c.method, c.path, "{}", "X-Access-Token", c.token, "Content-Type", "application/json")
		if code != c.code {
			t.Errorf("%s %s with %q: %d %s", c.method, c.path, c.token, code, body)
		}
		var e struct {
			Code    int
			Message string
		}
		if code == 401 && (json.Unmarshal([]byte(body), &e) != nil || e.Code != 401 || e.Message == "") {
			t.Errorf("%s %s: %v %s", c.method, c.path, h, body)
		}
	}
	w.mustInit("secret", guest.Init{Mode: guest.ModeCreate, AccessToken: "next"})
	if code, _, _ := w.call("GET", "/envs", "", "X-Access-Token", "secret"); code != 401 {
		t.Errorf("the old token: %d", code)
	}
}

func TestInit(t *testing.T) {
	w := newWorld(t)
	w.write("etc/ssl/certs/ca-certificates.crt", "the image's\n")
	in := guest.Init{
		Mode: guest.ModeCreate, SandboxID: "sid", TemplateID: "tid", BuildID: "bid",
		EnvVars:   map[string]string{"A": "1"},
		MachineID: "0123456789abcdef0123456789abcdef", Entropy: []byte("random"), CABundle: certificate,
	}
	code, text := w.init("", in)
	if code != 200 || text != `{"protocol":2,"version":"0.6.13"}` {
		t.Fatalf("%d %s", code, text)
	}
	for name, want := range map[string]string{
		"etc/machine-id":                    "0123456789abcdef0123456789abcdef\n",
		"run/e2b/.E2B_SANDBOX":              "true",
		"run/e2b/.E2B_SANDBOX_ID":           "sid",
		"run/e2b/.E2B_TEMPLATE_ID":          "tid",
		".e2b":                              "ENV_ID=tid\nTEMPLATE_ID=tid\nBUILD_ID=bid\n",
		"dev/urandom":                       "random",
		"etc/ssl/certs/ca-certificates.crt": "the image's\n# cay: certificates of this sandbox begin\n" + certificate + "# cay: certificates of this sandbox end\n",
	} {
		if got := w.read(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	_, _, envs := w.call("GET", "/envs", "")
	if want := `{"A":"1","E2B_SANDBOX":"true","E2B_SANDBOX_ID":"sid","E2B_TEMPLATE_ID":"tid"}`; envs != want {
		t.Errorf("envs: %s", envs)
	}
	w.mustInit("", guest.Init{Mode: guest.ModeResume})
	if _, _, again := w.call("GET", "/envs", ""); again != envs {
		t.Errorf("envs after a resume: %s", again)
	}
	if got := w.read("etc/ssl/certs/ca-certificates.crt"); got != "the image's\n" {
		t.Errorf("certificates after they went: %q", got)
	}
	// The files that every sandbox has are there for a host that sends no ids; a boot
	// makes them again.
	mark := filepath.Join(w.root, "run/e2b/.E2B_SANDBOX")
	must(t, os.Remove(mark))
	w.mustInit("", guest.Init{Mode: guest.ModeResume, Entropy: []byte("fresh!")})
	if _, err := os.Stat(mark); err == nil || w.read("dev/urandom") != "fresh!" {
		t.Errorf("an /init with nothing but entropy: %v, %q", err, w.read("dev/urandom"))
	}
	w.mustInit("", guest.Init{Mode: guest.ModeBuild})
	if got := w.read("run/e2b/.E2B_SANDBOX"); got != "true" {
		t.Errorf("the mark after a boot: %q", got)
	}
	w.mustInit("", guest.Init{Mode: guest.ModeCreate, SandboxID: "other"})
	if _, _, again := w.call("GET", "/envs", ""); again != `{"E2B_SANDBOX":"true","E2B_SANDBOX_ID":"other"}` {
		t.Errorf("envs of a clone: %s", again)
	}
}

// TestInitLeavesWhatIsSo: files that say what they should are not written, so
// that a guest whose disk is full can be resumed.
func TestInitLeavesWhatIsSo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("files that only root writes over")
	}
	w := newWorld(t)
	in := guest.Init{Mode: guest.ModeCreate, SandboxID: "sid", TemplateID: "tid", MachineID: "0123456789abcdef0123456789abcdef"}
	w.mustInit("", in)
	files := []string{"etc/machine-id", "run/e2b/.E2B_SANDBOX", "run/e2b/.E2B_SANDBOX_ID", "run/e2b/.E2B_TEMPLATE_ID", ".e2b"}
	stat := func() (all []os.FileInfo) {
		for _, name := range files {
			info, err := os.Lstat(filepath.Join(w.root, name))
			must(t, err)
			all = append(all, info)
		}
		return all
	}
	before := stat()
	in.Mode = guest.ModeResume
	w.mustInit("", in)
	for i, now := range stat() {
		if !os.SameFile(before[i], now) {
			t.Errorf("%s was written again", files[i])
		}
	}
	// A mark that the guest changed is put right.
	mark := filepath.Join(w.root, files[2])
	for name, spoil := range map[string]func() error{
		"other text": func() error { return os.WriteFile(mark, []byte("dis"), 0o444) },
		"other mode": func() error { return os.Chmod(mark, 0o666) },
		"a link":     func() error { return os.Symlink("/proc/self/environ", mark) },
		"a pipe":     func() error { return unix.Mkfifo(mark, 0o444) },
	} {
		if strings.HasPrefix(name, "a ") {
			must(t, os.Remove(mark))
		}
		must(t, spoil())
		w.mustInit("", in)
		info, err := os.Lstat(mark)
		must(t, err)
		if info.Mode() != 0o444 || w.read(files[2]) != "sid" {
			t.Errorf("%s: the mark is %v, %q", name, info.Mode(), w.read(files[2]))
		}
	}
}

func TestInitRefuses(t *testing.T) {
	w := newWorld(t)
	for name, in := range map[string]guest.Init{
		"mode":        {Mode: "other"},
		"machine id":  {Mode: guest.ModeCreate, MachineID: "../../etc/passwd"},
		"certificate": {Mode: guest.ModeCreate, CABundle: "hello"},
	} {
		if code, text := w.init("", in); code != 400 {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	get := func() map[string]float64 {
		_, _, body := w.call("GET", "/metrics", "")
		out := map[string]float64{}
		must(t, json.Unmarshal([]byte(body), &out))
		return out
	}
	m := get()
	if m["mem_total"] != 1000<<10 || m["mem_used"] != 400<<10 || m["mem_cache"] != 200<<10 || m["disk_total"] == 0 || m["ts"] == 0 || m["cpu_count"] == 0 {
		t.Errorf("the machine's: %v", m)
	}
	w.mustInit("", guest.Init{Mode: guest.ModeCreate, CPUs: 7, MemoryMB: 512, DiskMB: 1024})
	m = get()
	if m["cpu_count"] != 7 || m["mem_total"] != 512<<20 || m["mem_total_mib"] != 512 || m["disk_total"] != 1024<<20 {
		t.Errorf("the sandbox's: %v", m)
	}
}

// frames splits a Connect stream and compacts its JSON.
func frames(t *testing.T, body string) []string {
	t.Helper()
	var out []string
	for r := strings.NewReader(body); r.Len() > 0; {
		var head [5]byte
		_, err := io.ReadFull(r, head[:])
		must(t, err)
		text := make([]byte, binary.BigEndian.Uint32(head[1:]))
		_, err = io.ReadFull(r, text)
		must(t, err)
		var compact bytes.Buffer
		must(t, json.Compact(&compact, text))
		out = append(out, strconv.Itoa(int(head[0]))+" "+compact.String())
	}
	return out
}

func envelope(text string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text)))) + text
}

var pidText = regexp.MustCompile(`"pid":\d+`)

// The wire, to the byte but for spaces and pids.
func TestWire(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"output and failure": {
			`{"process":{"cmd":"/bin/sh","args":["-c","printf hi; exit 2"]},"stdin":false}`,
			[]string{
				`0 {"event":{"start":{"pid":0}}}`,
				`0 {"event":{"data":{"stdout":"aGk="}}}`,
				`0 {"event":{"end":{"exitCode":2,"exited":true,"status":"exit status 2","error":"exit status 2"}}}`,
				`2 {}`,
			},
		},
		"success": {
			`{"process":{"cmd":"true","unknown":1},"stdin":false}`,
			[]string{
				`0 {"event":{"start":{"pid":0}}}`,
				`0 {"event":{"end":{"exited":true,"status":"exit status 0"}}}`,
				`2 {}`,
			},
		},
		"refusal": {
			`{"process":{"cmd":"true","cwd":"/not/here"}}`,
			[]string{`2 {"error":{"code":"invalid_argument","message":"cwd '/not/here' does not exist"}}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, h, body := w.call(http.MethodPost, "/process.Process/Start", envelope(c.body),
				"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1",
				"Accept-Encoding", "gzip", "Connect-Accept-Encoding", "gzip")
			if code != 200 || h.Get("Content-Type") != "application/connect+json" || h.Get("Connect-Content-Encoding") != "" {
				t.Errorf("%d %v", code, h)
			}
			got := frames(t, body)
			if diff := cmp.Diff(c.want, replacePids(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	code, _, body := w.call(http.MethodPost, "/process.Process/SendSignal", `{"process":{"pid":1073741824},"signal":15}`, "Content-Type", "application/json")
	var compact bytes.Buffer
	must(t, json.Compact(&compact, []byte(body)))
	if code != 404 || compact.String() != `{"code":"not_found","message":"process with pid 1073741824 not found"}` {
		t.Errorf("%d %s", code, body)
	}
}

func replacePids(in []string) []string {
	for i := range in {
		in[i] = pidText.ReplaceAllString(in[i], `"pid":0`)
	}
	return in
}
