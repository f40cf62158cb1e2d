package agent_test

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay/internal/inside/agent"
)

// one is a listener with one connection.
type one struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *one) Close() error   { close(l.closed); return nil }
func (l *one) Addr() net.Addr { return &net.TCPAddr{} }

// TestClockLeaps sends requests on a connection that was opened long before, by
// a clock that leaps as that of a thawed sandbox does: before the first request,
// in its head, and between two.
func TestClockLeaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leap = time.Hour
		srv := agent.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
		}), slog.New(slog.DiscardHandler))
		l := &one{make(chan net.Conn), make(chan struct{})}
		go func() { _ = srv.Serve(l) }()
		defer srv.Close()
		client, server := net.Pipe()
		defer client.Close()
		l.conns <- server
		answers := bufio.NewReader(client)
		for range 3 {
			for _, part := range []string{"GET / HT", "TP/1.1\r\nHost: x\r\n\r\n"} {
				time.Sleep(leap) // of a clock that is made up
				if _, err := io.WriteString(client, part); err != nil {
					t.Fatalf("the connection was closed: %v", err)
				}
			}
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			if resp.StatusCode != http.StatusNoContent {
				t.Fatalf("status %d", resp.StatusCode)
			}
		}
	})
}
