package client

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// A domain below localhost is this machine, whatever the resolver says, for
// requests and for connections alike.
func TestDomain(t *testing.T) {
	asked := make(chan string, 4)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Host
		fmt.Fprint(w, "[]")
	})
	server := httptest.NewTLSServer(h)
	defer server.Close()
	u, _ := url.Parse(server.URL)
	domain := net.JoinHostPort("cay.localhost", u.Port())
	c, err := New(Config{APIKey: "k", Domain: domain})
	if err != nil {
		t.Fatal(err)
	}
	tr := c.cfg.HTTP.Transport.(*http.Transport)
	tr.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	tr.TLSClientConfig.ServerName = "example.com" // what the test's certificate is for
	if _, err := c.SSHKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-asked; got != "api."+domain {
		t.Errorf("asked %s", got)
	}
	if _, err := c.Dial(t.Context(), "i1", 80); err == nil {
		t.Error("an answer that is no upgrade is taken for one")
	}
	if got := <-asked; got != "api."+domain {
		t.Errorf("the connection asked %s", got)
	}
	if got := (&Sandbox{client: c, ID: "i1"}).Host(80); got != "80-i1."+domain {
		t.Errorf("its host is %s", got)
	}
}
