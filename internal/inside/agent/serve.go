package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"
)

// patience finds peers that are gone without a word. A question wakes a sandbox that
// sleeps, and its kernel for seconds, and there are few such peers: the proxy ends
// its connections, and a restore ends those of before.
var patience = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Minute, Interval: time.Minute, Count: 4}

// Listen opens a port on every address, or on those of IPv4 where a sandbox
// has no IPv6.
func Listen(ctx context.Context, port int) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: patience}
	addr := ":" + strconv.Itoa(port)
	l, err := lc.Listen(ctx, "tcp", addr)
	if err == nil {
		return l, nil
	}
	l, err4 := lc.Listen(ctx, "tcp4", addr)
	if err4 != nil {
		return nil, errors.Join(err, err4)
	}
	return l, nil
}

// Serve answers on l until ctx ends, over HTTP/1.1 and unencrypted HTTP/2.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := NewServer(h, log)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// NewServer returns a server as the agent needs it. It has no time limit at all.
// Streams last for as long as their processes. And the clock of a sandbox leaps
// when it is thawed or goes on after a snapshot: a limit that was set before is
// over then, and the server would close a connection on which a request is
// under way. The same holds for a request's head. The proxy dials ahead: a
// connection that has not carried a request yet may wait for minutes for one,
// and the request that meets its end gets no answer. Connections come from the
// proxy, which ends its own, or from the guest itself.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:   h,
		Protocols: protocols,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: 2048},
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
