package historytest

import (
	"slices"
	"testing"
)

// A history is explained by one sandbox that fails as faults allow, or by nothing.
func TestCheck(t *testing.T) {
	ok := Said{Clear: true}
	value := func(s string) Said { return Said{Clear: true, Value: s} }
	gone, busy, lost := Said{Clear: true, Gone: true}, Said{Clear: true, Busy: true}, Said{}
	type call struct {
		what, value string
		said        Said
	}
	for _, tt := range []struct {
		name  string
		loss  bool
		right bool
		calls []call
	}{
		{"a value is read back", false, true, []call{{"write", "a", ok}, {"read", "", value("a")}}},
		{"a value is forgotten", false, false, []call{{"write", "a", ok}, {"read", "", value("")}}},
		{"a pause keeps the value", false, true, []call{{"write", "a", ok}, {"pause", "", ok}, {"read", "", busy}, {"connect", "", ok}, {"read", "", value("a")}}},
		{"a pause forgets the value", false, false, []call{{"write", "a", ok}, {"pause", "", ok}, {"connect", "", ok}, {"read", "", value("")}}},
		{"a sandbox that runs is not there", false, false, []call{{"write", "a", ok}, {"read", "", busy}}},
		{"a sandbox is gone, which was not ended", false, false, []call{{"write", "a", ok}, {"info", "", gone}}},
		{"a kill without an answer came later", false, true, []call{{"kill", "", lost}, {"write", "a", ok}, {"info", "", gone}}},
		{"what is over is back", false, false, []call{{"kill", "", ok}, {"info", "", value("running")}}},
		{"a pause without an answer is undone", false, true, []call{{"pause", "", lost}, {"info", "", value("paused")}, {"read", "", value("")}}},
		{"a write is refused while a pause is tried", false, true, []call{{"pause", "", lost}, {"write", "a", busy}, {"read", "", value("")}}},
		{"a write is refused by one that runs", false, false, []call{{"write", "a", busy}, {"read", "", value("")}}},
		{"a pause without an answer is undone, and forgets", false, false, []call{{"write", "a", ok}, {"pause", "", lost}, {"read", "", value("")}}},
		{"what runs is lost with its machine", false, true, []call{{"lose", "", lost}, {"read", "", gone}}},
		{"what is paused is lost with a machine", false, false, []call{{"pause", "", ok}, {"lose", "", lost}, {"connect", "", gone}}},
		{"it goes on from a checkpoint", true, true, []call{{"write", "a", ok}, {"checkpoint", "", ok}, {"write", "b", ok}, {"lose", "", lost}, {"read", "", value("a")}}},
		{"it goes on unasked", false, false, []call{{"write", "a", ok}, {"checkpoint", "", ok}, {"write", "b", ok}, {"lose", "", lost}, {"read", "", value("a")}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := New()
			h.made("s", 0, tt.loss)
			for _, c := range tt.calls {
				h.add("s", 0, Act{What: c.what, Value: c.value}, h.Now(), c.said)
			}
			if got := h.Check(); (len(got.Wrong) == 0) != tt.right {
				t.Error(slices.Concat([]string{"judged:"}, got.Wrong))
			}
		})
	}
}
