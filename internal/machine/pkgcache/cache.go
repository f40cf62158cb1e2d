package pkgcache

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
)

const (
	answerWithin = 30 * time.Second // until an upstream begins to answer
	downFor      = 15 * time.Second // one that did not is not asked again so soon
	unusedFor    = 30 * 24 * time.Hour
	maxRedirects = 3
	agent        = "cay-package-cache"
)

// Config is what a Cache works with. Dir, Limit and Dial are required.
type Config struct {
	Dir   string
	Limit int64 // bytes on the disk
	Hosts []Host
	// Dial connects to hosts by name, as far as sandboxes may. Mirrors are the
	// operator's choice and dialled as any program of the server's would.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger
}

// Cache answers for hosts of packages. Its methods are safe for concurrent use.
type Cache struct {
	cfg    Config
	store  *store
	hosts  map[string]*url.URL // name → mirror
	direct *http.Transport
	mirror *http.Transport
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	hits, misses, kept, passed, served, fetched atomic.Int64

	mu      sync.Mutex
	flights map[string]*flight
	down    map[string]time.Time // host → until when it is not asked
}

// Stats are what a cache holds and what it did since it was opened.
type Stats struct {
	Files   int   `json:"files"`
	Bytes   int64 `json:"bytes"`
	Limit   int64 `json:"limit"`
	Hits    int64 `json:"hits"`   // answered from the disk
	Misses  int64 `json:"misses"` // fetched
	Stale   int64 `json:"stale"`  // of the hits: the host did not answer
	Passed  int64 `json:"passed"` // nothing to keep
	Served  int64 `json:"servedBytes"`
	Fetched int64 `json:"fetchedBytes"`
}

// Open opens the cache in a directory, which it has for itself.
func Open(cfg Config) (*Cache, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	store, err := openStore(cfg.Dir, cfg.Limit)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		cfg: cfg, store: store, hosts: map[string]*url.URL{}, flights: map[string]*flight{}, down: map[string]time.Time{},
		direct: transport(cfg.Dial), mirror: transport((&net.Dialer{Timeout: answerWithin}).DialContext),
	}
	for _, h := range cfg.Hosts {
		c.hosts[h.Name] = h.Mirror
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

func transport(dial func(context.Context, string, string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext: dial, DisableCompression: true, ForceAttemptHTTP2: true,
		ResponseHeaderTimeout: answerWithin, TLSHandshakeTimeout: answerWithin,
		MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 256 << 10,
	}
}

// Close calls off what is under way and waits for it.
func (c *Cache) Close() {
	c.cancel()
	c.work.Wait()
	c.direct.CloseIdleConnections()
	c.mirror.CloseIdleConnections()
}

// Has reports whether a host, in lower case, is one that the cache answers for.
func (c *Cache) Has(name string) bool {
	_, ok := c.hosts[name]
	return ok
}

// Serve answers a sandbox's request to a host that Has knows.
func (c *Cache) Serve(rw http.ResponseWriter, r *http.Request, scheme, name string) {
	w, ok := readWish(r, scheme, name)
	if !ok || w.credentials != "" && !c.admits(r.Context(), w) {
		c.forward(rw, r, scheme, name)
		return
	}
	for {
		old, file := c.store.get(w.key())
		var f *flight
		if good := old != nil && !w.anew && c.store.isFresh(old); !good && (old != nil || r.Method == http.MethodGet) {
			if f = c.join(w, old); f == nil { // it is there by now
				closeFile(file)
				continue
			}
		}
		defer closeFile(file)
		switch {
		case f != nil:
			defer c.leave(f)
			c.fetch(rw, r, w, f, old, file)
		case old != nil:
			c.answerFromDisk(rw, r, old, file, "hit")
		default:
			c.forward(rw, r, scheme, name)
		}
		return
	}
}

func closeFile(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}

// fetch answers with what a flight brings.
func (c *Cache) fetch(rw http.ResponseWriter, r *http.Request, w wish, f *flight, old *entry, file *os.File) {
	select {
	case <-f.decided:
	case <-r.Context().Done():
		return
	}
	switch {
	case f.outcome == arriving:
		c.misses.Add(1)
		c.stream(rw, r, f)
	case f.outcome == same && old != nil:
		c.answerFromDisk(rw, r, old, file, "hit")
	case f.outcome == stale && old != nil:
		c.kept.Add(1)
		c.answerFromDisk(rw, r, old, file, "stale")
	case f.outcome == unreachable || f.outcome == stale:
		refuse(rw, http.StatusGatewayTimeout, w.host+" cannot be reached, and the package cache does not have this")
	default:
		c.forward(rw, r, w.scheme, w.host)
	}
}

// answerFromDisk answers from the disk: with ranges, and 304 where that is the answer.
func (c *Cache) answerFromDisk(rw http.ResponseWriter, r *http.Request, e *entry, file *os.File, how string) {
	c.hits.Add(1)
	setHeader(rw, e.Header, how)
	modified, _ := http.ParseTime(e.Header["Last-Modified"]) // zero says nothing
	count := &counter{ResponseWriter: rw}
	http.ServeContent(count, r, "", modified, io.NewSectionReader(file, e.offset, e.size-e.offset))
	c.served.Add(count.n)
}

// stream answers with what arrives.
func (c *Cache) stream(rw http.ResponseWriter, r *http.Request, f *flight) {
	setHeader(rw, f.head.Header, "miss")
	if f.length >= 0 {
		rw.Header().Set("Content-Length", strconv.FormatInt(f.length, 10))
	}
	rw.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	n, err := f.copyTo(r.Context(), rw)
	c.served.Add(n)
	if err != nil {
		panic(http.ErrAbortHandler) // the client must see that it is not whole
	}
}

func setHeader(rw http.ResponseWriter, header map[string]string, how string) {
	for name, value := range header {
		rw.Header().Set(name, value)
	}
	rw.Header().Set("X-Cay-Cache", how)
	if rw.Header().Get("Content-Type") == "" {
		rw.Header().Set("Content-Type", "application/octet-stream")
	}
}

// ask sends a wish to its upstream; about the old answer, if there is one.
func (c *Cache) ask(ctx context.Context, w wish, old *entry) (*http.Response, error) {
	if c.isDown(w.host) {
		return nil, cay.Errorf(cay.Unavailable, "%s did not answer a moment ago", w.host)
	}
	mirror := c.hosts[w.host]
	if w.credentials != "" {
		mirror = nil // they are for the host alone
	}
	u, err := w.url(mirror)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", w.accept)
	req.Header.Set("Accept-Encoding", w.encoding)
	req.Header.Set("User-Agent", agent)
	if old != nil && !w.anew {
		if tag := old.Header["Etag"]; tag != "" {
			req.Header.Set("If-None-Match", tag)
		} else if at := old.Header["Last-Modified"]; at != "" {
			req.Header.Set("If-Modified-Since", at)
		}
	}
	t := c.direct
	if mirror != nil {
		t = c.mirror
	}
	send := t.RoundTrip // redirections are the client's to follow
	if isLayer(w.path) {
		if w.credentials != "" {
			req.Header.Set("Authorization", w.credentials)
		}
		send = (&http.Client{Transport: t, CheckRedirect: mayFollow}).Do
	}
	resp, err := send(req)
	if err != nil && ctx.Err() == nil {
		c.setDown(w.host)
	}
	return resp, err
}

// mayFollow bounds the redirections by which registries lead to where their layers lie.
// No other host than the registry gets credentials, and what comes has its digest in
// the path that was asked for.
func mayFollow(next *http.Request, before []*http.Request) error {
	if len(before) > maxRedirects || before[0].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return http.ErrUseLastResponse
	}
	if next.URL.Host != before[0].URL.Host {
		next.Header.Del("Authorization") // also for a host below the registry's name
	}
	return nil
}

