package agent_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent"
)

func TestTunnel(t *testing.T) {
	a := agent.New(agent.Config{Root: t.TempDir()})
	t.Cleanup(a.Close)
	front := httptest.NewServer(a.Handler())
	t.Cleanup(front.Close)
	service, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { service.Close() })
	go func() {
		for {
			c, err := service.Accept()
			if err != nil {
				return
			}
			go func() { // echo, until the end is passed on
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()

	open := func(query string) (*http.Response, *bufio.Reader, net.Conn) {
		t.Helper()
		u, err := url.Parse(front.URL)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "POST %s%s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n", guest.TunnelPath, query)
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp, r, c
	}

	_, port, _ := net.SplitHostPort(service.Addr().String())
	resp, r, c := open("?port=" + port)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("tunnel: %s", resp.Status)
	}
	fmt.Fprint(c, "hello")
	c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(r); string(got) != "hello" || err != nil {
		t.Errorf("echo: %q, %v", got, err)
	}

	service.Close()
	if resp, _, _ := open("?port=" + port); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("a closed port: %s", resp.Status)
	}
	for _, bad := range []string{"", "?port=0", "?port=65536", "?port=x"} {
		if resp, _, _ := open(bad); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", bad, resp.Status)
		}
	}
}
