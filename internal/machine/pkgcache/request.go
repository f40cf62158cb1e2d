package pkgcache

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/blake2b"
)

const (
	maxPath   = 2 << 10
	maxAccept = 512
	// maxFresh bounds how long an index page is believed without asking.
	maxFresh = 10 * time.Minute
)

// wish is a request as the cache makes it: all that its answer may depend on.
type wish struct {
	scheme, host string
	path         string // escaped
	accept       string
	encoding     string
	final        bool // the path names one content for ever
	anew         bool // the client wants no answer that was kept
	// credentials are the client's, for a layer of a registry that requires them. Each
	// client presents its own to the registry before it gets what is kept, over https:
	// only the registry itself, and no party on the way, says that they are good.
	credentials string
}

// readWish takes what may be answered from the cache out of a request.
func readWish(r *http.Request, scheme, host string) (wish, bool) {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead,
		r.Header.Get("Authorization") != "" && !(scheme == "https" && isLayer(r.URL.EscapedPath())), r.Header.Get("Cookie") != "",
		r.URL.RawQuery != "", r.URL.ForceQuery, r.ContentLength != 0,
		r.Header.Get("Upgrade") != "":
		return wish{}, false
	}
	w := wish{scheme: scheme, host: host, path: r.URL.EscapedPath(), accept: "*/*", encoding: "identity", credentials: r.Header.Get("Authorization")}
	if len(w.path) > maxPath || !strings.HasPrefix(w.path, "/") || climbs(r.URL.Path) {
		return wish{}, false
	}
	w.anew = wantsAnew(r.Header) && !isChecked(w.path)
	if w.final = isFinal(r.URL.Path); w.final {
		return w, true
	}
	if accept := strings.Join(r.Header.Values("Accept"), ", "); accept != "" {
		w.accept = accept
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.encoding = "gzip"
	}
	return w, len(w.accept) <= maxAccept
}

// wantsAnew reports whether a client says that what it got before was no good:
// apt-get -o Acquire::http::No-Cache=true, npm --prefer-online.
func wantsAnew(h http.Header) bool {
	return strings.Contains(strings.ToLower(strings.Join(h.Values("Cache-Control"), ",")), "no-cache")
}

// climbs reports whether a path has a step that is not downwards.
func climbs(path string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' }),
		func(step string) bool { return step == ".." || step == "." })
}

// key names the answer to a wish. A layer that was got with credentials has the name
// of its content alone: many images have it, and no client without any asks for it.
func (w wish) key() string {
	h := sha256.New()
	parts := []string{w.scheme, w.host, w.path, w.accept, w.encoding}
	if w.credentials != "" {
		parts = []string{"layer", path.Base(w.path)}
	}
	for _, part := range parts {
		h.Write([]byte(strconv.Itoa(len(part)) + ":" + part))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// url is where the wish is granted.
func (w wish) url(mirror *url.URL) (*url.URL, error) {
	if mirror == nil {
		return url.Parse(w.scheme + "://" + w.host + w.path)
	}
	return url.Parse(mirror.Scheme + "://" + mirror.Host + mirror.EscapedPath() + w.path)
}

// isFinal reports whether a path is of a file that its host never changes: a
// version is in its name, or its digest.
func isFinal(path string) bool {
	switch {
	case strings.HasSuffix(path, ".whl"), strings.HasSuffix(path, ".whl.metadata"),
		strings.HasSuffix(path, ".deb"), strings.Contains(path, "/by-hash/"), hashPath.MatchString(path):
		return true
	case strings.HasSuffix(path, ".tgz"):
		return strings.Contains(path, "/-/") // npm
	}
	_, ok := pypiDigest(path)
	return ok
}

var (
	// pypiPath is of a file that PyPI names by its BLAKE2b digest.
	pypiPath = regexp.MustCompile(`^/packages/([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{60})/[^/]+$`)
	// hashPath is of a file of apt, or of a layer of an image, that is named by its SHA-256.
	hashPath = regexp.MustCompile(`(?:/by-hash/SHA256/|^/v2/.+/blobs/sha256:)([0-9a-f]{64})$`)
)

// isLayer reports whether a path is of a layer of an image, or of another blob.
func isLayer(path string) bool { return strings.HasPrefix(path, "/v2/") && hashPath.MatchString(path) }

func pypiDigest(path string) (string, bool) {
	m := pypiPath.FindStringSubmatch(path)
	if m == nil {
		return "", false
	}
	return m[1] + m[2] + m[3], true
}

// check returns what verifies the content of a path that names it; nil where
// the path says nothing. Metadata of a wheel lies beside it, under its digest.
func check(path string) (hash.Hash, string) {
	if m := hashPath.FindStringSubmatch(path); m != nil {
		return sha256.New(), m[1]
	}
	if want, ok := pypiDigest(path); ok && !strings.HasSuffix(path, ".metadata") {
		h, err := blake2b.New256(nil)
		if err != nil {
			return nil, ""
		}
		return h, want
	}
	return nil, ""
}

func isChecked(path string) bool {
	sum, _ := check(path)
	return sum != nil
}

// lasting reads how long an answer may be believed. ok is false for what must
// not be kept.
func lasting(h http.Header) (fresh time.Duration, final, ok bool) {
	if strings.TrimSpace(h.Get("Vary")) == "*" {
		return 0, false, false
	}
	believe := true
	for part := range strings.SplitSeq(strings.ToLower(strings.Join(h.Values("Cache-Control"), ",")), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "no-store", "private":
			return 0, false, false
		case "no-cache":
			believe = false
		case "immutable":
			final = true
		case "max-age":
			if n, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 31); err == nil {
				fresh = min(time.Duration(n)*time.Second, maxFresh)
			}
		}
	}
	if !believe {
		return 0, false, true
	}
	return fresh, final, true
}

// told are the headers of an answer that are kept and told.
var told = []string{
	"Content-Type", "Content-Encoding", "Etag", "Last-Modified", "Cache-Control",
	"Docker-Content-Digest", "X-Pypi-Last-Serial", "X-Pypi-File-Python-Version", "X-Pypi-File-Version", "X-Pypi-File-Package-Type",
}

const maxHeader = 1 << 10 // of one value that is kept

func keptHeader(h http.Header) map[string]string {
	out := map[string]string{}
	for _, name := range told {
		if v := h.Get(name); v != "" && len(v) <= maxHeader {
			out[name] = v
		}
	}
	return out
}
