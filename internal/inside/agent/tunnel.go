package agent

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay/internal/inside/agent/wire"
)

// loopbacks are tried in this order.
var loopbacks = []string{"127.0.0.1", "::1"}

// tunnelDial bounds a dial to the loopback, which answers at once or never.
const tunnelDial = 5 * time.Second

// tunnel joins its connection to a port of the loopback. Services that listen
// there alone are reached from outside this way; the host asks for it when it
// was refused on the sandbox's address.
func tunnel(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 || r.Header.Get("Upgrade") != "tcp" {
		wire.Error(w, http.StatusBadRequest, "want ?port=N and Upgrade: tcp")
		return
	}
	service, err := dialLoopback(r.Context(), strconv.FormatUint(port, 10))
	if err != nil {
		wire.Error(w, http.StatusBadGateway, err.Error())
		return
	}
	defer service.Close()
	caller, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		wire.Error(w, http.StatusHTTPVersionNotSupported, err.Error())
		return
	}
	defer caller.Close()
	if _, err := io.WriteString(caller, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"); err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { pump(service, buffered) })
	both.Go(func() { pump(caller, service) })
	both.Wait()
}

func dialLoopback(ctx context.Context, port string) (conn net.Conn, err error) {
	d := net.Dialer{Timeout: tunnelDial}
	for _, host := range loopbacks {
		if conn, err = d.DialContext(ctx, "tcp", net.JoinHostPort(host, port)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// pump copies until the end and passes the end on. A broken source breaks the
// destination, so that no reader takes it for the end.
func pump(to net.Conn, from io.Reader) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok {
		to.Close()
		return
	}
	_ = half.CloseWrite()
}
