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

// Listen opens a port on every address, or on those of IPv4 where a sandbox
// has no IPv6.
func Listen(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
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

// NewServer returns a server as the agent needs it. Streams last for as long
// as their processes, so nothing but a request's header has a time limit.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: 30 * time.Second,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 2048},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
