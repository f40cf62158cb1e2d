package operator

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/loopfs"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/template/image"
)

// Client asks the server of this machine.
type Client struct{ host host.Config }

// Ask returns a client of the server with a configuration.
func Ask(cfg config.Config) Client { return Client{Host(cfg)} }

// Collect has the server remove all garbage, or with dry only list it.
func (c Client) Collect(ctx context.Context, dry bool) ([]cay.Garbage, error) {
	route := "/collect"
	if dry {
		route += "?dry=1"
	}
	var out report
	if err := c.ask(ctx, http.MethodPost, route, &out); err != nil {
		return nil, err
	}
	return out.Garbage, out.err()
}

// Loading asks what memory sandboxes may still load, and which removed snapshots
// stay on the disk for that.
func (c Client) Loading(ctx context.Context) (node.Loading, error) {
	var out loadingReport
	if err := c.ask(ctx, http.MethodGet, "/loading", &out); err != nil {
		return node.Loading{}, err
	}
	return out.Loading, out.err()
}

// Cached asks what the data directory holds that the bucket has too.
func (c Client) Cached(ctx context.Context) (cache.State, error) {
	var out cacheReport
	if err := c.ask(ctx, http.MethodGet, "/cache", &out); err != nil {
		return cache.State{}, err
	}
	return out.State, out.err()
}

// NewKey has the server make a key of its first team.
func (c Client) NewKey(ctx context.Context, name string) (string, error) {
	if err := loopfs.Down(c.host.Data); err != nil {
		return "", err
	}
	var out newKey
	if err := c.ask(ctx, http.MethodPost, "/keys/"+url.PathEscape(name), &out); err != nil {
		return "", err
	}
	return out.Key, out.err()
}

// AdminToken asks for what opens all teams.
func (c Client) AdminToken(ctx context.Context) (string, error) {
	var out newKey
	if err := c.ask(ctx, http.MethodGet, "/admin-token", &out); err != nil {
		return "", err
	}
	return out.Key, out.err()
}

// Packages asks about the cache of packages, which clear empties.
func (c Client) Packages(ctx context.Context, clear bool) (PackageReport, error) {
	method := http.MethodGet
	if clear {
		method = http.MethodDelete
	}
	var out PackageReport
	err := c.ask(ctx, method, "/packages", &out)
	if err == nil && out.Error != "" {
		err = cay.Errorf(cay.Internal, "%s", out.Error)
	}
	return out, err
}

// AddExtra has the server build one of the templates that Cay brings but does
// not build by itself.
func (c Client) AddExtra(ctx context.Context, name string, progress image.Progress) error {
	return c.extra(ctx, http.MethodPost, name, progress)
}

// RemoveExtra has the server take one of them away.
func (c Client) RemoveExtra(ctx context.Context, name string) error {
	return c.extra(ctx, http.MethodDelete, name, func(string, int) {})
}

// WaitForTemplates returns when the server has built the templates of those
// names that it builds by itself; no names mean all.
func (c Client) WaitForTemplates(ctx context.Context, names []string, progress image.Progress) error {
	return c.steps(ctx, http.MethodGet, "/backlog?"+url.Values{"name": names}.Encode(), progress)
}

func (c Client) extra(ctx context.Context, method, name string, progress image.Progress) error {
	return c.steps(ctx, method, "/extras/"+url.PathEscape(name), progress)
}

// steps calls a route that answers with the steps of its work.
func (c Client) steps(ctx context.Context, method, route string, progress image.Progress) error {
	var last extraLine
	err := c.call(ctx, method, route, func(lines *json.Decoder) error {
		for !last.Done && last.Error == "" {
			last = extraLine{}
			if err := lines.Decode(&last); err != nil {
				return err
			}
			if last.Step != "" {
				progress(last.Step, last.Percent)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return last.err()
}

// Serving reports whether a server answers on the socket.
func (c Client) Serving(ctx context.Context) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.host.Operator())
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// ask calls a route, and decodes its answer.
func (c Client) ask(ctx context.Context, method, route string, out any) error {
	return c.call(ctx, method, route, func(answer *json.Decoder) error { return answer.Decode(out) })
}

// call calls a route, and has its answer read.
func (c Client) call(ctx context.Context, method, route string, read func(*json.Decoder) error) error {
	return c.stream(ctx, method, route, func(body io.Reader) error { return read(json.NewDecoder(body)) })
}

// stream is call for an answer of any form.
func (c Client) stream(ctx context.Context, method, route string, read func(io.Reader) error) error {
	path := c.host.Operator()
	req, err := http.NewRequestWithContext(ctx, method, "http://server"+route, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if errors.Is(err, os.ErrPermission) {
		return cay.Wrap(cay.Denied, err, "only the server's operator may ask for that").WithHint("run it as root, on the server's machine")
	}
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "no server answers at %s", path).
			WithHint("start one with `cay up`, or set CAY_RUN_DIR to the server's")
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return cay.Errorf(cay.Unsupported, "the server at %s does not know %s %s", path, method, route).
			WithHint("it is of another version than this cay: start it again")
	}
	if err := read(resp.Body); err != nil {
		return cay.Wrap(cay.Unavailable, err, "the server's answer is unusable")
	}
	return nil
}
