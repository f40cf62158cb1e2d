package runsc

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestFuseIsOne: the sentry is built in a module of its own, so the compiler
// does not see that the two figures belong together.
func TestFuseIsOne(t *testing.T) {
	text, err := os.ReadFile("../../../../cmd/cay-runsc/sentry/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("const fuse = %d << 20\n", memoryFuse); !strings.Contains(string(text), want) {
		t.Errorf("cmd/cay-runsc/sentry does not say %q", want)
	}
}
