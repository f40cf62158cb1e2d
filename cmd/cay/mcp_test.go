package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// The lines that connect a client name the server, have the form that the client
// reads, and no key in them.
func TestMCPLines(t *testing.T) {
	env := []string{"E2B_API_URL=http://cay.example:7070"} // a key is not needed
	const url = "http://cay.example:7070/mcp"
	for client, want := range map[string]string{
		"claude": `claude mcp add --transport http cay ` + url + ` --header "Authorization: Bearer $E2B_API_KEY"`,
		"cursor": `"Authorization": "Bearer ${env:E2B_API_KEY}"`,
		"vscode": `"Authorization": "Bearer ${input:cay-key}"`,
		"codex":  `bearer_token_env_var = "E2B_API_KEY"`,
	} {
		code, out, errs := invoke(t, env, "mcp", "--print", client)
		if code != 0 || !strings.Contains(out, url) || !strings.Contains(out, want) {
			t.Errorf("%s: %d %s %s", client, code, out, errs)
		}
		if _, object, ok := strings.Cut(out, "\n{"); ok && !json.Valid([]byte("{"+object)) {
			t.Errorf("%s: no JSON: %s", client, out)
		}
	}
	if code, _, errs := invoke(t, env, "mcp", "--print", "emacs"); code != wrongUsage || !strings.Contains(errs, "claude") {
		t.Errorf("%d %s", code, errs)
	}
}
