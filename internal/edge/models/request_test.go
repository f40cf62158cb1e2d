package models

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

func TestEstimate(t *testing.T) {
	for body, most := range map[string]int64{
		`{"model":"m"}`: 0, `{"model":"m","max_tokens":9}`: 9, `{"max_completion_tokens":9,"model":"m","max_tokens":7}`: 9, `{"model":"m","max_output_tokens":1000}`: 1000,
		`{"model":"m","max_tokens":-1}`: 0, `{"model":"m","max_tokens":"many"}`: 0, `{"model":"m","max_tokens":1e400}`: 0, `{"model":"m","max_tokens":9223372036854775807}`: maxTokens, `{"model":"m","max_tokens":null}`: 0,
	} {
		q, err := readQuestion([]byte(body))
		if got := q.estimate(); err != nil || got != int64(len(body))/bytesOfToken+most {
			t.Errorf("%s: %d, %v", body, got, err)
		}
	}
}

func TestQuestion(t *testing.T) {
	for _, test := range []struct {
		name, body string
		named      string // the body with the model "other/ü"
		counted    string // and with its usage; empty where that is not asked for
	}{
		{"plain", `{"model":"m"}`, `{"model":"other/ü"}`, ""},
		{"a stream", `{"model":"m","stream":true}`, `{"model":"other/ü","stream":true}`, `{"model":"other/ü","stream":true,"stream_options":{"include_usage":true}}`},
		{"no stream", `{"model":"m","stream":false,"x":[1, 2 ,{"model":"n"}]}`, `{"model":"other/ü","stream":false,"x":[1, 2 ,{"model":"n"}]}`, ""},
		{"spaces", " {\n\t\"stream\" : true , \"x\":\"\\u0000\", \"model\" :  \"m\"\n} \n", " {\n\t\"stream\" : true , \"x\":\"\\u0000\", \"model\" :  \"other/ü\"\n} \n",
			" {\n\t\"stream\" : true , \"x\":\"\\u0000\", \"model\" :  \"other/ü\"\n,\"stream_options\":{\"include_usage\":true}} \n"},
		{"options", `{"stream_options":{"x":1},"model":"m","stream":true}`, `{"stream_options":{"x":1},"model":"other/ü","stream":true}`, `{"stream_options":{"include_usage":true,"x":1},"model":"other/ü","stream":true}`},
		{"empty options", `{"model":"m","stream":true,"stream_options":{ }}`, `{"model":"other/ü","stream":true,"stream_options":{ }}`, `{"model":"other/ü","stream":true,"stream_options":{"include_usage":true }}`},
		{"null options", `{"model":"m","stream":true,"stream_options":null}`, `{"model":"other/ü","stream":true,"stream_options":null}`, `{"model":"other/ü","stream":true,"stream_options":{"include_usage":true}}`},
		{"no usage", `{"stream_options":{"a":{}, "include_usage" : false},"model":"m","stream":true}`, `{"stream_options":{"a":{}, "include_usage" : false},"model":"other/ü","stream":true}`,
			`{"stream_options":{"a":{}, "include_usage" : true},"model":"other/ü","stream":true}`},
		{"usage already", `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, `{"model":"other/ü","stream":true,"stream_options":{"include_usage":true}}`, ""},
		{"options that are none", `{"model":"m","stream":true,"stream_options":7}`, `{"model":"other/ü","stream":true,"stream_options":7}`, ""},
		{"an escaped name", `{"\u006dodel":"\u006d"}`, `{"\u006dodel":"other/ü"}`, ""},
	} {
		q, err := readQuestion([]byte(test.body))
		if err != nil || q.model != "m" {
			t.Errorf("%s: %q, %v", test.name, q.model, err)
			continue
		}
		if same := q.named("m"); string(same.body) != test.body {
			t.Errorf("%s: the same name made it %s", test.name, same.body)
		}
		named := q.named("other/ü")
		if string(named.body) != test.named {
			t.Errorf("%s: named %s, want %s", test.name, named.body, test.named)
		}
		counted, asked := named.counted()
		if want := test.counted; asked != (want != "") || asked && string(counted.body) != want {
			t.Errorf("%s: counted %s, %v, want %s", test.name, counted.body, asked, want)
		}
		if string(q.body) != test.body {
			t.Errorf("%s: the body was changed in place: %s", test.name, q.body)
		}
	}
	for name, body := range map[string]string{
		"nothing": "", "no JSON": "hello", "an array": `["model"]`, "a text": `"model"`, "cut": `{"model":"m"`, "cut within": `{"model":"m`, "no model": `{"stream":true}`,
		"a number": `{"model":1}`, "an empty model": `{"model":""}`, "two": `{"model":"m","model":"n"}`, "two, one escaped": `{"model":"m","\u006dodel":"n"}`,
		"another spelling": `{"model":"m","Model":"n"}`, "another spelling alone": `{"MODEL":"n"}`, "two streams": `{"model":"m","stream":false,"stream":true}`,
		"a stream that is none": `{"model":"m","stream":"yes"}`, "more behind it": `{"model":"m"} {"model":"n"}`, "in the background": `{"model":"m","background":true}`,
		"a long model": `{"model":"` + strings.Repeat("m", cay.MaxModelName+1) + `"}`, "deep": `{"model":"m","x":` + strings.Repeat("[", 20000),
	} {
		if _, err := readQuestion([]byte(body)); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzQuestion holds what is changed of a body to the model and the option.
func FuzzQuestion(f *testing.F) {
	f.Add(`{"model":"m","stream":true,"stream_options":{"x":[1]}}`)
	f.Add("{\"a\": -1e5 ,\"stream\":true, \"model\":\"\\ud800\" }\n")
	f.Fuzz(func(t *testing.T, body string) {
		q, err := readQuestion([]byte(body))
		if err != nil {
			return
		}
		parts := func(b []byte) map[string]json.RawMessage {
			var out map[string]json.RawMessage
			if err := json.Unmarshal(b, &out); err != nil {
				t.Fatalf("%q became %q, which is no object: %v", body, b, err)
			}
			return out
		}
		before, named := parts(q.body), q.named("the other")
		counted, asked := named.counted()
		after := parts(counted.body)
		if string(after["model"]) != `"the other"` {
			t.Errorf("%q asks for %s", counted.body, after["model"])
		}
		if asked {
			var options map[string]any
			if json.Unmarshal(after["stream_options"], &options) != nil || options["include_usage"] != true {
				t.Errorf("%q asks for %s", counted.body, after["stream_options"])
			}
		}
		for _, m := range []map[string]json.RawMessage{before, after} {
			delete(m, "model")
			if asked {
				delete(m, "stream_options")
			}
		}
		if len(before) != len(after) {
			t.Errorf("%q has other members than %q", counted.body, body)
		}
		for name, value := range before {
			if !bytes.Equal(after[name], value) {
				t.Errorf("%q: %q is %q", body, name, after[name])
			}
		}
	})
}
