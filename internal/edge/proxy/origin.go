package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// By the path form many sandboxes are one origin. A header that a browser
// applies to the whole of it, and a page of another team in it, would reach
// beyond the sandbox that they come from.

// originWide are the headers of an answer that a browser applies to an origin
// or a host, not to the answer.
var originWide = []string{
	"Accept-Ch", "Accept-Ch-Lifetime", "Alt-Svc", "Clear-Site-Data", "Critical-Ch", "Expect-Ct", "Nel",
	"Origin-Agent-Cluster", "Origin-Trial", "Public-Key-Pins", "Public-Key-Pins-Report-Only",
	"Report-To", "Reporting-Endpoints", "Secure-Session-Registration", "Sec-Session-Registration",
	"Service-Worker-Allowed", "Set-Login", "Strict-Transport-Security", "Use-As-Dictionary",
}

// bound takes out of a guest's answer all that reaches beyond its sandbox.
func (t *trip) bound(h http.Header) {
	for _, name := range originWide {
		delete(h, name)
	}
	// A page at another site would load sandboxes of two teams into frames that
	// get no cookies; one of this host gets them, and is bound like any other.
	h.Add("Content-Security-Policy", "frame-ancestors "+framers(t.in.Host))
	// A page's referrer names its sandbox, and to this origin alone.
	switch policy := h.Values("Referrer-Policy"); {
	case len(policy) == 0:
	case slices.ContainsFunc([]string{"no-referrer", "origin", "strict-origin"}, func(s string) bool { return s == lastPolicy(policy) }):
		h.Set("Referrer-Policy", "same-origin")
	}
	// Browsers send a password to every path of an origin that has its realm.
	for i, challenge := range h["Www-Authenticate"] {
		if scheme, _, _ := strings.Cut(strings.TrimSpace(challenge), " "); strings.EqualFold(scheme, "basic") {
			h["Www-Authenticate"][i] = `Basic realm="` + hostLabel(t.route) + `", charset="UTF-8"`
		}
	}
}

// lastPolicy is the referrer policy that a browser takes of a header.
func lastPolicy(lines []string) string {
	all := strings.Split(strings.Join(lines, ","), ",")
	return strings.ToLower(strings.TrimSpace(all[len(all)-1]))
}

// framers are the pages that may show a sandbox's in a frame: those of the same
// origin, and of other ports of the same host.
func framers(host string) string {
	host = splitHost(host)
	if host == "" || strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
		return "'self'"
	}
	return "'self' http://" + host + ":* https://" + host + ":*"
}

// sideHeader returns the fields of a guest's 1xx answer, or of its trailers,
// that a client gets.
func (t *trip) sideHeader(h http.Header) http.Header {
	h = h.Clone()
	delete(h, "Set-Cookie")
	if t.shared() {
		for _, name := range originWide {
			delete(h, name)
		}
	}
	return h
}

// teamCookie, with the team's tag, binds a browser to a team at this address.
const teamCookie = ownCookies + "team_"

// boundMark is in the address of a page that a browser was sent to with its
// team's cookie.
const boundMark = "cay-bound=1"

// anotherTeams reports whether a browser has opened sandboxes of another team
// at this address. They would share an origin: scripts of one could use the
// other's pages, cookies and storage.
func anotherTeams(r *http.Request, team cay.TeamID) bool {
	for _, c := range r.CookiesNamed(openedCookie) { // more than one, where a page tries to add its own
		if _, tag, _ := cut2(c.Value); tag != teamTag(team) {
			return true
		}
	}
	for name := range pairs(r.Header["Cookie"]) {
		if tag, ok := strings.CutPrefix(name, teamCookie); ok && tag != teamTag(team) {
			return true
		}
	}
	return false
}

// bind has a browser know the team of a page before it shows the page, and
// reports whether it answered. Each team has a cookie of its own, and a page is
// served to a browser that has exactly its team's: of two pages that a browser
// asks for at once, it shows at most one.
func bind(w http.ResponseWriter, r *http.Request, at place, team cay.TeamID) bool {
	if !at.shared() || !rendersDocument(r) {
		return false
	}
	own, marked := cutQuery(r.URL.RawQuery, boundMark)
	_, err := r.Cookie(teamCookie + teamTag(team))
	known := err == nil
	switch {
	case known && !marked:
		return false
	case !known && marked:
		noCookies(at.id).write(w, r)
		return true
	case !known:
		http.SetCookie(w, &http.Cookie{
			Name: teamCookie + teamTag(team), Value: "1", Path: "/", MaxAge: openedFor,
			HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: isHTTPS(r),
		})
		own = strings.TrimPrefix(own+"&"+boundMark, "&")
	}
	to := at.prefix + r.URL.EscapedPath()
	if own != "" {
		to += "?" + own
	}
	w.Header().Set("Location", to)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusTemporaryRedirect)
	return true
}

// cutQuery takes a pair out of a query.
func cutQuery(raw, pair string) (rest string, found bool) {
	if !strings.Contains(raw, pair) {
		return raw, false
	}
	var kept []string
	for p := range strings.SplitSeq(raw, "&") {
		if p == pair {
			found = true
		} else {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, "&"), found
}

// rendersDocument reports whether a browser is about to run the answer as a
// document of its origin, as a page or in a frame. Browsers say so to addresses
// that they trust; to others there is only what they accept and call themselves.
func rendersDocument(r *http.Request) bool {
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return strings.Contains(r.UserAgent(), "Mozilla/") && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// meansLastOpened reports whether a request that does not say whose page it is
// from is taken for the last opened page's: a websocket of this origin, which
// never says, and what a page asks after it put a path of its own into the
// address line. A request without a referrer has no known sender: a page of another
// sandbox or of another port could have sent it, and would get an answer for
// the session of the last.
func meansLastOpened(r *http.Request) bool {
	if isUpgrade(r) {
		origin := r.Header.Get("Origin")
		return origin == "" || hostOf(origin) == strings.ToLower(r.Host)
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	return !opensDocument(r) && r.Referer() != "" && hostOf(r.Referer()) == strings.ToLower(r.Host)
}

// hostOf is the host and port of a URL.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

func otherTeam(id cay.SandboxID) answer {
	return answer{
		SandboxID: id, Message: "This browser has opened sandboxes of another team at this address", Code: http.StatusForbidden,
		title: "Another Team's Sandbox",
		text: "This browser has opened sandboxes of another team at this address. Their pages could read and steer this one's. " +
			"Open it in a private window or another browser profile, or by its host name.",
	}
}

func noCookies(id cay.SandboxID) answer {
	const m = "A browser opens sandboxes by path only where it keeps cookies"
	return answer{
		SandboxID: id, Message: m, Code: http.StatusForbidden, title: "Cookies Needed",
		text: m + ": they keep the pages of several teams apart. Allow cookies for this address, or open the sandbox by its host name.",
	}
}

// opens reports whether an answer is a page that a browser opened at a port of
// users.
func (t *trip) opens() bool { return t.port != guest.AgentPort && opensDocument(t.in) }
