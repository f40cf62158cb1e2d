package proxy

import (
	"iter"
	"net/http"
	"strings"
)

// By the path form a guest's cookies lie below its prefix. A websocket to a path
// of the app's own does not, and cannot be redirected there, so its session
// would be missing. Each cookie therefore has a twin that the browser sends
// everywhere at this address and scripts cannot read. Guests see none; only such
// a websocket of the same sandbox gets it, by the name that it stands for.

// twinCookie, with `<port>-<id>_<name>`, holds what the cookie holds.
const twinCookie = ownCookies + "twin_"

// A browser brings all twins with every request to this address, so they are few
// and small, and those of one sandbox at a time.
const (
	maxTwins = 8
	maxTwin  = 2 << 10
)

func twinPrefix(at place) string { return twinCookie + hostLabel(at.route) + "_" }

// pairs yields the cookies of Cookie headers, as they are written.
func pairs(lines []string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, line := range lines {
			for pair := range strings.SplitSeq(line, ";") {
				name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
				if name != "" && !yield(name, value) {
					return
				}
			}
		}
	}
}

// withTwins adds to the cookies of a websocket that came without a prefix those
// that lie below it.
func withTwins(own string, r *http.Request, at place) string {
	for name, value := range pairs(r.Header["Cookie"]) {
		name, twin := strings.CutPrefix(name, twinPrefix(at))
		if !twin || strings.HasPrefix(name, ownCookies) {
			continue
		}
		if own != "" {
			own += "; "
		}
		own += name + "=" + value
	}
	return own
}

// twins are the cookies that go with those that a guest sets, and, where a page
// is opened, with those that it has from before: the last page that was opened
// is the one whose websockets come here.
func twins(set []string, r *http.Request, at place, opened bool) []string {
	had, others := twinsOf(r, at)
	var out []string
	add := func(c *http.Cookie) {
		name := c.Name
		old, known := had[name]
		switch {
		case strings.HasPrefix(name, ownCookies), len(name)+len(c.Value) > maxTwin:
			return
		case known && old == c.Value && c.MaxAge == 0 && c.Expires.IsZero():
			return
		case !known && len(had) >= maxTwins:
			return
		}
		had[name] = c.Value
		c.Name, c.Path, c.Domain = twinPrefix(at)+name, "/", ""
		c.HttpOnly, c.SameSite, c.Partitioned = true, http.SameSiteStrictMode, false
		if line := c.String(); line != "" {
			out = append(out, line)
		}
	}
	named := map[string]bool{}
	for _, line := range set {
		c, err := http.ParseSetCookie(line)
		if err != nil {
			continue
		}
		named[c.Name] = true
		if path := strings.TrimRight(c.Path, "/"); path == "" || path == at.prefix {
			add(c)
		}
	}
	if !opened {
		return out
	}
	for name, value := range pairs(r.Header["Cookie"]) {
		if !named[name] {
			add(&http.Cookie{Name: name, Value: value, Secure: isHTTPS(r)})
		}
	}
	for _, name := range others {
		out = append(out, (&http.Cookie{Name: name, Path: "/", MaxAge: -1}).String())
	}
	return out
}

// twinsOf are the twins that a browser has: a sandbox's by the names that they
// stand for, and the whole names of others.
func twinsOf(r *http.Request, at place) (own map[string]string, others []string) {
	own = map[string]string{}
	for name, value := range pairs(r.Header["Cookie"]) {
		if rest, mine := strings.CutPrefix(name, twinPrefix(at)); mine {
			own[rest] = value
		} else if strings.HasPrefix(name, twinCookie) {
			others = append(others, name)
		}
	}
	return own, others
}
