package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// The cookies that the proxy itself gives to browsers. No guest sees or sets
// them, and no part of the API knows of them.
const (
	ownCookies = "cay_"
	// openedCookie says which sandbox a browser has opened last by the path
	// form, and of which team.
	openedCookie = ownCookies + "opened"
	// tokenCookie, with the sandbox's id, stands for its traffic token.
	tokenCookie = ownCookies + "token_"
)

// openedFor is as long as browsers keep a cookie. Pages' storage outlives
// sessions, so the cookies that keep teams apart must too.
const openedFor = 400 * 24 * 60 * 60

// digest is what cookies hold in place of what it is made of.
func digest(use, of string) string {
	sum := sha256.Sum256([]byte("cay " + use + "\x00" + of))
	return hex.EncodeToString(sum[:12])
}

func teamTag(team cay.TeamID) string { return digest("team", string(team)) }

// lastOpened is the sandbox whose page a browser opened last by the path form.
func lastOpened(r *http.Request) place {
	c, err := r.Cookie(openedCookie)
	if err != nil {
		return place{}
	}
	port, id, _ := strings.Cut(c.Value, "-")
	id, _, _ = strings.Cut(id, "-")
	rt, v := makeRoute(id, port)
	if v != ours {
		return place{}
	}
	return place{route: rt, verdict: ours, prefix: prefixOf(rt)}
}

// cut2 splits `<port>-<id>-<tag>` before the tag.
func cut2(s string) (opened, tag string, ok bool) {
	i := strings.LastIndexByte(s, '-')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// remember has the browser know what it opened.
func remember(h http.Header, r *http.Request, t *trip) {
	c := &http.Cookie{
		Name: openedCookie, Value: hostLabel(t.route) + "-" + teamTag(t.target.Team),
		Path: "/", MaxAge: openedFor, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: isHTTPS(r),
	}
	h.Add("Set-Cookie", c.String())
}

// keepToken takes the traffic token out of a page's address, where a person put
// it because a browser sends no header, and has the browser keep what stands
// for it. It reports whether it answered.
func keepToken(w http.ResponseWriter, r *http.Request, at place, target Target) bool {
	if target.Public || at.port == guest.AgentPort || r.Method != http.MethodGet || isUpgrade(r) {
		return false
	}
	if target.TrafficToken == "" || !same(r.URL.Query().Get(trafficToken), target.TrafficToken) {
		return false
	}
	clean := url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: withoutToken(r.URL.RawQuery)}
	http.SetCookie(w, &http.Cookie{
		Name: tokenCookie + string(at.id), Value: digest("traffic token", target.TrafficToken),
		Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: isHTTPS(r),
	})
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Location", at.prefix+"/"+strings.TrimLeft(clean.String(), "/"))
	w.WriteHeader(http.StatusSeeOther)
	return true
}

// withoutToken takes the traffic token out of a query; where a header cannot be
// sent and nothing be redirected, as with websockets, it comes in one.
func withoutToken(raw string) string {
	if !strings.Contains(raw, trafficToken) {
		return raw
	}
	var kept []string
	for pair := range strings.SplitSeq(raw, "&") {
		if !strings.HasPrefix(pair, trafficToken) {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}

// keptToken reports whether a browser has what stands for a traffic token.
func keptToken(r *http.Request, id cay.SandboxID, token string) bool {
	c, err := r.Cookie(tokenCookie + string(id))
	return err == nil && token != "" && same(c.Value, digest("traffic token", token))
}

// withoutOwn takes the proxy's cookies out of a Cookie header.
func withoutOwn(header string) string {
	if !strings.Contains(header, ownCookies) {
		return header
	}
	var kept []string
	for pair := range strings.SplitSeq(header, ";") {
		if pair = strings.TrimSpace(pair); pair != "" && !strings.HasPrefix(pair, ownCookies) {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "; ")
}

// dress makes a guest's response fit for where the browser sees it.
func dress(t *trip, resp *http.Response) {
	h := resp.Header
	set := h["Set-Cookie"]
	if len(set) > 0 {
		h.Del("Set-Cookie")
		for _, line := range set {
			if line = dressCookie(line, t.prefix); line != "" {
				h.Add("Set-Cookie", line)
			}
		}
	}
	if !t.shared() {
		return
	}
	opened := t.opens()
	for _, line := range twins(set, t.in, t.place, opened) {
		h.Add("Set-Cookie", line)
	}
	t.bound(h)
	for _, name := range []string{"Location", "Content-Location"} {
		if v := h.Get(name); v != "" {
			h.Set(name, relocate(v, t.in.Host, t.place))
		}
	}
	if opened {
		remember(h, t.in, t)
	}
}

// dressCookie bounds a guest's cookie to its sandbox: to its host, not to all
// hosts of the domain, and to its prefix. Empty is for none.
func dressCookie(line, prefix string) string {
	parts := strings.Split(line, ";")
	if strings.HasPrefix(strings.TrimSpace(parts[0]), ownCookies) {
		return ""
	}
	kept, path := parts[:1], ""
	for _, attribute := range parts[1:] {
		name, value, _ := strings.Cut(attribute, "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "domain":
		case "path":
			path = strings.TrimSpace(value)
		default:
			kept = append(kept, attribute)
		}
	}
	if prefix != "" {
		path = relocate("/"+strings.TrimLeft(path, "/"), "", place{prefix: prefix})
	}
	if path != "" {
		kept = append(kept, " Path="+path)
	}
	return strings.Join(kept, ";")
}

// isHTTPS reports whether the browser speaks TLS, to us or to a terminator on
// this host.
func isHTTPS(r *http.Request) bool {
	return r.TLS != nil || fromLoopback(r) && r.Header.Get("X-Forwarded-Proto") == "https"
}
