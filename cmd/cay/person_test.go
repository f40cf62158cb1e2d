package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// recorder is a server that answers as answer says, and the requests that it had.
func recorder(t *testing.T, answer func(request, body string) (int, string)) (env []string, had *[]string) {
	t.Helper()
	had = new([]string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		request := r.Method + " " + r.URL.Path
		*had = append(*had, request)
		code, text := answer(request, string(body))
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(srv.Close)
	return []string{"E2B_API_KEY=k", "CAY_ADMIN_TOKEN=" + strings.Repeat("a", 32), "E2B_API_URL=" + srv.URL}, had
}

// People are named by address or id; when one is not known, none is changed.
func TestPersonCommands(t *testing.T) {
	const ann = `{"personID":"p1","email":"ann@example.com","name":"Ann\u001b","createdAt":"2026-11-01T00:00:00Z","disabled":`
	const bob = `{"personID":"p2","email":"bob@example.com","createdAt":"2026-11-01T00:00:00Z","disabled":`
	env, had := recorder(t, func(request, body string) (int, string) {
		var asked struct{ Disabled *bool }
		switch _ = json.Unmarshal([]byte(body), &asked); {
		case request == "GET /cay/v1/admin/people":
			return 200, "[" + ann + "false}," + bob + "true}]"
		case asked.Disabled == nil:
		case request == "PATCH /cay/v1/admin/people/p1" && *asked.Disabled:
			return 200, ann + "true}"
		case request == "PATCH /cay/v1/admin/people/p2" && !*asked.Disabled:
			return 200, bob + "false}"
		}
		return 400, `{"code":400,"message":"wrong request"}`
	})
	code, out, errs := invoke(t, env, "person", "ls")
	if lines := strings.Split(out, "\n"); code != 0 || len(lines) != 4 || !strings.Contains(lines[1], "enabled") || !strings.Contains(lines[2], "disabled") || strings.Contains(out, "\x1b") {
		t.Errorf("list: %d %s %s", code, out, errs)
	}
	if code, out, errs := invoke(t, env, "person", "disable", "Ann@Example.com"); code != 0 || !strings.Contains(out, "disabled") {
		t.Errorf("disable: %d %s %s", code, out, errs)
	}
	if code, out, errs := invoke(t, env, "--json", "person", "enable", "p2"); code != 0 || !strings.Contains(out, `"disabled": false`) {
		t.Errorf("enable: %d %s %s", code, out, errs)
	}
	*had = nil
	if code, _, errs := invoke(t, env, "person", "disable", "p1", "eve@example.com"); code != 1 || !strings.Contains(errs, "eve@example.com") {
		t.Errorf("one who is not known: %d %s", code, errs)
	}
	if want := []string{"GET /cay/v1/admin/people"}; !slices.Equal(*had, want) {
		t.Errorf("it asked %v", *had)
	}
}

// A key whose budgets cannot all be made is removed, and not shown.
func TestKeyCreateBudgets(t *testing.T) {
	refuse := false
	var budgets []string
	env, had := recorder(t, func(request, body string) (int, string) {
		switch request {
		case "POST /cay/v1/api-keys":
			return 201, `{"id":"k1","name":"intern","key":"e2b_secret","mask":"e2b_…","createdAt":"2026-11-01T00:00:00Z","scopes":[]}`
		case "POST /cay/v1/budgets":
			if budgets = append(budgets, body); refuse && len(budgets) == 2 {
				return 400, `{"code":400,"message":"meter: there is none of that name"}`
			}
			return 201, `{"id":"b1","name":"intern","meter":"creates","limit":"5","period":"day","action":"refuse","used":"0","percent":0,"exhausted":false,"createdAt":"2026-11-01T00:00:00Z"}`
		}
		return 204, ""
	})
	args := []string{"key", "create", "intern", "--budget", "creates=5/day", "--budget", "money=20/month", "--action", "refuse"}
	code, out, errs := invoke(t, env, args...)
	if code != 0 || out != "e2b_secret\n" || len(budgets) != 2 {
		t.Fatalf("%d %s %s: %v", code, out, errs, budgets)
	}
	for i, want := range []string{`"meter":"creates"`, `"meter":"money"`} {
		for _, part := range []string{want, `"action":"refuse"`, `"k1"`} {
			if !strings.Contains(budgets[i], part) {
				t.Errorf("budget %d lacks %s: %s", i, part, budgets[i])
			}
		}
	}
	refuse, budgets, *had = true, nil, nil
	code, out, errs = invoke(t, env, args...)
	want := []string{"POST /cay/v1/api-keys", "POST /cay/v1/budgets", "POST /cay/v1/budgets", "DELETE /cay/v1/api-keys/k1", "DELETE /cay/v1/budgets/b1"}
	if code != 1 || strings.Contains(out+errs, "e2b_secret") || !strings.Contains(errs, "there is none") || !slices.Equal(*had, want) {
		t.Errorf("a wrong budget: %d %s %s: %v", code, out, errs, *had)
	}
	*had = nil
	for _, wrong := range []string{"creates", "creates=5", "=5/day", "creates=/day", "creates=5/"} {
		if code, _, errs := invoke(t, env, "key", "create", "intern", "--budget", wrong); code != 1 || !strings.Contains(errs, "--budget") || len(*had) > 0 {
			t.Errorf("%s: %d %s, asked %v", wrong, code, errs, *had)
		}
	}
}
