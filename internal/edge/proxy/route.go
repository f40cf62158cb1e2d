package proxy

import (
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// The headers by which SDKs name a sandbox where no wildcard DNS exists.
const (
	headerID   = "E2b-Sandbox-Id"
	headerPort = "E2b-Sandbox-Port"
)

// route is where a request wants to go.
type route struct {
	id   cay.SandboxID
	port int
}

// verdict says what parsing a host or headers found.
type verdict int

const (
	notOurs verdict = iota // names no sandbox: for the next handler
	ours
	broken // meant for a sandbox, and wrong
)

// splitHost takes the port off a Host header and lowers it.
func splitHost(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		if _, err := strconv.ParseUint(host[i+1:], 10, 16); err == nil || host[i+1:] == "" {
			host = host[:i]
		}
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// parseHost reads `<port>-<id>[-<client>].<anything>`. A first label that does
// not begin with digits and a dash is no sandbox's; the client part is a relic
// of old SDKs and means nothing.
func parseHost(host string) (route, verdict) {
	label, rest, found := strings.Cut(splitHost(host), ".")
	if !found || rest == "" {
		return route{}, notOurs
	}
	port, id, found := strings.Cut(label, "-")
	if !found || port == "" || strings.Trim(port, "0123456789") != "" {
		return route{}, notOurs
	}
	id, client, hasClient := strings.Cut(id, "-")
	if hasClient && !cay.ValidID(client) {
		return route{}, broken
	}
	return makeRoute(id, port)
}

// parseHeaders reads the routing headers, which count only when both are set.
func parseHeaders(h http.Header) (route, verdict) {
	id, port := h.Get(headerID), h.Get(headerPort)
	if id == "" || port == "" {
		return route{}, notOurs
	}
	id, _, _ = strings.Cut(id, "-")
	return makeRoute(id, port)
}

func makeRoute(id, port string) (route, verdict) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || !cay.ValidID(id) {
		return route{}, broken
	}
	return route{id: cay.SandboxID(id), port: int(n)}, ours
}

// trustsHeaders reports whether the routing headers count on this host: they
// must not be taken from arbitrary subdomains, where a page of one sandbox
// could name another.
func trustsHeaders(host, domain string) bool {
	host = splitHost(host)
	switch host {
	case "localhost", "sandbox.localhost", "sandbox.cay.localhost": // the last is config.LocalName's
		return true
	case "":
		return false
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return domain != "" && host == "sandbox."+splitHost(domain)
}
