package near

import (
	"slices"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	words := []string{"CAY_DATA_DIR", "CAY_DATABASE_URL", "CAY_PORT_RANGE", "fork", "run_code", "list_files", "list_sandboxes"}
	for word, want := range map[string][]string{
		"CAY_DATA":                 {"CAY_DATA_DIR", "CAY_DATABASE_URL"},
		"cay_port_rang":            {"CAY_PORT_RANGE"},
		"for":                      {"fork"},
		"list":                     {"list_files", "list_sandboxes"},
		"runcode":                  {"run_code"},
		"":                         nil,
		"qqqqqqqqqqqq":             nil,
		strings.Repeat("x", 1<<20): nil,
	} {
		if got := Words(word, words); !slices.Equal(got, want) {
			t.Errorf("near %.20q are %q, want %q", word, got, want)
		}
	}
	if got := Words("word", slices.Repeat([]string{"words"}, 9)); len(got) != 5 {
		t.Errorf("%d words are near", len(got))
	}
}
