package proxy

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cay-run/cay"
)

func TestWake(t *testing.T) {
	signed := signedURL("/files", "x", "read", "access", "")
	for _, tt := range []struct {
		name, port, path string // path may begin with a method
		header           map[string]string
		wake             error
		status           int
		woken            bool
	}{
		{"agent without token", "49983", "/health", nil, nil, 403, false},
		{"agent with a wrong token", "49983", "/health", map[string]string{"X-Access-Token": "no"}, nil, 403, false},
		{"agent", "49983", "/health", map[string]string{"X-Access-Token": "access"}, nil, 200, true},
		{"signed file", "49983", signed, nil, nil, 200, true},
		{"another file", "49983", signed + "&username=root", nil, nil, 403, false},
		{"expired", "49983", signedURL("/files", "x", "read", "access", "1"), nil, nil, 403, false},
		{"expiring never", "49983", signedURL("/files", "x", "read", "access", "soon"), nil, nil, 403, false},
		{"in time", "49983", signedURL("/files", "x", "read", "access", "99999999999"), nil, nil, 200, true},
		{"signed tar", "49983", signedURL("/files/tar", "x", "read-tar", "access", ""), nil, nil, 200, true},
		{"signed write of a tar", "49983", "PUT " + signedURL("/files/tar", "x", "write-tar", "access", ""), nil, nil, 200, true},
		{"expired tar", "49983", signedURL("/files/tar", "x", "read-tar", "access", "1"), nil, nil, 403, false},
		{"no signature composes", "49983", "POST " + signedURL("/files/compose", "x", "write", "access", ""), nil, nil, 403, false},
		{"internal route", "49983", "/init", map[string]string{"X-Access-Token": "access"}, nil, 404, false},
		{"port without token", "3000", "/", nil, nil, 403, false},
		{"port with a wrong token", "3000", "/", map[string]string{trafficToken: "no"}, nil, 403, false},
		{"port", "3000", "/", map[string]string{trafficToken: "traffic"}, nil, 200, true},
		{"it cannot run", "3000", "/", map[string]string{trafficToken: "traffic"}, cay.Errorf(cay.Conflict, "no"), 409, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			var woken atomic.Bool
			w.cfg.Asleep = func(id cay.SandboxID) (Target, bool) {
				return Target{TrafficToken: "traffic", AccessToken: "access"}, id == "i1"
			}
			w.cfg.Wake = func(context.Context, cay.SandboxID) error {
				woken.Store(true)
				if tt.wake == nil {
					w.sandbox(t, "i1", func(tg *Target) { tg.Public, tg.TrafficToken, tg.AccessToken = false, "traffic", "access" },
						map[int]http.Handler{3000: says("awake"), 49983: says("awake")})
				}
				return tt.wake
			}
			method, path, named := strings.Cut(tt.path, " ")
			if !named {
				method, path = "GET", tt.path
			}
			req := w.request(t, method, path, tt.port+"-i1.localhost", nil)
			for k, v := range tt.header {
				req.Header.Set(k, v)
			}
			resp, body := w.do(t, req)
			if resp.StatusCode != tt.status || woken.Load() != tt.woken || tt.status == 200 && body != "awake" {
				t.Errorf("status %d, woken %v, %s", resp.StatusCode, woken.Load(), body)
			}
			if resp, _ := w.do(t, w.request(t, "GET", "/", "3000-i2.localhost", nil)); resp.StatusCode != 502 {
				t.Errorf("a sandbox that no request may wake: %d", resp.StatusCode)
			}
		})
	}
}

// A browser asks before it sends its token; the token then wakes.
func TestPreflightOfASleeper(t *testing.T) {
	w := newWorld(t)
	w.cfg.Asleep = func(id cay.SandboxID) (Target, bool) { return Target{Public: true, AccessToken: "access"}, id == "i1" }
	w.cfg.Wake = func(context.Context, cay.SandboxID) error {
		t.Error("a preflight woke the sandbox")
		return cay.Errorf(cay.Conflict, "no")
	}
	req := w.request(t, "OPTIONS", "/files", "49983-i1.localhost", nil)
	req.Header.Set("Access-Control-Request-Method", "POST")
	req.Header.Set("Access-Control-Request-Headers", "x-access-token")
	resp, _ := w.do(t, req)
	if resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Origin") != "*" || resp.Header.Get("Access-Control-Allow-Headers") != "x-access-token" {
		t.Errorf("status %d, headers %v", resp.StatusCode, resp.Header)
	}
	plain := w.request(t, "OPTIONS", "/files", "49983-i1.localhost", nil)
	if resp, _ := w.do(t, plain); resp.StatusCode != 403 {
		t.Errorf("what is no preflight: %d", resp.StatusCode)
	}
}
