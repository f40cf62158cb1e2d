package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
)

// A host that stands still for as long as a guest may take to answer finds it
// when it goes on; a guest that does not answer is given up all the same.
func TestLateDial(t *testing.T) {
	for name, tt := range map[string]struct{ answersFrom, tries int }{
		"late once": {answersFrom: 2, tries: 2},
		"never":     {answersFrom: 99, tries: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				l := newLane(Target{Addr: netip.MustParseAddr("192.0.2.1")}, func(ctx context.Context, network, _ string) (net.Conn, error) {
					if tries++; tries < tt.answersFrom {
						<-ctx.Done()
						return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
					}
					ours, theirs := net.Pipe()
					theirs.Close()
					return ours, nil
				})
				defer l.cut()
				_, err := l.connect(t.Context(), "tcp", "192.0.2.1:3000")
				if answers := tt.tries >= tt.answersFrom; (err == nil) != answers || !answers && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				if tries != tt.tries {
					t.Errorf("%d tries, want %d", tries, tt.tries)
				}
			})
		})
	}
}
