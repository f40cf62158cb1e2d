package egress

import (
	"net/http"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
)

// oneHost answers for pypi.org.
type oneHost struct{}

func (oneHost) Has(name string) bool                                      { return name == "pypi.org" }
func (oneHost) Serve(w http.ResponseWriter, _ *http.Request, _, _ string) { w.WriteHeader(200) }

// TestTheCacheIsNoWayAroundPolicy asks for whom the cache answers, and what
// they are told by the name server.
func TestTheCacheIsNoWayAroundPolicy(t *testing.T) {
	gateway := netip.MustParseAddr("169.254.77.1")
	p := New(Config{Packages: oneHost{}, Gateway: gateway})
	defer p.Close()
	rule := map[string][]cay.HeaderRule{"pypi.org": {{Headers: map[string]string{"X": "y"}}}}
	for name, tc := range map[string]struct {
		policy cay.NetworkPolicy
		want   bool
	}{
		"internet":                {cay.DefaultNetwork(), true},
		"none":                    {cay.NetworkPolicy{}, false},
		"the name alone":          {cay.NetworkPolicy{AllowOut: []string{"pypi.org"}, DenyOut: []string{"0.0.0.0/0"}}, true},
		"another name":            {cay.NetworkPolicy{AllowOut: []string{"example.com"}, DenyOut: []string{"0.0.0.0/0"}}, false},
		"an address denied":       {cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{"203.0.113.0/24"}}, false},
		"addresses allowed":       {cay.NetworkPolicy{AllowOut: []string{"203.0.113.0/24"}}, false},
		"headers are set for it":  {cay.NetworkPolicy{AllowInternet: true, Rules: rule}, false},
		"all through a SOCKS one": {cay.NetworkPolicy{AllowInternet: true, Proxy: &cay.EgressProxy{Address: "203.0.113.1:1080"}}, false},
	} {
		if got := p.cached(compile(tc.policy), "pypi.org"); got != tc.want {
			t.Errorf("%s: cached = %v, want %v", name, got, tc.want)
		}
		if p.cached(compile(tc.policy), "example.com") {
			t.Errorf("%s: another host is cached", name)
		}
	}
	guest := netip.MustParseAddr("10.201.0.7")
	p.Set(guest, cay.InstanceSpec{Sandbox: "s", Network: cay.DefaultNetwork()})
	query, _, err := question("pypi.org")
	if err != nil {
		t.Fatal(err)
	}
	a := readAnswer(p.answer(t.Context(), p.guests[guest], query))
	if a.code != dnsmessage.RCodeSuccess || len(a.addrs) != 1 || a.addrs[0] != gateway {
		t.Errorf("the name server says %v, want the gateway", a)
	}
}
