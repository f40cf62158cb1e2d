package models

import (
	"strings"
	"testing"
)

const (
	chatStream = "data: {\"choices\":[{\"delta\":{\"content\":\"a\\n\\nb\"}}],\"usage\":null}\n\n: ping\n\n" +
		"data: {\"choices\":[{\"delta\":{}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":7,\"total_tokens\":18}}\n\ndata: [DONE]\n\n"
	responsesStream = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n" +
		"event: response.completed\r\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":6,\"input_tokens_details\":{\"cached_tokens\":4}}}}\r\n\r\n"
	messagesStream = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"cache_creation_input_tokens\":3,\"cache_read_input_tokens\":20,\"output_tokens\":1}}}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"\\\"usage\\\": {\\\"output_tokens\\\": 0}\"}}\n\n"
	messagesEnd = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":40}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
)

func TestMeter(t *testing.T) {
	for _, test := range []struct {
		name    string
		streams bool
		text    string
		in, out int64
	}{
		{"chat", false, `{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":0}"}}],"usage":{"prompt_tokens":11,"completion_tokens":7}}`, 11, 7},
		{"responses", false, `{"usage":{"input_tokens":5,"output_tokens":6,"output_tokens_details":{"reasoning_tokens":3}}}`, 5, 6},
		{"messages", false, `{"type":"message","usage":{"input_tokens":10,"cache_read_input_tokens":20,"output_tokens":4}}`, 30, 4},
		{"embeddings", false, `{"data":[],"usage":{"prompt_tokens":9,"total_tokens":9}}`, 9, 0},
		{"no usage", false, strings.Repeat("x", 401), 25, 101},
		{"usage that is none", false, `{"usage":"none"}`, 25, 4},
		{"usage below zero", false, `{"usage":{"prompt_tokens":-5,"completion_tokens":-9}}`, 25, 0},
		{"usage that is too much", false, `{"usage":{"prompt_tokens":9000000000000000000,"input_tokens":9000000000000000000}}`, 2 << 40, 0},
		{"a stream of chat", true, chatStream, 11, 7},
		{"a stream of responses", true, responsesStream, 5, 6},
		{"a stream of messages", true, messagesStream + messagesEnd, 33, 40},
		{"a stream of messages that is cut", true, messagesStream, 33, 2},
		{"a stream of chat that is cut", true, chatStream[:strings.Index(chatStream, "data: {\"choices\":[],")], 25, 2},
		{"a stream without its last end", true, strings.TrimRight(strings.TrimSuffix(chatStream, "data: [DONE]\n\n"), "\n"), 11, 7},
		{"a stream with a long line", true, "data: " + strings.Repeat("x", maxLine) + "\n\n" + chatStream, 11, 7},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			m := meter{streams: test.streams}
			for text := test.text; text != ""; {
				n := min(size, len(text))
				m.take([]byte(text[:n]))
				text = text[n:]
			}
			if in, out := m.tokens(100); in != test.in || out != test.out {
				t.Errorf("%s, by %d bytes: %d and %d, want %d and %d", test.name, size, in, out, test.in, test.out)
			}
			if len(m.kept) > maxLine {
				t.Errorf("%s: %d bytes are kept", test.name, len(m.kept))
			}
		}
	}
}

// FuzzStrip holds what is left out of a stream to the event of the usage, however the
// stream is cut into pieces.
func FuzzStrip(f *testing.F) {
	f.Add(chatStream, 1)
	f.Add(responsesStream+messagesStream+messagesEnd, 3)
	f.Add("data: x\r\n\r\n\n\ndata: {\"choices\":[],\"usage\":{}}\r\n\r\nrest", 2)
	f.Add("data: "+strings.Repeat("y", maxLine)+"\n\n"+chatStream, 4096)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size = 1 + max(size, -size)%(1<<16)
		var s strip
		var got strings.Builder
		for left := text; left != ""; {
			n := min(size, len(left))
			got.Write(s.take([]byte(left[:n])))
			left = left[n:]
		}
		got.Write(s.rest())
		want := ""
		for left := text; ; {
			end := endOfEvent([]byte(left))
			if end == 0 {
				want += left
				break
			}
			if event := left[:end]; len(event) > maxLine || !isUsage([]byte(event)) {
				want += event
			}
			left = left[end:]
		}
		if got.String() != want {
			t.Errorf("by %d bytes %q became %q, want %q", size, text, got.String(), want)
		}
	})
}

func TestStripTakesTheUsageAlone(t *testing.T) {
	var s strip
	got := string(s.take([]byte(chatStream))) + string(s.rest())
	want := strings.Replace(chatStream, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":7,\"total_tokens\":18}}\n\n", "", 1)
	if got != want {
		t.Errorf("%q", got)
	}
}
