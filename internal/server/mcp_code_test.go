package server_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/mcp"
	"github.com/cay-run/cay/internal/server/servertest"
)

// codeTools connects a client to the two tools that stand for the API.
func codeTools(t *testing.T, w *servertest.World, key string) *sdk.ClientSession {
	t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "coder", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{
		Endpoint: w.URL() + mcp.CodePath, HTTPClient: &http.Client{Transport: headers{"Authorization": "Bearer " + key}}, MaxRetries: -1,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSearchOfTheAPI(t *testing.T) {
	w := servertest.Start(t)
	s := codeTools(t, w, w.Key)
	listed, err := s.ListTools(t.Context(), nil)
	if err != nil || len(listed.Tools) != 2 {
		t.Fatalf("%+v, %v", listed, err)
	}
	for query, want := range map[string]string{
		"create a sandbox":            "POST /v2/sandboxes",
		"approve an approval":         "POST /cay/v1/approvals/{approvalID}/decide  (decideApproval; scope: approvals:decide)",
		"listTriggers":                "GET /cay/v1/triggers",
		"/cay/v1/volumes":             "/cay/v1/volumes",
		"POST /cay/v1/approvals wait": "body: {body?: string",
	} {
		text, out, failed := use(t, s, "search", map[string]any{"query": query})
		if failed || !strings.Contains(text, want) || len(out["operations"].([]any)) == 0 {
			t.Errorf("%s: %v %.1500s", query, failed, text)
		}
	}
	if text, _, failed := use(t, s, "search", map[string]any{"query": "zxqv"}); failed || !strings.Contains(text, "no operation") {
		t.Errorf("nothing: %v %s", failed, text)
	}
	if text, _, failed := use(t, s, "search", map[string]any{"query": "e", "limit": 21}); !failed || !strings.Contains(text, "limit") {
		t.Errorf("too many: %v %s", failed, text)
	}
	// Each operation that a client may call is found by its id.
	for _, op := range operations(t) {
		text, _, _ := use(t, s, "search", map[string]any{"query": op.id, "limit": 20})
		if !strings.Contains(text, "("+op.id+";") {
			t.Errorf("%s is not found", op.id)
		}
	}
}

// A program runs in a sandbox of its own as its caller, which never gives it a key.
func TestProgramsOverTheAPI(t *testing.T) {
	w, _ := hooked(t)
	s := codeTools(t, w, w.Key)
	for _, tt := range []struct{ name, language, code, want string }{
		{"a call", "python", `print(len(cay.get("/v2/sandboxes", limit=10)))`, "1"},
		{"several", "python", "x = cay.post('/cay/v1/approvals', {'title': 'from code'})\nprint(x['state'], cay.get('/cay/v1/approvals/' + x['id'])['title'])", "pending from code"},
		{"a refusal", "python", "try:\n    cay.get('/cay/v1/approvals/none')\nexcept CayError as e:\n    print(e.status, e)", "404 404"},
		{"an error", "python", "print('before')\n1/0", "ZeroDivisionError"},
		{"a status", "python", "import sys; sys.exit(3)", "[exit status 3]"},
		{"what children print", "python", "import subprocess; subprocess.run(['echo', 'a child'])", "a child"},
		{"nothing", "python", "pass", "printed nothing"},
		{"no key inside", "python", "import os; print(sorted(k for k in os.environ if 'CAY' in k or 'KEY' in k), 'e2b_' in str(dict(os.environ)))", "[] False"},
		{"the protocol again", "python", "cay.get('/mcp')", "path: must be"},
		{"another server", "python", "cay.get('http://127.0.0.1/health')", "path: must be"},
		{"a method that is none", "python", "cay.call('G ET', '/health')", "method: is none"},
		{"many calls", "python", "for i in range(250): cay.get('/health')", "at most 200 calls"},
		{"a large request", "python", "cay.post('/cay/v1/approvals', {'title': 'x' * 2000000})", "the request has more than"},
		{"lines that are no requests", "python", "import os\nos.write(1, b'x' * 3000000 + b'\\n')\nprint('lived')", "lived"},
		{"JavaScript", "javascript", "const list = cay.get('/v2/sandboxes', {limit: 5}); console.log(list.length, 'ü')", "1 ü"},
		{"JavaScript that waits", "javascript", "await null; try { cay.delete('/sandboxes/inone') } catch (e) { console.log(e.name, e.status) }", "CayError 4"},
		{"JavaScript that fails", "javascript", "throw new Error('out of luck')", "out of luck"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := exec.LookPath("node"); err != nil && tt.language == "javascript" {
				t.Skip("NOT TESTED HERE: there is no node")
			}
			text, _, failed := use(t, s, "execute", map[string]any{"code": tt.code, "language": tt.language})
			if failed || !strings.Contains(text, tt.want) {
				t.Errorf("%v %.600s, want %q", failed, text, tt.want)
			}
		})
	}
	text, out, failed := use(t, s, "execute", map[string]any{"code": "print('x' * 100000); import time; time.sleep(600)", "timeout": 2})
	if failed || !strings.Contains(text, "ended after 2s") || len(text) > 30_000 || out["exit_code"] != float64(-1) {
		t.Errorf("one that does not end: %v %.200s %v", failed, text, out["exit_code"])
	}
	for what, args := range map[string]map[string]any{
		"no code": {"code": " "}, "another language": {"code": "1", "language": "r"}, "a long time": {"code": "1", "timeout": 601},
	} {
		if text, _, failed := use(t, s, "execute", args); !failed {
			t.Errorf("%s: %s", what, text)
		}
	}
	// The sandboxes of programs are over with them.
	left, err := w.Client().List(t.Context())
	if err != nil || len(left) != 0 {
		t.Errorf("%d sandboxes are left, %v", len(left), err)
	}
	// A program may do what its key may.
	for scope, code := range map[cay.Scopes]string{cay.ReadWebhooks: "cay.get('/events/webhooks')", cay.DecideApprovals: "cay.post('/cay/v1/approvals/x/decide', {'approve': True})"} {
		narrow := operatorsKey(t, w, (cay.TeamScopes &^ scope).Names()...)
		text, _, failed := use(t, codeTools(t, w, narrow.Key), "execute", map[string]any{"code": code})
		if failed || !strings.Contains(text, cay.CodeScope) {
			t.Errorf("without %s: %v %s", scope, failed, text)
		}
	}
	for _, scope := range []cay.Scopes{cay.WriteSandboxes, cay.ExecSandboxes} {
		narrow := operatorsKey(t, w, (cay.TeamScopes &^ scope).Names()...)
		if text, _, failed := use(t, codeTools(t, w, narrow.Key), "execute", map[string]any{"code": "print(1)"}); !failed || !strings.Contains(text, fmt.Sprint(scope)) {
			t.Errorf("without %s: %v %s", scope, failed, text)
		}
	}
	if code, text := call(t, w, "", "POST", mcp.CodePath, "{}"); code != http.StatusUnauthorized {
		t.Errorf("without a key: %d %s", code, text)
	}
}
