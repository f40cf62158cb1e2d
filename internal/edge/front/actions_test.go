package front

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cay-run/cay"
)

// One action on sandboxes of several nodes has an outcome for each, whatever has become of
// their nodes.
func TestActions(t *testing.T) {
	db, a, b := pair(t)
	adopted := atomic.Bool{}
	for _, n := range []*node{a, b} {
		n.front.cfg.Adopt = func(context.Context, cay.SandboxID) error { adopted.Store(true); return nil }
	}
	acts := func(n *node) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var body struct {
				Action     string
				SandboxIDs []string
			}
			text, _ := io.ReadAll(r.Body)
			if json.Unmarshal(text, &body) != nil || body.Action != "kill" || len(body.SandboxIDs) > 9 {
				http.Error(w, fmt.Sprintf("%s refuses", n.id), http.StatusBadRequest)
				return
			}
			out := []map[string]any{}
			for _, id := range body.SandboxIDs {
				id, _, _ = strings.Cut(id, "-")
				out = append(out, map[string]any{"sandboxID": id, "error": map[string]any{"code": 404, "message": "of " + string(n.id)}})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"outcomes": out})
		}
	}
	breaks := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	denies := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "denied", http.StatusUnauthorized) }
	onA, onB, over, asleep := string(put(t, db, "na")), string(put(t, db, "nb")), string(put(t, db, "gone")), string(putPaused(t, db, "gone"))
	ids := []string{onB, over, "inone", asleep, onA + "-client"}
	act := func(action string, ids []string) (int, []string) {
		t.Helper()
		body, _ := json.Marshal(map[string]any{"action": action, "sandboxIDs": ids})
		resp, text := ask(t, a, "POST", actions, strings.NewReader(string(body)))
		if resp.StatusCode != http.StatusOK {
			return resp.StatusCode, []string{strings.TrimSpace(text)}
		}
		var told struct {
			Outcomes []struct {
				SandboxID string
				Error     struct {
					Code      int
					Message   string
					ErrorCode string `json:"error_code"`
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &told); err != nil || len(told.Outcomes) != len(ids) {
			t.Fatalf("%s: %v", text, err)
		}
		var out []string
		for i, o := range told.Outcomes {
			if id, _, _ := strings.Cut(ids[i], "-"); o.SandboxID != id {
				t.Errorf("outcome %d is of %s, not %s", i, o.SandboxID, id)
			}
			out = append(out, fmt.Sprint(o.Error.Code, " ", o.Error.ErrorCode, o.Error.Message))
		}
		return http.StatusOK, out
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = string(cay.NewSandboxID())
	}
	away := "503 node_unavailablenode nb does not answer: the connection to it broke, and the request may have been carried out"
	for _, x := range []struct {
		name   string
		b      http.HandlerFunc
		action string
		ids    []string
		status int
		want   []string // outcomes, or the answer; ? stands for either node
	}{
		{"all nodes", acts(b), "kill", ids, 200, []string{"404 of nb", "404 of na", "404 of na", "404 of n?", "404 of na"}},
		{"one breaks off", breaks, "kill", []string{onA, onB}, 200, []string{"404 of na", away}},
		{"one denies", denies, "kill", []string{onB, onA}, 200, []string{"500 its node refuses", "404 of na"}},
		{"the only one breaks off", breaks, "kill", []string{onB}, 503, nil},
		{"the only one denies", denies, "kill", []string{onB}, 401, []string{"denied"}},
		{"no such action", acts(b), "eat", []string{onB, onA}, 400, nil},
		{"too many", breaks, "kill", append(many, onB), 400, []string{"na refuses"}},
		{"one twice", acts(b), "kill", []string{onB, onB}, 200, []string{"404 of na", "404 of na"}}, // by the node that leads, which says that
	} {
		a.answer(acts(a))
		b.answer(x.b)
		status, got := act(x.action, x.ids)
		if status != x.status || x.want != nil && !slices.EqualFunc(got, x.want, func(got, want string) bool {
			return got == want || strings.HasSuffix(want, "?") && strings.HasPrefix(got, strings.TrimSuffix(want, "?"))
		}) {
			t.Errorf("%s: %d %q", x.name, status, got)
		}
	}
	if !adopted.Load() {
		t.Error("no node has taken the sandbox whose own is gone")
	}
}
