// Package pkgcache is a cache in front of the indices that sandboxes install
// from: PyPI, npm, the archives of Debian and Ubuntu, or whichever hosts the
// operator names.
//
// It stands where the names of those hosts lead sandboxes (package egress), so
// no client is configured and none notices: it answers as the host would have.
// It keeps only public answers: those of a GET without credentials and without a
// query; and layers of images, whose registry is asked each time whether it would give
// them to this client. Everything else is passed on unread, as if there were no cache.
//
//	guest ── egress ── Cache ─┬─ kept: from the disk
//	                          ├─ a file: fetched once for all clients that wait, streamed, kept for good
//	                          ├─ a page: asked for again by its ETag; kept for hosts that are down
//	                          └─ else: passed on
//
// The guest is hostile. It chooses the path of a host that is configured, and
// two headers which are part of the key; nothing else of a request reaches the
// host that a cached answer comes from, so that no guest decides what another
// one gets.
package pkgcache

import (
	"net/url"
	"strings"

	"github.com/cay-run/cay"
)

// Host is one that is cached.
type Host struct {
	Name string // as sandboxes ask for it
	// Mirror is what is asked in its place; nil asks the host itself.
	Mirror *url.URL
}

// DefaultHosts are where pip, npm and apt install from.
func DefaultHosts() []Host {
	var out []Host
	for _, name := range []string{
		"pypi.org", "files.pythonhosted.org", "registry.npmjs.org",
		"deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com",
	} {
		out = append(out, Host{Name: name})
	}
	return out
}

// ParseHosts reads a list of name or name=URL, between commas or blanks.
func ParseHosts(s string) ([]Host, error) {
	var out []Host
	for _, entry := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, mirror, mirrored := strings.Cut(entry, "=")
		h := Host{Name: strings.ToLower(name)}
		if strings.HasPrefix(h.Name, "*") || !cay.IsDomain(h.Name) {
			return nil, cay.Errorf(cay.Invalid, "package host %q is not the name of a host", name)
		}
		if mirrored {
			u, err := url.Parse(mirror)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
				return nil, cay.Errorf(cay.Invalid, "the mirror of package host %s is not http://host/path or https://host/path", name)
			}
			u.Path = strings.TrimSuffix(u.Path, "/")
			u.RawPath = strings.TrimSuffix(u.RawPath, "/")
			h.Mirror = u
		}
		out = append(out, h)
	}
	return out, nil
}
