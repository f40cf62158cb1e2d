// Package console serves the console, the web page by which people use Cay, on
// an origin of its own.
//
// Pages of guests lie at other origins of the same server, and are hostile. So
// nothing but the console answers on its origin, no answer of a guest is a
// document there, and no cookie opens anything (ADR 73).
package console

import (
	"bytes"
	"context"
	"embed"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

//go:embed all:dist
var dist embed.FS

// Page is the page that this program was built with; without an index.html it was
// built without one.
func Page() fs.FS {
	sub, err := fs.Sub(dist, "dist")
	if err != nil { // the name is a constant
		panic(err)
	}
	return sub
}

// Config is what the console needs.
type Config struct {
	Page fs.FS
	// API answers the page's calls below /api; Agents those below /agent, to the
	// agents and interpreters of sandboxes, which are named in headers.
	API, Agents http.Handler
	// Domain is the one below which the console has its name; empty for none.
	Domain string
	// Here reports whether an address is one where the console alone listens.
	Here func(net.Addr) bool
	// Ways are the addresses of the console, which other pages are told.
	Ways func() []string
	// Ports is how the console reaches the ports of sandboxes when it is asked
	// at a host: with {port} and {sandbox} in it.
	Ports func(r *http.Request, own bool) string
}

// Console is the origin of the console. Its methods are safe for concurrent use.
type Console struct {
	cfg   Config
	names []string
	mux   http.Handler
}

// LocalName is the console's name on the machine itself, which needs no DNS in
// Chromium and Firefox.
const LocalName = "console.localhost"

// New returns the console of a server.
func New(cfg Config) *Console {
	c := &Console{cfg: cfg, names: []string{LocalName}}
	if cfg.Domain != "" {
		c.names = append(c.names, "console."+hostname(cfg.Domain))
	}
	mux := http.NewServeMux()
	mux.Handle(calls, inert(http.StripPrefix(strings.TrimSuffix(calls, "/"), cfg.API)))
	mux.Handle(agents, inert(http.StripPrefix(strings.TrimSuffix(agents, "/"), guarded(cfg.Agents))))
	mux.HandleFunc("/settings.json", c.settings)
	mux.HandleFunc("/", c.page)
	c.mux = http.NewCrossOriginProtection().Handler(mux)
	return c
}

// Wrap returns a handler that serves the console at its own names and addresses,
// and leaves all other requests to next.
func (c *Console) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.is(r) {
			next.ServeHTTP(w, r)
			return
		}
		guard(w.Header())
		c.mux.ServeHTTP(w, r)
	})
}

// is reports whether a request is one to the console.
func (c *Console) is(r *http.Request) bool {
	return c.Alone(r) || slices.Contains(c.names, hostname(r.Host))
}

type enteredKey struct{}

// Entered has a request that another server brings look as if it had come in where the
// console alone listens.
func (c *Console) Entered(ctx context.Context) context.Context {
	return context.WithValue(ctx, enteredKey{}, true)
}

