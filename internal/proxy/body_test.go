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
	for name, request := range map[string]string{
		"nothing of it": "Content-Length: 10\r\n\r\n",
		"a little":      "Content-Length: 1000000\r\n\r\nx",
		"much":          "Content-Length: 1000000\r\n\r\n" + big,
		"chunked":       "Transfer-Encoding: chunked\r\n\r\n493e0\r\n" + big[:100_000],
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.front.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: 3000-i1.x\r\n"+request); err != nil {
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
			want := `{"sandboxId":"i1","message":"The request's body ended before its announced length","code":400}`
			if err != nil || resp.StatusCode != http.StatusBadRequest || string(body) != want {
				t.Errorf("got %d %s, %v", resp.StatusCode, body, err)
			}
		})
	}
}
