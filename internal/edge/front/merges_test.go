package front

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

func TestMerges(t *testing.T) {
	line := func(at, id, text string) string {
		return `{"fields":{},"level":"info","message":"` + text + `","sandboxID":"` + id + `","timestamp":"2026-01-01T00:00:` + at + `Z"}`
	}
	logs := func(complete string, lines ...string) string {
		return `{"complete":` + complete + `,"lines":[` + strings.Join(lines, ",") + `],"sandboxes":2}`
	}
	for name, one := range map[string]struct {
		query   string
		bodies  []string
		missing []cay.NodeID
		want    string
	}{
		"newest first, of all nodes": {
			"/cay/v1/logs", []string{logs("true", line("03", "a", "x"), line("01", "a", "y")), logs("true", line("02", "b", "z"))}, nil,
			`{"lines":[` + line("03", "a", "x") + "," + line("02", "b", "z") + "," + line("01", "a", "y") + `],"complete":true,"sandboxes":4}`,
		},
		"parts of a second": {
			"/cay/v1/logs", []string{logs("true", line("03.5", "a", "x")), logs("true", line("03.25", "b", "z"), line("03", "b", "z"))}, nil,
			`{"lines":[` + line("03.5", "a", "x") + "," + line("03.25", "b", "z") + "," + line("03", "b", "z") + `],"complete":true,"sandboxes":4}`,
		},
		"a line of two nodes, and twice of one": {
			"/cay/v1/logs", []string{logs("true", line("03", "a", "x")), logs("true", line("03", "a", "x"), line("03", "a", "x"))}, nil,
			`{"lines":[` + line("03", "a", "x") + "," + line("03", "a", "x") + `],"complete":true,"sandboxes":4}`,
		},
		"more than the limit": {
			"/cay/v1/logs?limit=1", []string{logs("true", line("01", "a", "x")), logs("true", line("02", "a", "y"))}, nil,
			`{"lines":[` + line("02", "a", "y") + `],"complete":false,"sandboxes":4}`,
		},
		"one is not complete": {
			"/cay/v1/logs", []string{logs("false"), logs("true")}, nil, `{"lines":[],"complete":false,"sandboxes":4}`,
		},
		"nodes without an answer": {
			"/cay/v1/logs", []string{logs("true")}, []cay.NodeID{"nb", "nc"}, `{"lines":[],"complete":false,"sandboxes":2,"unanswered":["nb","nc"]}`,
		},
		"disks": {
			"/cay/v1/disk-use", []string{`[{"templateID":"t1","ownBytes":5,"sharedBytes":2}]`, `[]`, `[{"templateID":"t1","ownBytes":6,"sharedBytes":0},{"templateID":"t2","ownBytes":1,"sharedBytes":1}]`}, nil,
			`[{"templateID":"t1","ownBytes":11,"sharedBytes":2},{"templateID":"t2","ownBytes":1,"sharedBytes":1}]`,
		},
		"no templates": {"/cay/v1/disk-use", []string{`[]`, `[]`}, nil, `[]`},
	} {
		all := ofAll(httptest.NewRequest("GET", one.query, nil))
		var bodies [][]byte
		for _, b := range one.bodies {
			bodies = append(bodies, []byte(b))
		}
		out, err := all.merge(bodies)
		if err == nil && one.missing != nil {
			all.missing(out, one.missing)
		}
		got, _ := json.Marshal(out)
		if err != nil || string(got) != one.want {
			t.Errorf("%s: %v\n%s\nnot\n%s", name, err, got, one.want)
		}
		if _, err := all.merge([][]byte{[]byte("no JSON")}); err == nil {
			t.Errorf("%s: what is no JSON is taken", name)
		}
	}
}
