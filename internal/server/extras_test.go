package server

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
)

// What the operator asks for over the socket is answered with the error that
// the server had, kind and hint included.
func TestExtrasThatThereAreNot(t *testing.T) {
	cfg := config.Default()
	cfg.Run = t.TempDir()
	if err := AddExtra(t.Context(), cfg, "desktop", nil); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("without a server: %v", err)
	}
	s := &Server{cfg: cfg}
	if err := s.serveOperator(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"base", "none", "../collect", "a/b?c"} {
		if err := AddExtra(t.Context(), cfg, name, nil); cay.KindOf(err) != cay.NotFound {
			t.Errorf("%q: %v", name, err)
		}
		if err := RemoveExtra(t.Context(), cfg, name); cay.KindOf(err) != cay.NotFound {
			t.Errorf("removing %q: %v", name, err)
		}
	}
}
