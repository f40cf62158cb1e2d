package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// question is what the gateway has to know of a request's body. All else in it is
// the sandbox's and the provider's.
type question struct {
	body    []byte
	model   string
	stream  bool
	at      span  // of the value of model
	options span  // of the value of stream_options; empty for none
	most    int64 // tokens of the answer, as the sandbox bounds them; 0 where it does not
	object  span  // of the whole object
}

// span is a part of a body.
type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

// members are those of a body that are looked at. No other spelling of them is let
// through: a provider's reader may take it for the same.
var members = append([]string{"model", "stream", "stream_options", "background"}, bounds...)

// bounds are the members that bound the tokens of an answer, in any wire.
var bounds = []string{"max_tokens", "max_completion_tokens", "max_output_tokens"}

// readQuestion reads the body of a request.
func readQuestion(body []byte) (question, error) {
	q := question{body: body}
	found, object, err := membersOf(body, members...)
	if err != nil {
		return q, err
	}
	q.object, q.at, q.options = object, found["model"], found["stream_options"]
	if err := json.Unmarshal(q.at.of(body), &q.model); err != nil || q.model == "" || len(q.model) > cay.MaxModelName {
		return q, cay.Errorf(cay.Invalid, "model: must be a name of at most %d bytes", cay.MaxModelName)
	}
	if at, ok := found["stream"]; ok && json.Unmarshal(at.of(body), &q.stream) != nil {
		return q, cay.Errorf(cay.Invalid, "stream: must be true or false")
	}
	var background bool
	if at, ok := found["background"]; ok && (json.Unmarshal(at.of(body), &background) != nil || background) {
		return q, cay.Errorf(cay.Invalid, "background: the answer must come with the request").WithHint("stream it")
	}
	for _, name := range bounds {
		var n int64
		if at, ok := found[name]; ok && json.Unmarshal(at.of(body), &n) == nil { // else the provider says what is wrong
			q.most = max(q.most, min(n, maxTokens))
		}
	}
	return q, nil
}

// estimate is about how many tokens the request takes at most, as far as it says.
func (q question) estimate() int64 { return int64(len(q.body))/bytesOfToken + q.most }

// membersOf finds the values of some members of a JSON object, and the object. A
// member that is there twice, or in another spelling, is refused.
func membersOf(body []byte, names ...string) (found map[string]span, object span, err error) {
	wrong := cay.Errorf(cay.Invalid, "the body is no JSON object")
	dec := json.NewDecoder(bytes.NewReader(body))
	if first, err := dec.Token(); err != nil || first != json.Delim('{') {
		return nil, object, wrong
	}
	object.from = int(dec.InputOffset()) - 1
	found = map[string]span{}
	for dec.More() {
		name, err := dec.Token()
		key, ok := name.(string)
		var n size
		if err != nil || !ok || dec.Decode(&n) != nil {
			return nil, object, wrong
		}
		if !slices.ContainsFunc(names, func(m string) bool { return strings.EqualFold(m, key) }) {
			continue
		}
		if _, twice := found[key]; twice || !slices.Contains(names, key) {
			return nil, object, cay.Errorf(cay.Invalid, "%.40q is there twice, or in another spelling", key)
		}
		to := int(dec.InputOffset())
		found[key] = span{to - int(n), to}
	}
	if _, err := dec.Token(); err != nil {
		return nil, object, wrong
	}
	object.to = int(dec.InputOffset())
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, object, cay.Errorf(cay.Invalid, "something follows the JSON object of the body")
	}
	return found, object, nil
}

// size is how many bytes a JSON value has.
type size int

// UnmarshalJSON implements json.Unmarshaler without a copy.
func (n *size) UnmarshalJSON(b []byte) error {
	*n = size(len(b))
	return nil
}

// named is the question with another model's name in its body.
func (q question) named(model string) question {
	if model == q.model {
		return q
	}
	text, err := json.Marshal(model)
	if err != nil { // a string
		return q
	}
	q.model = model
	return q.with(q.at, text)
}

// counted is the question with a stream that ends with its usage. asked is false
// where the sandbox asks for that itself, or where it cannot be.
func (q question) counted() (out question, asked bool) {
	const usage = `"include_usage":true`
	given := q.options.of(q.body)
	switch {
	case !q.stream:
		return q, false
	case len(given) == 0: // before the end of the object, which has a member: the model
		return q.with(span{q.object.to - 1, q.object.to - 1}, []byte(`,"stream_options":{`+usage+`}`)), true
	case string(given) == "null":
		return q.with(q.options, []byte(`{`+usage+`}`)), true
	}
	found, object, err := membersOf(given, "include_usage")
	if err != nil {
		return q, false // the provider says what is wrong
	}
	at, there := found["include_usage"]
	switch {
	case there && string(at.of(given)) != "false":
		return q, false
	case there:
		at = span{q.options.from + at.from, q.options.from + at.to}
		return q.with(at, []byte("true")), true
	}
	begin := q.options.from + object.from + 1
	text := usage
	if len(bytes.TrimSpace(given[object.from+1:object.to-1])) > 0 {
		text += ","
	}
	return q.with(span{begin, begin}, []byte(text)), true
}

// with is the question with another text at a part of its body, and what it knows
// of the body moved by that.
func (q question) with(at span, text []byte) question {
	more := len(text) - (at.to - at.from)
	move := func(s span) span {
		moved := s
		if s.from >= at.to && s != at {
			moved.from += more
		}
		if s.to > at.to || s == at {
			moved.to += more
		}
		return moved
	}
	q.body = slices.Concat(q.body[:at.from], text, q.body[at.to:])
	q.at, q.options, q.object = move(q.at), move(q.options), move(q.object)
	return q
}
