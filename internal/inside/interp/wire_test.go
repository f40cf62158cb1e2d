package interp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	key := []byte("key")
	frames, err := encode(key, header{ID: "1", Type: "stream"}, map[string]string{"name": "stdout"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := decode(key, append([][]byte{[]byte("topic")}, frames...))
	if err != nil || m.header.ID != "1" || string(m.content) != `{"name":"stdout"}` {
		t.Fatalf("%v: %v", m, err)
	}
	if _, err := decode([]byte("other"), frames); err == nil {
		t.Fatal("a forged message passes")
	}
	if _, err := decode(key, frames[:4]); err == nil {
		t.Fatal("half a message passes")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"msg_id":"1","msg_type":"stream"}`), []byte(`{"msg_id":"2"}`), []byte(`{"name":"stdout","text":"a"}`))
	f.Add([]byte(`{"msg_type":"display_data"}`), []byte(`{}`), []byte(`{"data":{"text/plain":"'","x":[1],"image/png":1}}`))
	f.Add([]byte(`{"msg_type":"error"}`), []byte(`null`), []byte("{\"evalue\":\"\\u001b[\"}"))
	f.Fuzz(func(t *testing.T, head, parent, content []byte) {
		parts := [][]byte{head, parent, []byte("{}"), content}
		m, err := decode(nil, append([][]byte{[]byte(delimiter), sign(nil, parts)}, parts...))
		if err != nil {
			return
		}
		tr := &translator{emit: func(ev any) {
			line, err := marshal(ev)
			if err != nil {
				t.Fatal(err)
			}
			checkLine(t, line, ev)
		}}
		tr.message(m)
	})
}

// checkLine fails unless line is one line of ASCII that says ev.
func checkLine(t *testing.T, line []byte, ev any) {
	t.Helper()
	text, found := bytes.CutSuffix(line, []byte("\n"))
	if !found || bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > 0x7f }) {
		t.Fatalf("%q is no line of ASCII", line)
	}
	plain, err := json.Marshal(ev)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := errors.Join(json.Unmarshal(text, &got), json.Unmarshal(plain, &want)); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%q says %v, not %v: %v", line, got, want, err)
	}
}

func TestLinesAreASCII(t *testing.T) {
	for _, text := range []string{"", "plain <b>&", "\u0080\u0085\u009f", "é\u2028\uffff", "\U00010000😀\U0010ffff", "\x7f", "cut \xf0\x9f"} {
		ev := streamEvent{Type: "stdout", Text: text}
		line, err := marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		checkLine(t, line, ev)
	}
}

func TestHalvesOfPairsAreReplaced(t *testing.T) {
	for _, c := range [][2]string{
		{`"\ud83d"`, `"\ufffd"`}, {`"\ude00"`, `"\ufffd"`}, {`"\ud83d\ude00"`, `"\ud83d\ude00"`},
		{`"\ude00\ud83d"`, `"\ufffd\ufffd"`}, {`"\ud83d\ud83d\ude00"`, `"\ufffd\ud83d\ude00"`},
		{`"\\ud83d"`, `"\\ud83d"`}, {`"\\\ud83d"`, `"\\\ufffd"`}, {`"\ud83dx\n"`, `"\ufffdx\n"`},
		{`{"\udfff":["a","\uD83D\uDE00\ud83d\u0041"]}`, `{"\ufffd":["a","\uD83D\uDE00\ufffd\u0041"]}`}, {`"plain"`, `"plain"`},
	} {
		if got := string(wellFormed([]byte(c[0]))); got != c[1] {
			t.Errorf("%s gives %s, want %s", c[0], got, c[1])
		}
	}
}

// FuzzTellLines reads what a kernel of ours says, in pieces.
func FuzzTellLines(f *testing.F) {
	f.Add([]byte(`{"type":"done","id":1}`+"\n"+`{"type":"result","data":{"text/plain":"1"},"main":true}`+"\n"), uint(7))
	f.Add([]byte(`{"type":"result","data":{"x":1e999}}`+"\n{"), uint(1))
	f.Add([]byte("null\n[]\n\n"), uint(3))
	f.Fuzz(func(t *testing.T, data []byte, cut uint) {
		k := &lines{process: &process{done: make(chan struct{})}}
		at := int(cut % uint(len(data)+1))
		var half []byte
		for _, piece := range [][]byte{data[:at], data[at:]} {
			var err error
			if half, err = k.tellLines(append(half, piece...), len(half)); err != nil {
				return
			}
		}
		if bytes.IndexByte(half, '\n') >= 0 {
			t.Fatalf("a whole line is left: %q", half)
		}
	})
}

// TestHeldText prints in pieces: pieces of one output that arrive together are one
// event, in the order in which the outputs were written.
func TestHeldText(t *testing.T) {
	k := &lines{process: &process{done: make(chan struct{})}}
	sub := k.listen()
	go func() {
		for _, piece := range [][2]string{{"stdout", "[1]"}, {"stdout", " 1"}, {"stdout", "\n"}, {"stderr", "warn"}, {"stdout", "2\n"}} {
			k.hold(piece[0], piece[1])
		}
		if k.patience() != moreLines {
			t.Error("a whole line waits for its rest")
		}
		k.tellHeld()
		k.tellHeld() // nothing
		k.hold("stdout", strings.Repeat("x", pipeSize))
		if k.patience() > 0 {
			t.Error("a full pipe waits")
		}
		close(sub.events)
	}()
	var got []string
	for ev := range sub.events {
		got = append(got, ev.Type+": "+ev.Text[:min(len(ev.Text), 9)])
	}
	if want := []string{"stdout: [1] 1\n", "stderr: warn", "stdout: 2\n", "stdout: xxxxxxxxx"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStripANSI(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "\x1b[0;31mred\x1b[0m": "red", "a\x1b[": "a", "a\x1b[1": "a",
	} {
		if got := stripANSI(in); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}

func TestResult(t *testing.T) {
	got, err := marshal(newResult(map[string]json.RawMessage{
		"text/plain": raw(`"'x'"`), "image/png": raw(`"aGk=\n"`), "e2b/data": raw(`{"b": [1.0], "a": []}`),
		"a/b": raw("1e2"), "text/html": raw("null"), "image/jpeg": raw("[1]"), "text/markdown": raw(`"\ud800"`),
	}, true))
	want := `{"data":{"b":[1.0],"a":[]},"extra":{"a/b":1e2},"is_main_result":true,"jpeg":[1],"markdown":"\ufffd",` +
		`"png":"aGk=","text":"x","type":"result"}` + "\n"
	if err != nil || string(got) != want {
		t.Fatalf("%v: got %s, want %s", err, got, want)
	}
}

func raw(text string) json.RawMessage { return json.RawMessage(text) }

// FuzzResult has a kernel show a value of JSON in every form of a result that
// may be one, over Jupyter's line and over that of our kernels: what the client
// gets is that value, sign for sign.
func FuzzResult(f *testing.F) {
	for _, value := range []string{
		"9007199254740993", "-18446744073709551617", "1.0", "-0.0", "1e400", "0.1000", `{"b": 1, "a": [1.50, {}]}`,
		`"\u00e9 é \ud800 \u2028"`, `{"a": 1, "a": 2}`, "null", "[\n]", "123456789012345678901234567890.0E-7",
	} {
		f.Add([]byte(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		var plain bytes.Buffer
		if json.Compact(&plain, value) != nil || plain.String() == "null" {
			return
		}
		want := string(ascii(wellFormed(plain.Bytes())))
		data := fmt.Sprintf(`{"application/json":%s,"e2b/data":%[1]s,"e2b/chart":%[1]s,"x/y":%[1]s}`, value)
		var events []any
		tr := &translator{emit: func(ev any) { events = append(events, ev) }}
		tr.message(&message{header: header{Type: "display_data"}, content: raw(`{"data":` + data + `}`)})
		var ev lineEvent
		line := bytes.ReplaceAll([]byte(`{"type":"result","data":`+data+`}`), []byte("\n"), []byte(" "))
		if err := json.Unmarshal(line, &ev); err != nil {
			t.Fatal(err)
		}
		for _, ev := range append(events, newResult(ev.Data, false)) {
			text, err := marshal(ev)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				JSON, Data, Chart json.RawMessage
				Extra             map[string]json.RawMessage
			}
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			for _, form := range []json.RawMessage{got.JSON, got.Data, got.Chart, got.Extra["x/y"]} {
				if string(form) != want {
					t.Fatalf("%s came as %s", want, form)
				}
			}
		}
	})
}

func TestOnlyTheFirstError(t *testing.T) {
	var events []any
	tr := &translator{emit: func(ev any) { events = append(events, ev) }}
	for range 2 {
		tr.message(&message{header: header{Type: "error"}, content: []byte(`{"ename":"E"}`)})
	}
	if len(events) != 1 {
		t.Fatalf("got %v", events)
	}
}