// admits reports whether a registry gives a layer to a client with these credentials:
// it gives the first byte, itself or at the place that it redirects to. A redirection
// alone says nothing: a plain http port redirects every request.
func (c *Cache) admits(ctx context.Context, w wish) bool {
	u, err := w.url(nil)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false
	}
	req.Header.Set("Authorization", w.credentials)
	req.Header.Set("Range", "bytes=0-0")
	req.Header.Set("User-Agent", agent)
	resp, err := (&http.Client{Transport: c.direct, CheckRedirect: mayFollow}).Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusPartialContent && strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes 0-0/")
}

func (c *Cache) isDown(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.down[host])
}

func (c *Cache) setDown(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down[host] = time.Now().Add(downFor)
}

// forward has the host itself answer a request, whatever it is, as it would
// without a cache.
func (c *Cache) forward(rw http.ResponseWriter, r *http.Request, scheme, name string) {
	c.passed.Add(1)
	proxy := httputil.ReverseProxy{
		Transport:     c.direct,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.Host = scheme, name, name
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery
			if _, ok := pr.In.Header["User-Agent"]; !ok {
				pr.Out.Header["User-Agent"] = nil
			}
		},
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, _ error) {
			refuse(rw, http.StatusBadGateway, name+" cannot be reached")
		},
	}
	proxy.ServeHTTP(rw, r)
}

func refuse(rw http.ResponseWriter, status int, text string) {
	rw.Header().Set("Content-Type", "application/json; charset=utf-8")
	rw.Header().Set("X-Cay-Cache", "none")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(map[string]any{"code": status, "message": text}) // the client may be gone
}

// Stats says what the cache holds and did.
func (c *Cache) Stats() Stats {
	files, bytes := c.store.size()
	return Stats{
		Files: files, Bytes: bytes, Limit: c.cfg.Limit,
		Hits: c.hits.Load(), Misses: c.misses.Load(), Stale: c.kept.Load(), Passed: c.passed.Load(),
		Served: c.served.Load(), Fetched: c.fetched.Load(),
	}
}

// Clear removes all that is kept, and says how much it was.
func (c *Cache) Clear() (files int, bytes int64, err error) {
	gone, err := c.store.remove(false, func(*entry) bool { return true })
	for _, g := range gone {
		bytes += g.Bytes
	}
	return len(gone), bytes, err
}

// Collect removes files that have not been used for a month; with dry it only
// lists them.
func (c *Cache) Collect(dry bool) ([]cay.Garbage, error) {
	return c.store.remove(dry, func(e *entry) bool { return time.Since(e.used) > unusedFor })
}

// counter counts what a handler writes.
type counter struct {
	http.ResponseWriter
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n += int64(n)
	return n, err
}

// ReadFrom keeps the kernel's short way from file to socket.
func (c *counter) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.ResponseWriter, r)
	c.n += n
	return n, err
}
