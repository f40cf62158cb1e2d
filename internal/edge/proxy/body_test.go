package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A client that announces more than it sends and then only waits is told so.
func TestShortBody(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(rw, "whole")
	})})
	big := strings.Repeat("x", 300_000)
	const short, malformed = "ended before its announced length", "is malformed"
	for _, tt := range []struct{ name, request, why string }{
		{"nothing of it", "Content-Length: 10\r\n\r\n", short},
		{"a little", "Content-Length: 1000000\r\n\r\nx", short},
		{"much", "Content-Length: 1000000\r\n\r\n" + big, short},
		{"chunked", "Transfer-Encoding: chunked\r\n\r\n493e0\r\n" + big[:100_000], short},
		{"no chunks", "Transfer-Encoding: chunked\r\n\r\nhello\r\n" + big, malformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.front.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: 3000-i1.x\r\n"+tt.request); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			want := `{"sandboxId":"i1","message":"The request's body ` + tt.why + `","code":400}`
			if err != nil || resp.StatusCode != http.StatusBadRequest || string(body) != want {
				t.Errorf("got %d %s, %v", resp.StatusCode, body, err)
			}
		})
	}
}
