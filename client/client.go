// Package client is the Go SDK of Cay: sandboxes, their processes and files.
//
//	c, err := client.New(client.FromEnv())
//	sandbox, err := c.Create(ctx, client.CreateOptions{Template: "base"})
//	defer sandbox.Kill(ctx)
//	result, err := sandbox.Run(ctx, client.Command{Path: "uname", Args: []string{"-a"}})
//
// It speaks the protocol that the official E2B SDKs speak. Errors are
// *cay.Error, with the kind that the server's answer stands for.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/cay-run/cay"
)

// DefaultURL is where a server listens that was told nothing.
const DefaultURL = "http://localhost:7070"

// Config says which server to talk to, and as whom.
type Config struct {
	APIKey string
	// AdminToken is the operator's, for all teams; with it there need be no
	// APIKey.
	AdminToken string
	// Session is a person's, of a login; with it there need be no APIKey.
	Session string
	// Team is the team, by id or name, that calls with the AdminToken or a
	// Session are about.
	Team string
	// Domain is the server's, with a port where it is not 443: requests go to
	// https://api.<domain> where there is no APIURL.
	Domain string
	// APIURL is where the server answers; empty means that of Domain, else
	// DefaultURL.
	APIURL string
	// SandboxURL is where requests for sandboxes go, told apart by headers;
	// empty means https://sandbox.<domain>, or APIURL where there is no Domain:
	// both are one port of one server.
	SandboxURL string
	// HTTP makes the requests; nil means one without a time limit, because
	// commands may run for days.
	HTTP *http.Client
}

// FromEnv reads the variables that E2B's SDKs read: E2B_API_KEY, E2B_DOMAIN,
// E2B_API_URL and E2B_SANDBOX_URL.
func FromEnv() Config {
	return Config{
		APIKey:     os.Getenv("E2B_API_KEY"),
		Domain:     os.Getenv("E2B_DOMAIN"),
		APIURL:     os.Getenv("E2B_API_URL"),
		SandboxURL: os.Getenv("E2B_SANDBOX_URL"),
	}
}

// Client talks to one server. It is safe for concurrent use.
type Client struct{ cfg Config }

// New makes a client. It does not talk to the server yet.
func New(cfg Config) (*Client, error) {
	if cfg.APIKey == "" && cfg.AdminToken == "" && cfg.Session == "" {
		return nil, cay.Errorf(cay.Unauthenticated, "there is no API key").
			WithHint(`set E2B_API_KEY, or log in: cay login; on the server's machine: eval "$(cay env --new-key me)"`)
	}
	switch {
	case cfg.APIURL != "":
	case cfg.Domain != "":
		cfg.APIURL = "https://api." + cfg.Domain
	default:
		cfg.APIURL = DefaultURL
	}
	switch {
	case cfg.SandboxURL != "":
	case cfg.Domain != "":
		cfg.SandboxURL = "https://sandbox." + cfg.Domain
	default:
		cfg.SandboxURL = cfg.APIURL
	}
	for name, s := range map[string]*string{"API": &cfg.APIURL, "sandbox": &cfg.SandboxURL} {
		u, err := url.Parse(*s)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, cay.Errorf(cay.Invalid, "the %s URL %q is not like http://host:port", name, *s)
		}
		*s = strings.TrimRight(*s, "/")
	}
	if cfg.HTTP == nil {
		cfg.HTTP = &http.Client{Transport: transport()}
	}
	return &Client{cfg}, nil
}

// URL is where the server answers.
func (c *Client) URL() string { return c.cfg.APIURL }

// HTTP returns a client whose requests carry the credential, for what this package
// has no calls for. They go to the server alone.
func (c *Client) HTTP() *http.Client { return &http.Client{Transport: presenting{c}} }

type presenting struct{ *Client }

func (p presenting) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(r.URL.String(), p.cfg.APIURL+"/") {
		return nil, cay.Errorf(cay.Denied, "%s is not below %s: it gets no credential", r.URL.Redacted(), p.cfg.APIURL)
	}
	r = r.Clone(r.Context())
	p.present(r.Header)
	transport := p.cfg.HTTP.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	return transport.RoundTrip(r)
}

// call makes a REST request. A nil in or out stands for no body.
func (c *Client) call(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	return c.callWith(ctx, nil, method, path, in, out)
}

// pages asks for a list page by page, until the last one.
func pages[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	var out []T
	query.Set("limit", "100")
	for {
		var page []T
		header, err := c.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page)
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
		next := header.Get("X-Next-Token")
		if next == "" || len(page) == 0 {
			return out, nil
		}
		query.Set("nextToken", next)
	}
}

// callWith is call with headers.
func (c *Client) callWith(ctx context.Context, header http.Header, method, path string, in, out any) (http.Header, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "the request cannot be encoded")
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.cfg.APIURL+path, body)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the request cannot be made")
	}
	maps.Copy(r.Header, header)
	c.present(r.Header)
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.cfg.HTTP.Do(r)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return nil, failure(resp)
	}
	if out == nil || resp.StatusCode == http.StatusAccepted && resp.ContentLength == 0 {
		return resp.Header, nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the server's answer cannot be read").
			WithHint("is %s a server of Cay?", c.cfg.APIURL)
	}
	return resp.Header, nil
}

// present puts what opens the server on a request.
func (c *Client) present(h http.Header) {
	for name, value := range map[string]string{
		"X-API-Key": c.cfg.APIKey, "X-Admin-Token": c.cfg.AdminToken, "X-Team-ID": c.cfg.Team,
	} {
		if value != "" {
			h.Set(name, value)
		}
	}
	if c.cfg.Session != "" {
		h.Set("Authorization", "Bearer "+c.cfg.Session)
	}
}

// unreachable says why a request got no answer.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return cay.Wrap(cay.Unavailable, err, "the server at %s does not answer", c.cfg.APIURL).
		WithHint("start it with `cay up`, or set E2B_DOMAIN or E2B_API_URL to where it is")
}

// failure makes an error of an answer.
func failure(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var body struct {
		Message string `json:"message"`
		Code    string `json:"error_code"`
	}
	_ = json.Unmarshal(text, &body)
	if body.Message == "" {
		body.Message = strings.TrimSpace(resp.Status + " " + strings.TrimSpace(string(text)))
	}
	return &cay.Error{Kind: kindOf(resp.StatusCode), Code: body.Code, Msg: body.Message}
}

func kindOf(status int) cay.Kind {
	switch status {
	case http.StatusBadRequest:
		return cay.Invalid
	case http.StatusUnauthorized:
		return cay.Unauthenticated
	case http.StatusForbidden:
		return cay.Denied
	case http.StatusNotFound:
		return cay.NotFound
	case http.StatusConflict, http.StatusUnprocessableEntity:
		return cay.Conflict
	case http.StatusTooManyRequests:
		return cay.Exhausted
	case http.StatusNotImplemented, http.StatusGone:
		return cay.Unsupported
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return cay.Unavailable
	case http.StatusInsufficientStorage:
		return cay.NoSpace
	}
	return cay.Internal
}
