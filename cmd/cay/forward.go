package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/conns"
)

type forwardCmd struct {
	ID      string   `arg:"" help:"Sandbox's id."`
	Ports   []string `arg:"" name:"[LOCAL:]REMOTE" help:"Port of the sandbox, and before a colon that of this machine; 0 for a free one."`
	Address string   `default:"127.0.0.1" help:"Address of this machine to listen on."`
}

// Help says what it keeps alive.
func (forwardCmd) Help() string {
	return "Runs until it is interrupted. The sandbox does not end meanwhile. " +
		"Programs that listen on the sandbox's loopback alone are reached too."
}

// pair is a port of this machine and one of a sandbox.
type pair struct{ local, remote int }

func parsePair(s string) (pair, error) {
	local, remote, both := strings.Cut(s, ":")
	if !both {
		remote = local
	}
	from, err := strconv.ParseUint(local, 10, 16)
	to, err2 := strconv.ParseUint(remote, 10, 16)
	if err != nil || err2 != nil || to == 0 {
		return pair{}, cay.Errorf(cay.Invalid, "%q is not REMOTE or LOCAL:REMOTE, ports up to 65535", s)
	}
	return pair{int(from), int(to)}, nil
}

func (c *forwardCmd) Run(a *app) error {
	var pairs []pair
	for _, s := range c.Ports {
		p, err := parsePair(s)
		if err != nil {
			return err
		}
		pairs = append(pairs, p)
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	if _, err := api.Connect(a.ctx, c.ID, enough); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	for _, p := range pairs {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(c.Address, strconv.Itoa(p.local)))
		if err != nil {
			return cay.Wrap(cay.Conflict, err, "cannot listen on port %d of this machine", p.local).
				WithHint("choose another: cay sandbox port-forward %s 0:%d", clean(c.ID), p.remote)
		}
		listeners = append(listeners, l)
		if err := a.tellPair(l, p); err != nil {
			return err
		}
	}
	go keepAlive(ctx, api, c.ID)
	over := make(chan error, len(pairs))
	for i, p := range pairs {
		go func() { over <- c.serve(ctx, a, api, listeners[i], p.remote) }()
	}
	select {
	case <-ctx.Done():
		return nil // interrupted, as it is meant to end
	case err := <-over:
		return err
	}
}

// tellPair says where a port of the sandbox is now.
func (a *app) tellPair(l net.Listener, p pair) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(map[string]any{"address": l.Addr().String(), "port": p.remote})
	}
	_, err := fmt.Fprintf(a.out, "%s -> %d\n", l.Addr(), p.remote)
	return err
}

// serve passes connections on until the sandbox is over.
func (c *forwardCmd) serve(ctx context.Context, a *app, api *client.Client, l net.Listener, port int) error {
	for here := range conns.Each(l) {
		go func() {
			defer here.Close()
			there, err := api.Dial(ctx, c.ID, port)
			if err != nil {
				if ctx.Err() == nil {
					fmt.Fprintf(a.err, "port %d: %s\n", port, oneLine(err.Error()))
				}
				return
			}
			defer there.Close()
			defer context.AfterFunc(ctx, func() { here.Close(); there.Close() })()
			join(here, there)
		}()
	}
	return nil
}

// join copies both ways until both directions ended. A break ends both.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	one := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			a.Close()
			b.Close()
		}
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
}
