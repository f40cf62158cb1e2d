package seal

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

func TestSeal(t *testing.T) {
	dir := t.TempDir()
	k, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	text := k.Seal([]byte("s3cret"), "row 1")
	if !Sealed(text) || strings.Contains(text, "s3cret") || text == k.Seal([]byte("s3cret"), "row 1") {
		t.Errorf("sealed as %q", text)
	}
	again, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Open(text, "row 1"); !bytes.Equal(got, []byte("s3cret")) || err != nil {
		t.Errorf("opened as %q, %v", got, err)
	}
	other, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() ([]byte, error){
		"another place": func() ([]byte, error) { return k.Open(text, "row 2") },
		"another key":   func() ([]byte, error) { return other.Open(text, "row 1") },
		"damaged":       func() ([]byte, error) { return k.Open(text[:len(text)-4]+"AAAA", "row 1") },
		"not sealed":    func() ([]byte, error) { return k.Open("s3cret", "row 1") },
		"nothing":       func() ([]byte, error) { return k.Open("", "") },
	} {
		if got, err := f(); cay.KindOf(err) != cay.Internal {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, File)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", st.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, File), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); cay.KindOf(err) != cay.Internal {
		t.Errorf("a damaged key: %v", err)
	}
}
