package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	const most = 64
	long := strings.Repeat("x", most)
	for _, c := range []struct {
		in    string
		lines []string
		ids   []int64 // of those that are too long
	}{
		{"", nil, nil},
		{"a\n\n b \r\nc", []string{"a", "", "b", "c"}, nil},
		{`{"id":7,"result":"` + long + `"}` + "\nnext\n", []string{"next"}, []int64{7}},
		{`{"result":{"id":1,"a":["` + long + `"]},"id" : 8 }` + "\n", nil, []int64{8}},
		{`{"result":"\"id\":1,` + long + `\\","id":9}`, nil, []int64{9}},
		{`{"id":"10","result":"` + long + `"}`, nil, []int64{0}},
		{`[{"id":11,"result":"` + long + `"}]`, nil, []int64{0}},
		{long + "\n{\"id\":12", []string{`{"id":12`}, []int64{0}},
	} {
		l := newLines(strings.NewReader(c.in), most)
		var lines []string
		var ids []int64
		for {
			line, long, err := l.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if long != nil {
				ids = append(ids, long.id)
				continue
			}
			lines = append(lines, string(line))
		}
		if strings.Join(lines, "|") != strings.Join(c.lines, "|") || len(ids) != len(c.ids) {
			t.Errorf("%q: lines %q, ids %v", c.in, lines, ids)
			continue
		}
		for i := range ids {
			if ids[i] != c.ids[i] {
				t.Errorf("%q: ids %v, not %v", c.in, ids, c.ids)
			}
		}
	}
}

// The id that is found without keeping a message is that which JSON's own reader
// finds, in whatever parts the message comes.
func FuzzIDScanner(f *testing.F) {
	for _, s := range []string{
		`{"id":7,"result":"x"}`, `{"result":{"id":1},"id":8}`, `{"a":"\"id\":1","id":-9}`, `{"id":"7"}`, `{"id":null}`,
		`{"id":{"id":3}}`, `{"a\u0062":1,"id":4}`, `[1,{"id":2}]`, `{"id":1e3}`, `{}`, `{"id":12345678901234567890123456789}`, `{"\u0069d":5}`,
	} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		var s idScanner
		at = min(max(at, 0), len(text))
		s.write(text[:at])
		s.write(text[at:])
		got := s.number()
		var fields map[string]json.RawMessage
		if json.Unmarshal(text, &fields) != nil || bytes.Contains(text, []byte(`\`)) {
			return // it is enough that nothing breaks
		}
		if bytes.Count(text, []byte(`"id"`)) != 1 {
			return // which of two counts is the writer's own doubt
		}
		var want int64
		if raw, ok := fields["id"]; ok && json.Unmarshal(raw, &want) != nil {
			want = 0
		}
		if got != want {
			t.Errorf("%q: %d, not %d", text, got, want)
		}
	})
}

// A peer of a server that writes any bytes comes to the end of it.
func FuzzPeer(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"id":1,"error":{"code":1,"message":"m"}}`, `{"id":1,"error":null}`, `{"method":"notifications/progress","params":{"progressToken":1}}`,
		`{"method":"notifications/tools/list_changed"}`, "noise\n{\n}\n[]\n\"\"", `{"id":1.5,"result":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(_ *testing.T, text []byte) {
		p := &peer{notify: func(string, json.RawMessage) {}, junk: func([]byte) {}, pending: map[int64]*pending{}, done: make(chan struct{}), broken: make(chan struct{})}
		one := &pending{answer: make(chan answer, 1), progress: func(json.RawMessage) {}}
		p.pending[1] = one
		// A request of the server is answered, which the real parts are tested for.
		if !bytes.Contains(text, []byte(`method`)) {
			p.read(newLines(bytes.NewReader(text), 1<<10))
			<-one.answer
		}
	})
}
