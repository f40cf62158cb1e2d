package rest

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"go.yaml.in/yaml/v3"

	"github.com/cay-run/cay/internal/control/approvals"
	"github.com/cay-run/cay/internal/control/logins"
	"github.com/cay-run/cay/internal/control/triggers"
)

// outside are the routes that stand in no contract, and the test that tries each
// with credentials that are not its own.
var outside = map[string]string{
	"GET /volumecontent/{}/path":    "server TestTokensOfVolumes",
	"PATCH /volumecontent/{}/path":  "server TestTokensOfVolumes",
	"DELETE /volumecontent/{}/path": "server TestTokensOfVolumes",
	"GET /volumecontent/{}/dir":     "server TestTokensOfVolumes",
	"POST /volumecontent/{}/dir":    "server TestTokensOfVolumes",
	"GET /volumecontent/{}/file":    "server TestTokensOfVolumes",
	"HEAD /volumecontent/{}/file":   "server TestTokensOfVolumes",
	"PUT /volumecontent/{}/file":    "server TestTokensOfVolumes",
	"OPTIONS /volumecontent/{}/{}":  "server TestPagesReachVolumes",

	"PUT /templates/{}/files/{}": "server TestLinksOfUploads",

	"POST /cay/v1/hooks/{}": "server TestHookProofs",

	"GET /cay/v1/decide/{}/{}/{}":  "server TestApprovalLinks",
	"POST /cay/v1/decide/{}/{}/{}": "server TestApprovalLinks",

	"GET /cay/v1/login":          "server TestLoginMixups",
	"GET /cay/v1/login/callback": "server TestLoginMixups",
	"POST /cay/v1/login/answer":  "server TestLoginMixups",

	// They tell the world how to check what sandboxes show.
	"GET /.well-known/jwks.json":            "server TestIdentityDocuments",
	"GET /.well-known/openid-configuration": "server TestIdentityDocuments",
}

// Every route that is served is an operation of a contract, which the walks of
// internal/server try with the keys of others, or names the test that does.
func TestEveryRouteIsWalked(t *testing.T) {
	_, router := route(Config{
		Content: struct{ Content }{}, Identity: struct{ Identity }{}, Links: struct{ Links }{}, Logins: &logins.Logins{}, Triggers: &triggers.Triggers{}, Approvals: &approvals.Approvals{},
	})
	known := contracts(t)
	names := regexp.MustCompile(`\{[^}]*\}`)
	served := map[string]bool{}
	err := chi.Walk(router, func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		at := method + " " + names.ReplaceAllString(strings.TrimSuffix(pattern, "/"), "{}")
		served[at] = true
		if !known[at] && outside[at] == "" {
			t.Errorf("%s %s is in no contract, and no test is named that tries it", method, pattern)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for at := range outside {
		if !served[at] {
			t.Errorf("%s is not served", at)
		}
	}
	if len(served) < 100 {
		t.Errorf("only %d routes were found", len(served))
	}
}

// contracts are the operations of both contracts, without the names of their
// parameters.
func contracts(t *testing.T) map[string]bool {
	t.Helper()
	names, out := regexp.MustCompile(`\{[^}]*\}`), map[string]bool{}
	for _, name := range []string{"e2b.yaml", "cay.yaml"} {
		text, err := os.ReadFile("../../../api/openapi/" + name)
		if err != nil {
			t.Fatal(err)
		}
		var spec struct {
			Paths map[string]map[string]yaml.Node
		}
		if err := yaml.Unmarshal(text, &spec); err != nil {
			t.Fatal(err)
		}
		for path, methods := range spec.Paths {
			for method := range methods {
				out[strings.ToUpper(method)+" "+names.ReplaceAllString(path, "{}")] = true
			}
		}
	}
	return out
}
