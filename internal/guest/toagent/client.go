// Package toagent calls the internal routes of a guest's agent from its host. It
// is apart from what host and guest share, so that the agent has nothing of the
// domain in it: a template is built anew whenever the agent changes.
package toagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// maxReply bounds what the host reads of any answer of an agent: the guest is
// hostile.
const maxReply = 64 << 10

// Client calls the internal routes of one agent from its host.
type Client struct {
	base string
	http *http.Client
}

// New returns a client of the agent at addr, with a connection for each
// call.
func New(addr netip.Addr) *Client { return newClient(addr, false) }

// NewKept returns a client whose connection is kept from one call to the
// next, until Close. A guest that is frozen meanwhile answers no probe, so none
// is sent; and it may be dead at the end, which is one reset then, and no close
// that waits for an answer.
func NewKept(addr netip.Addr) *Client { return newClient(addr, true) }

func newClient(addr netip.Addr, kept bool) *Client {
	dial := (&net.Dialer{Timeout: 2 * time.Second}).DialContext
	if kept {
		dial = dialKept
	}
	return &Client{
		base: "http://" + net.JoinHostPort(addr.String(), strconv.Itoa(guest.AgentPort)),
		http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: !kept}},
	}
}

func dialKept(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: -1}).DialContext(ctx, network, addr)
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = tcp.SetLinger(0)
	}
	return conn, err
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Init gives the agent its identity. token is what the agent has now, empty
// for none.
func (c *Client) Init(ctx context.Context, token string, in guest.Init) (guest.InitReply, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return guest.InitReply{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/init", bytes.NewReader(body))
	if err != nil {
		return guest.InitReply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("X-Access-Token", token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return guest.InitReply{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return guest.InitReply{}, err
	}
	if resp.StatusCode != http.StatusOK && bytes.Contains(text, []byte(syscall.ENOSPC.Error())) {
		return guest.InitReply{}, cay.Errorf(cay.NoSpace, "its own disk is full: the agent cannot write the marks of its identity: %.200q", text).
			WithHint("start it from a checkpoint with less on its disk, or give its template a larger one")
	}
	if resp.StatusCode == http.StatusUnprocessableEntity {
		var refusal struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(text, &refusal) // the guest shaped it
		return guest.InitReply{}, cay.Errorf(cay.Invalid, "%.300q", refusal.Message).
			WithHint("mount the volume at another path")
	}
	if resp.StatusCode != http.StatusOK {
		return guest.InitReply{}, fmt.Errorf("agent answered /init with %d: %.200q", resp.StatusCode, text)
	}
	var out guest.InitReply
	if err := json.Unmarshal(text, &out); err != nil {
		return guest.InitReply{}, fmt.Errorf("agent's answer to /init: %w", err)
	}
	return out, nil
}

// WaitReady calls until the port answers GET /health with 2xx or ctx ends. A
// just-booted guest refuses connections for a while; 5 ms between tries costs
// less than it finds. All tries go over one connection: one for each would leave
// hundreds that are over in the guest, where its snapshot keeps them and each
// restore reads them again.
func (c *Client) WaitReady(ctx context.Context, port int) error {
	asking := &http.Client{Transport: &http.Transport{DialContext: dialKept}}
	defer asking.CloseIdleConnections()
	u := c.base + "/health"
	if port != guest.AgentPort {
		u = c.on(port) + "/health"
	}
	var last error
	for {
		err := health(ctx, asking, u)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// maxExecuted bounds how much of an execution's answer is read, in bytes.
const maxExecuted = 1 << 20

// Execute runs Python in the guest's interpreter and waits for its end. The
// caller wants it to have run: its results are read and dropped.
func (c *Client) Execute(ctx context.Context, code string) error {
	body, err := json.Marshal(map[string]string{"code": code})
	if err != nil {
		return err
	}
	return c.interp(ctx, guest.ExecutePath, body)
}

// Rehearse has the guest's interpreter do what a first execution does, without a
// trace, and waits for its end. Interpreters that are older cannot.
func (c *Client) Rehearse(ctx context.Context) error {
	return c.interp(ctx, guest.RehearsePath, nil)
}

// interp posts to the guest's interpreter and drops what it streams.
func (c *Client) interp(ctx context.Context, path string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.on(guest.InterpPort)+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxExecuted))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = cay.Errorf(cay.Unavailable, "the interpreter answered %d", resp.StatusCode)
	}
	return err
}

// on is the base of a port's addresses.
func (c *Client) on(port int) string {
	host, _, _ := net.SplitHostPort(c.base[len("http://"):])
	return "http://" + net.JoinHostPort(host, strconv.Itoa(port))
}

func health(ctx context.Context, client *http.Client, u string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// Else the connection is not used again.
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply)); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %d", u, resp.StatusCode)
	}
	return nil
}
