package proxy

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// pathRoot begins the path form, for addresses without names.
const pathRoot = "/s/"

// way is how a request names its sandbox.
type way int

const (
	byHost way = iota
	byHeaders
	bySignature
	byPath
	// byPage is a request with a path of the app's own, of a page that was
	// reached by the path form.
	byPage
)

// place is which sandbox a request is for, and how that is known.
type place struct {
	route
	verdict verdict
	way     way
	prefix  string // of the path form: what stands before the path that the guest sees
	moved   string // where the request has to be made instead
}

// shared reports whether other sandboxes have the same origin in a browser.
func (at place) shared() bool { return at.prefix != "" }

// inside is the request as the guest sees it.
func (at place) inside(r *http.Request) *http.Request {
	if at.way != byPath {
		return r
	}
	in := *r
	u := *r.URL
	u.Path = u.Path[len(at.prefix):]
	if u.RawPath != "" {
		u.RawPath = u.RawPath[len(at.prefix):]
	}
	in.URL = &u
	return &in
}

// parsePath reads `/s/<id>/<port>/…`. The prefix must stand there unescaped, so
// that it is as long in every form of the path.
func parsePath(u *url.URL) place {
	rest, found := strings.CutPrefix(u.EscapedPath(), pathRoot)
	if !found || !strings.HasPrefix(u.Path, pathRoot) {
		return place{}
	}
	id, rest, _ := strings.Cut(rest, "/")
	port, _, slash := strings.Cut(rest, "/")
	rt, v := makeRoute(id, port)
	if v != ours || port != strconv.Itoa(rt.port) {
		return place{verdict: broken, way: byPath}
	}
	at := place{route: rt, verdict: ours, way: byPath, prefix: prefixOf(rt)}
	if !slash { // the page's relative links would start from another directory
		at.moved = at.prefix + "/" + query(u)
	}
	return at
}

func prefixOf(rt route) string {
	return pathRoot + string(rt.id) + "/" + strconv.Itoa(rt.port)
}

func query(u *url.URL) string {
	if u.RawQuery == "" && !u.ForceQuery {
		return ""
	}
	return "?" + u.RawQuery
}

// byPathForm finds what the path form names, where it is offered. Where sandboxes
// have names, and with them origins of their own, it leads there.
func (p *Proxy) byPathForm(r *http.Request) place {
	at := parsePath(r.URL)
	switch {
	case at.verdict != ours || p.cfg.Paths:
		return at
	case p.cfg.Domain == "":
		return place{}
	}
	own := strings.TrimPrefix(r.URL.EscapedPath(), at.prefix)
	if own == "" {
		own = "/"
	}
	at.moved = "//" + strconv.Itoa(at.port) + "-" + string(at.id) + "." + p.cfg.Domain + own + query(r.URL)
	return at
}

// astray finds the sandbox of a request that a page of the path form made to a
// path of its own, like /assets/app.js. It is told to come again below its
// prefix, so that what it loads in turn says where it belongs and cookies
// arrive; only a websocket, which browsers do not redirect, passes as it is.
//
// The referrer names the page's sandbox. Where it cannot, the last page that was
// opened may be meant; not so for navigations, or the server's own pages would
// be out of reach: those are for [strayReply]. Programs with an API key mean the
// API.
func (p *Proxy) astray(r *http.Request) place {
	if !p.takesStrays(r) {
		return place{}
	}
	at := referrer(r)
	if at.verdict != ours && meansLastOpened(r) {
		at = lastOpened(r)
	}
	if at.verdict != ours {
		return place{}
	}
	at.way = byPage
	if !isUpgrade(r) {
		at.moved = at.prefix + r.URL.RequestURI()
	}
	return at
}

func (p *Proxy) takesStrays(r *http.Request) bool {
	return p.cfg.Paths && r.Header.Get("X-Api-Key") == "" && r.Header.Get("X-Admin-Token") == ""
}

// referrer is the path form of the page that made a request, if it says so.
func referrer(r *http.Request) place {
	from, err := url.Parse(r.Referer())
	if err != nil || from.Host == "" || !strings.EqualFold(from.Host, r.Host) {
		return place{}
	}
	at := parsePath(from)
	at.moved = ""
	return at
}

// opensDocument reports whether a browser is about to show the answer, as a page
// and not as a part of one. Browsers say so to addresses that they trust; to
// others there is only what they accept.
func opensDocument(r *http.Request) bool {
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		dest := r.Header.Get("Sec-Fetch-Dest")
		return mode == "navigate" && (dest == "" || dest == "document")
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

// reference takes out of a referrer what is not the guest's business: its own
// prefix, and pages of other sandboxes.
func reference(from string, at place) string {
	u, err := url.Parse(from)
	if err != nil || !strings.HasPrefix(u.Path, pathRoot) {
		return from
	}
	rest, own := strings.CutPrefix(u.EscapedPath(), at.prefix)
	if !own || at.prefix == "" || !strings.HasPrefix(rest, "/") {
		return ""
	}
	return u.Scheme + "://" + u.Host + rest + query(u)
}

// relocate puts a guest's redirect below the prefix.
func relocate(location, host string, at place) string {
	if at.prefix == "" || location == "" {
		return location
	}
	if strings.HasPrefix(location, "/") && !strings.HasPrefix(location, "//") {
		if location == at.prefix || strings.HasPrefix(location, at.prefix+"/") {
			return location
		}
		return at.prefix + location
	}
	u, err := url.Parse(location)
	if err != nil || u.Host == "" || !meansGuest(u.Host, host, at.port) {
		return location
	}
	own := at.prefix + "/" + strings.TrimPrefix(u.EscapedPath(), "/") + query(u)
	if u.Fragment != "" {
		own += "#" + u.EscapedFragment()
	}
	return own
}

// meansGuest reports whether a guest means itself by a host: by that of the
// request, or as it sees itself.
func meansGuest(host, asked string, port int) bool {
	if strings.EqualFold(host, asked) {
		return true
	}
	for _, self := range []string{"localhost", "127.0.0.1", "0.0.0.0", "[::1]", "[::]"} {
		if strings.EqualFold(host, self+":"+strconv.Itoa(port)) {
			return true
		}
	}
	return false
}

// badPath answers a path that is almost a sandbox's.
func badPath(id cay.SandboxID) answer {
	const m = "Invalid path: want " + pathRoot + "<sandbox id>/<port>/"
	return answer{SandboxID: id, Message: m, Code: http.StatusBadRequest, title: "No Such Page", text: m}
}
