package cay_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/use/compatibility.md has a column for every release that test/compat
// tries, so that a release that is added there is run before it lands.
func TestCompatibilityPageHasEveryRelease(t *testing.T) {
	versions, err := os.ReadFile("test/compat/versions.py")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/use/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	pairs := regexp.MustCompile(`\("(\d+\.\d+\.\d+)", "(\d+\.\d+\.\d+)"\)`).FindAllStringSubmatch(string(versions), -1)
	if len(pairs) < 12 {
		t.Fatalf("only %d releases are tried", len(pairs))
	}
	for _, pair := range pairs {
		if !strings.Contains(string(page), pair[1]+" with "+pair[2]) {
			t.Errorf("%s with %s is not on the page: make compat", pair[1], pair[2])
		}
	}
}
