package main

import (
	"strings"
	"testing"
)

func TestApprovalsCommands(t *testing.T) {
	const pending = `{"id":"a1","kind":"egress","title":"Reach \u001b[2Jevil.example","body":"line one\n\u001b[31mline two","risk":"medium","state":"pending","askedBy":{"kind":"sandbox","id":"i1","name":"base"},"sandboxID":"i1","createdAt":"2026-11-26T05:00:00Z","expiresAt":"2126-11-26T05:15:00Z"}`
	over := func(state string) string {
		return strings.Replace(pending, `"state":"pending"`, `"state":"`+state+`","note":"because","decidedBy":{"kind":"person","id":"p","name":"Ann"},"decidedAt":"2026-11-26T05:01:00Z","remember":"once"`, 1)
	}
	env := stand(t, map[string]string{
		"GET /cay/v1/approvals":            `{"approvals":[` + pending + `]}`,
		"GET /cay/v1/approvals/a1":         over("denied"),
		"POST /cay/v1/approvals":           pending,
		"POST /cay/v1/approvals/a1/decide": over("approved"),
	})
	for _, tt := range []struct {
		args []string
		code int
		want []string // in the output
	}{
		{[]string{"approvals", "list"}, 0, []string{"a1", "pending", "egress", "i1", "evil.example"}},
		{[]string{"approvals", "show", "a1"}, 0, []string{"denied", "person Ann", "because", "line one\n", "line two"}},
		{[]string{"approvals", "approve", "a1", "--remember", "hour", "--note", "ok"}, 0, []string{"approved"}},
		{[]string{"approval", "deny", "a1"}, 0, []string{"approved"}}, // as the server says
		{[]string{"approvals", "ask", "May I?", "--no-wait"}, 0, []string{"a1"}},
		{[]string{"approvals", "ask", "May I?"}, 1, []string{"denied"}}, // no is not a yes
		{[]string{"approvals", "approve", "a1", "--remember", "ever"}, wrongUsage, nil},
	} {
		code, out, errs := invoke(t, env, tt.args...)
		if code != tt.code || strings.Contains(out, "\x1b") {
			t.Errorf("%v: %d, %q, %q", tt.args, code, out, errs)
		}
		for _, want := range tt.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v lacks %q: %q", tt.args, want, out)
			}
		}
	}
	yes := stand(t, map[string]string{"POST /cay/v1/approvals": over("approved")})
	if code, out, errs := invoke(t, yes, "approvals", "ask", "May I?"); code != 0 || out != "approved\n" {
		t.Errorf("a yes: %d, %q, %q", code, out, errs)
	}
}
