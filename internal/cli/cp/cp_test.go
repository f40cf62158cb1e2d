package cp

import "testing"

func TestPlace(t *testing.T) {
	for in, want := range map[string][2]string{
		"i123:/a":   {"i123", "/a"},
		"i123:":     {"i123", ""},
		"./a:b":     {"", "./a:b"},
		"/tmp/x":    {"", "/tmp/x"},
		"-":         {"", "-"},
		"i123:a:b":  {"i123", "a:b"},
		"C-x:whole": {"", "C-x:whole"},
	} {
		if id, path := Place(in); id != want[0] || path != want[1] {
			t.Errorf("Place(%q) = %q, %q", in, id, path)
		}
	}
}
