package operator

import (
	"context"
	"sync"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
)

// A request of the operator over the socket is answered with the error that
// the server had, kind and hint included.
func TestExtrasThatThereAreNot(t *testing.T) {
	cfg := config.Default()
	cfg.Run = t.TempDir()
	if err := Ask(cfg).AddExtra(t.Context(), "desktop", nil); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("without a server: %v", err)
	}
	d := New(Config{Host: Host(cfg)})
	l, err := d.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() { d.Serve(ctx, l) })
	defer func() { stop(); served.Wait() }()
	for _, name := range []string{"base", "none", "../collect", "a/b?c"} {
		if err := Ask(cfg).AddExtra(t.Context(), name, nil); cay.KindOf(err) != cay.NotFound {
			t.Errorf("%q: %v", name, err)
		}
		if err := Ask(cfg).RemoveExtra(t.Context(), name); cay.KindOf(err) != cay.NotFound {
			t.Errorf("removing %q: %v", name, err)
		}
	}
}
