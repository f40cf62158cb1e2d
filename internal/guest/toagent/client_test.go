package toagent

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
)

// TestWaitReadyAsksOverOneConnection: what it leaves in a guest is kept by the
// snapshot of a template.
func TestWaitReadyAsksOverOneConnection(t *testing.T) {
	var asked, connections atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) < 5 {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	if err := New(at.Addr()).WaitReady(t.Context(), int(at.Port())); err != nil {
		t.Fatal(err)
	}
	if asked.Load() != 5 || connections.Load() != 1 {
		t.Errorf("asked %d times over %d connections, want 5 over 1", asked.Load(), connections.Load())
	}
}
