package rest_test

import (
	"testing"
)

// Identity tokens are named at creation, and rules may name those alone. They
// are the sandbox's for life, and a fork's too.
func TestIdentityTokens(t *testing.T) {
	w := newWorld(t, "")
	create := func(tokens, value string) string {
		return `{"templateID":"base","timeout":300,"iam":{"tokens":` + tokens + `},"network":{"rules":{"a.example":[{"transform":{"headers":{"X-Key":"` + value + `"}}}]}}}`
	}
	const tokens, named = `{"aws":{"audience":"sts","tokenType":"JWT-SVID"}}`, "Bearer ${e2b.identity.tokens.aws}"
	id := w.create(create(tokens, named))["sandboxID"].(string)
	has := func(when string) {
		t.Helper()
		for _, instance := range w.node.Alive() {
			if got := instance.Spec.Network.Identities["aws"].Audience; got != "sts" {
				t.Errorf("%s: the audience is %q", when, got)
			}
		}
	}
	has("created")
	path := "/sandboxes/" + id
	put := func(value string) string {
		return `{"rules":{"b.example":[{"transform":{"headers":{"X-Key":"` + value + `"}}}]}}`
	}
	want[any](t, w.call("PUT", path+"/network", put(named)), 204)
	has("replaced")
	want[any](t, w.call("POST", path+"/pause", `{}`), 204)
	want[any](t, w.call("POST", path+"/resume", `{}`), 201)
	has("resumed")
	want[any](t, w.call("POST", path+"/fork", `{"count":1}`), 201)
	has("forked")
	running := len(w.node.Alive())
	for body, text := range map[string]string{
		create(tokens, "${e2b.identity.tokens.gcp}"):                        "no identity token \"gcp\"",
		create(`{}`, named):                                                 "no identity token \"aws\"",
		create(`{"aws":{"audience":"sts","tokenType":"X509-SVID"}}`, named): "JWT-SVID",
		create(`{"aws":{"audience":"sts"}}`, named):                         "JWT-SVID",
		create(`{"aws":{"tokenType":"JWT-SVID"}}`, named):                   "audience",
		create(`{"a}b":{"audience":"sts","tokenType":"JWT-SVID"}}`, ""):     "name",
		create(tokens, "${e2b.identity.token.aws}"):                         "is not known",
		create(`{"aws":{"audience":1,"tokenType":"JWT-SVID"}}`, named):      "audience",
		create(`{"aws":"sts"}`, named):                                      "iam.tokens",
	} {
		wantError(t, w.call("POST", "/sandboxes", body), 400, text)
	}
	wantError(t, w.call("PUT", path+"/network", put("${e2b.identity.tokens.gcp}")), 400, "no identity token")
	if n := len(w.node.Alive()); n != running {
		t.Errorf("%d instances run, %d before", n, running)
	}
}
