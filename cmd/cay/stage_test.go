package main

import "testing"

func TestStagePatterns(t *testing.T) {
	for _, test := range []struct{ src, dir, pattern string }{
		{"/out/bin", "/out/bin", ""}, {"/out/*.so", "/out", "*.so"}, {"/a/*/b", "/a", "*/b"}, {"/*", "/", "*"},
	} {
		if dir, pattern := globbed(test.src); dir != test.dir || pattern != test.pattern {
			t.Errorf("%s: %s and %s", test.src, dir, pattern)
		}
	}
	for _, test := range []struct {
		pattern, name string
		dir           bool
		want          string
		ok            bool
	}{
		{"", "a/b", false, "a/b", true}, {"*.so", "x.so", false, "x.so", true}, {"*.so", "y", false, "", false},
		{"*", "d", true, "d", false}, {"*", "d/f", false, "f", true}, {"*/b", "a/b/c", false, "c", true}, {"*/b", "a", true, "", false},
	} {
		if got, ok := matched(test.pattern, test.name, test.dir); ok != test.ok || ok && got != test.want {
			t.Errorf("%s of %s: %q, %v", test.name, test.pattern, got, ok)
		}
	}
}