// Alone reports whether a request came in where the console alone listens, here or at
// another server.
func (c *Console) Alone(r *http.Request) bool {
	if entered, _ := r.Context().Value(enteredKey{}).(bool); entered {
		return true
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && c.cfg.Here != nil && c.cfg.Here(at)
}

// Names wraps what tells the sandbox that a request goes into: at the console's origin only
// the header of a call to an agent does.
func (c *Console) Names(elsewhere, agent func(*http.Request) (cay.SandboxID, bool)) func(*http.Request) (cay.SandboxID, bool) {
	return func(r *http.Request) (cay.SandboxID, bool) {
		switch {
		case !c.is(r):
			return elsewhere(r)
		case strings.HasPrefix(r.URL.Path, agents):
			return agent(r)
		}
		return "", false
	}
}

// Call returns the request of the API that a call of the page is, and a writer that guards its
// answer. A request at another origin stays as it is; one for a page is none of the API.
func (c *Console) Call(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	if !c.is(r) {
		return w, r
	}
	call := *r
	url := *r.URL
	call.URL = &url
	rest, api := strings.CutPrefix(r.URL.Path, calls)
	if api || strings.HasPrefix(r.URL.Path, agents) {
		w = &plain{ResponseWriter: w}
	}
	url.Path = "/" + rest
	if !api {
		url.Path = "/"
	}
	return w, &call
}

// The roots of the page's calls of the API, and to agents.
const calls, agents = "/api/", "/agent/"

// hostname takes the port off a host.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// policy is what the page may do. xterm.js inserts style elements and takes no
// nonce for them. A frame holds markup that code in a sandbox made, as a blob in a
// sandboxed frame: it has this policy too, no origin and no scripts.
const policy = "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data: blob:; font-src 'self'; " +
	"style-src 'self' 'unsafe-inline'; frame-src blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; " +
	"require-trusted-types-for 'script'; trusted-types svelte-trusted-html"

// guard is what every answer at the console's origin has.
func guard(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=(), clipboard-read=()")
}

// page serves the page and its parts. A path that names no part is a place in the
// page.
func (c *Console) page(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "The console's calls are below /api", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
	if !strings.HasPrefix(name, "assets/") {
		c.serve(w, r, "index.html", "no-cache")
		return
	}
	c.serve(w, r, name, "public, max-age=31536000, immutable") // its name has its hash
}

func (c *Console) serve(w http.ResponseWriter, r *http.Request, name, cache string) {
	text, err := fs.ReadFile(c.cfg.Page, name)
	switch {
	case err != nil && name == "index.html":
		w.Header().Set("Cache-Control", "no-store")
		tell(w, http.StatusNotImplemented, missing, nil)
		return
	case err != nil || strings.HasSuffix(name, ".gz"):
		http.Error(w, "The console has no such part: load the page anew", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", cache)
	h.Set("Content-Type", kinds[path.Ext(name)])
	h.Set("Vary", "Accept-Encoding")
	if name == "index.html" && strayed(r) {
		_, _ = w.Write(bytes.Replace(text, []byte("<head>"), []byte(`<head><meta name="cay-link" content="ask">`), 1))
		return
	}
	if packed, err := fs.ReadFile(c.cfg.Page, name+".gz"); err == nil && takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		text = packed
	}
	_, _ = w.Write(text) // the browser may be gone
}

// strayed reports whether a page elsewhere sent a browser to log in. Its link may
// be a stranger's, whose session the person would work in: the page asks first.
func strayed(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return path.Clean(r.URL.Path) == "/login" && (site == "cross-site" || site == "same-site")
}

// kinds are those of the page's parts.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
}

func takesGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if name, _, _ := strings.Cut(strings.TrimSpace(part), ";"); name == "gzip" {
			return true
		}
	}
	return false
}

// settings tells the page, logged in or not, how the ports of sandboxes are
// reached from where it is.
func (c *Console) settings(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	writeJSON(w, map[string]string{"ports": c.cfg.Ports(r, c.Alone(r))})
}

// Elsewhere returns a handler that answers browsers which ask a server's other
// names for a page with where the console is. It is a 404: by the path form, the
// page may be one of a sandbox's app.
func (c *Console) Elsewhere(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" || r.Method != http.MethodGet || !strings.Contains(r.Header.Get("Accept"), "text/html") {
			next.ServeHTTP(w, r)
			return
		}
		guard(w.Header())
		w.Header().Set("Cache-Control", "no-store")
		tell(w, http.StatusNotFound, elsewhere, c.cfg.Ways())
	})
}

func tell(w http.ResponseWriter, status int, page *template.Template, data any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = page.Execute(w, data) // the browser may be gone
}

const head = `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Cay</title>
<style>:root{color-scheme:light dark}body{font:1rem/1.6 system-ui,sans-serif;max-width:38rem;margin:15vh auto;padding:0 1rem}code{font:.9em ui-monospace,monospace}</style>`

var (
	missing = template.Must(template.New("missing").Parse(head + `<h1>Cay</h1>
<p>This <code>cay</code> was built without its console. <code>make console build</code> builds it with it, and needs Node 20 and npm.</p>`))
	elsewhere = template.Must(template.New("elsewhere").Parse(head + `<h1>Cay</h1>
<p>This address is the API's, and pages of sandboxes may lie here. The console is at an origin of its own:</p>
<ul>{{range .}}<li><code>{{.}}</code></li>{{end}}</ul>
<p><code>cay console</code> prints a link that logs you in. From another machine: <code>ssh -L 7070:localhost:7070 HOST</code>, with the
server's port. Safari wants a line <code>127.0.0.1 console.localhost</code> in <code>/etc/hosts</code>.</p>`))
)
