package egress

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cay-run/cay"
)

// A connection that is allowed is told once, and each secret that is filled in,
// by name; one that cannot be is not.
func TestTold(t *testing.T) {
	var told []string
	p := New(Config{
		OnAllowed: func(team cay.TeamID, id cay.SandboxID, c cay.Connection) {
			told = append(told, fmt.Sprint(team, id, c.Name, c.Address, c.Protocol))
		},
		OnSecret: func(team cay.TeamID, id cay.SandboxID, secret, host string) {
			told = append(told, fmt.Sprint(team, id, secret, host))
		},
		Secret: func(_ context.Context, _ cay.TeamID, name string) (string, error) {
			if name != "token" {
				return "", cay.Errorf(cay.NotFound, "none")
			}
			return "hidden", nil
		},
	})
	defer p.Close()
	at := netip.MustParseAddr("10.0.0.2")
	p.Set(at, cay.InstanceSpec{Sandbox: "i1", Team: "t1"})
	f := &flow{guest: p.guests[at], dst: netip.MustParseAddrPort("192.0.2.1:443")}
	f.allowed("tls", "example.com", verdict{allow: true})
	f.allowed("http", "example.com", verdict{allow: true})
	v := &visit{flow: f, tls: "example.com"}
	if got, err := p.web.fill(t.Context(), v, "example.com", "secrets.token"); err != nil || got != "hidden" {
		t.Errorf("%q %v", got, err)
	}
	if _, err := p.web.fill(t.Context(), v, "example.com", "secrets.none"); err == nil {
		t.Error("there is no such secret")
	}
	if got := fmt.Sprint(told); got != "[t1i1example.com192.0.2.1:443tls t1i1tokenexample.com]" {
		t.Error(got)
	}
}
