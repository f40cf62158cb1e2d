package proxy

import (
	"net/http"
	"testing"

	"github.com/cay-run/cay"
)

func TestParseHost(t *testing.T) {
	tests := []struct {
		host string
		want route
		v    verdict
	}{
		{"3000-iabc.localhost:7070", route{"iabc", 3000}, ours},
		{"3000-iabc.localhost", route{"iabc", 3000}, ours},
		{"49983-iabc-client1.e2b.example.com", route{"iabc", 49983}, ours},
		{"3000-IABC.Example.COM.", route{"iabc", 3000}, ours},
		{"65535-i1.x", route{"i1", 65535}, ours},
		{"65536-i1.x", route{}, broken},
		{"0-i1.x", route{}, broken},
		{"3000-.x", route{}, broken},
		{"3000-i_1.x", route{}, broken},
		{"3000-i1-.x", route{}, broken},
		{"3000-i1-a-b.x", route{}, broken},
		{"99999999999999999999-i1.x", route{}, broken},
		{"localhost:7070", route{}, notOurs},
		{"127.0.0.1:7070", route{}, notOurs},
		{"[::1]:7070", route{}, notOurs},
		{"3000-iabc", route{}, notOurs},
		{"3000-iabc.", route{}, notOurs},
		{"api.example.com", route{}, notOurs},
		{"my-host.example.com", route{}, notOurs},
		{"-iabc.x", route{}, notOurs},
		{"", route{}, notOurs},
	}
	for _, tt := range tests {
		if got, v := parseHost(tt.host); got != tt.want || v != tt.v {
			t.Errorf("parseHost(%q) = %v, %v; want %v, %v", tt.host, got, v, tt.want, tt.v)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"3000-iabc.localhost:7070", "[::1]:1", "1-a-b.c", "..", "-.-", "0-a.b:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		rt, v := parseHost(host)
		switch {
		case v == ours && (rt.port < 1 || rt.port > 65535 || !cay.ValidID(string(rt.id))):
			t.Errorf("parseHost(%q) accepts %v", host, rt)
		case v != ours && rt != (route{}):
			t.Errorf("parseHost(%q) = %v with verdict %v", host, rt, v)
		}
		trustsHeaders(host, "example.com")
	})
}

func TestParseHeaders(t *testing.T) {
	tests := []struct {
		id, port string
		want     route
		v        verdict
	}{
		{"iabc", "49983", route{"iabc", 49983}, ours},
		{"iabc-client", "49983", route{"iabc", 49983}, ours},
		{"iabc", "", route{}, notOurs},
		{"", "49983", route{}, notOurs},
		{"iabc", "http", route{}, broken},
		{"i/../c", "80", route{}, broken},
	}
	for _, tt := range tests {
		h := http.Header{}
		h.Set(headerID, tt.id)
		h.Set(headerPort, tt.port)
		if got, v := parseHeaders(h); got != tt.want || v != tt.v {
			t.Errorf("parseHeaders(%q, %q) = %v, %v; want %v, %v", tt.id, tt.port, got, v, tt.want, tt.v)
		}
	}
}

func TestTrustsHeaders(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost:7070":           true,
		"127.0.0.1":                true,
		"[::1]:7070":               true,
		"192.0.2.7:80":             true,
		"sandbox.example.com":      true,
		"sandbox.example.com:8443": true,
		"sandbox.localhost":        true,
		"sandbox.cay.localhost":    true,
		"api.cay.localhost":        false,
		"api.example.com":          false,
		"evil.sandbox.example.com": false,
		"sandbox.evil.com":         false,
		"example.com":              false,
		"":                         false,
	} {
		if got := trustsHeaders(host, "example.com:8443"); got != want {
			t.Errorf("trustsHeaders(%q) = %v, want %v", host, got, want)
		}
	}
}
