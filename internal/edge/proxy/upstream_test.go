package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

// A host or a guest that stands still for a while is found when it goes on; a
// guest that does not answer is given up all the same.
func TestLateDial(t *testing.T) {
	late := context.DeadlineExceeded
	for name, tt := range map[string]struct {
		port    string
		errs    []error // of the tries, the last of which repeats; nil where one succeeds
		tries   int
		silence bool // is told
	}{
		"late once":               {"3000", []error{late, nil}, 2, false},
		"never":                   {"3000", []error{late}, 2, true},
		"late to the poller":      {"3000", []error{&net.OpError{Err: os.ErrDeadlineExceeded}, nil}, 2, false},
		"no link address at once": {"3000", []error{syscall.EHOSTUNREACH, nil}, 2, false},
		"no link address":         {"3000", []error{syscall.EHOSTUNREACH}, 2, true},
		"closed":                  {"3000", []error{syscall.ECONNREFUSED}, 1 + len(dialPauses), false},
		"late, then closed":       {"3000", []error{late, syscall.ECONNREFUSED}, 2 + len(dialPauses), true},
		"own, late, then closed":  {"49983", []error{late, syscall.ECONNREFUSED}, 2 + len(dialPauses) + len(ownPauses), true},
		"own, late, then open": {"49983", append([]error{late}, append(
			slices.Repeat([]error{syscall.ECONNREFUSED}, 1+len(dialPauses)), nil)...), 3 + len(dialPauses), false},
		"own, closed": {"49983", []error{syscall.ECONNREFUSED}, 1 + len(dialPauses), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				l := newUpstream(Target{Addr: netip.MustParseAddr("192.0.2.1")}, func(ctx context.Context, network, addr string) (net.Conn, error) {
					if !strings.HasSuffix(addr, ":"+tt.port) {
						return nil, syscall.ECONNREFUSED // the agent, for a tunnel
					}
					err := tt.errs[min(tries, len(tt.errs)-1)]
					tries++
					switch err {
					case nil:
						ours, theirs := net.Pipe()
						theirs.Close()
						return ours, nil
					case late:
						<-ctx.Done()
					}
					return nil, &net.OpError{Op: "dial", Net: network, Err: err}
				})
				defer l.cut()
				_, err := l.connect(t.Context(), "tcp", "192.0.2.1:"+tt.port)
				last := tt.errs[len(tt.errs)-1]
				if !errors.Is(err, last) {
					t.Errorf("%v, want %v", err, last)
				}
				var dial *dialError
				if told := errors.As(err, &dial) && dial.silent; told != tt.silence {
					t.Errorf("silence is told: %v", told)
				}
				if tries != tt.tries {
					t.Errorf("%d tries, want %d", tries, tt.tries)
				}
			})
		})
	}
}
