package proxy

import (
	"net/http"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/doors"
	"github.com/cay-run/cay/internal/edge/rates"
)

// IsPort reports whether a host is the name of a sandbox's port below a domain,
// which may have a port of its own.
func IsPort(host, domain string) bool {
	_, v := parseHost(host)
	_, parent, _ := strings.Cut(splitHost(host), ".")
	return v == ours && parent == splitHost(domain)
}

// Hosts serves requests to the names of sandboxes' ports, and nothing else:
// neither the API, nor another way to name a sandbox. Under TLS the name is that
// of the connection.
func (p *Proxy) Hosts(domain string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rt, _ := parseHost(r.Host)
		if !IsPort(r.Host, domain) || r.TLS != nil && r.TLS.ServerName != splitHost(r.Host) {
			rates.Refuse(w, http.StatusMisdirectedRequest, "This name is not served here")
			return
		}
		p.serve(w, r, place{route: rt, verdict: ours, way: byHost})
	})
}

// Agents serves requests to the agents and interpreters of sandboxes, named by
// headers, and nothing else.
func (p *Proxy) Agents() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := place{way: byHeaders}
		at.route, at.verdict = parseHeaders(r.Header)
		if at.verdict != ours || !doors.Is(at.port) {
			badRoute(w, r, at)
			return
		}
		p.serve(w, r, at)
	})
}

// AgentOf tells the sandbox that a request to Agents names.
func (p *Proxy) AgentOf(r *http.Request) (cay.SandboxID, bool) {
	rt, v := parseHeaders(r.Header)
	return rt.id, v == ours
}

// Names tells the sandbox that a request goes into, by its host, path, headers or
// page; a signature names one of this machine alone.
func (p *Proxy) Names(r *http.Request) (cay.SandboxID, bool) {
	at := p.find(r)
	if at.verdict != ours {
		return "", false
	}
	return at.id, true
}
