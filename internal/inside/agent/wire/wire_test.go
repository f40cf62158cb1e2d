package wire_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cay-run/cay/internal/inside/agent/wire"
)

func TestKeepalive(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"":                      90 * time.Second,
		"50":                    50 * time.Second,
		" 1 ":                   time.Second,
		"0":                     90 * time.Second,
		"-5":                    90 * time.Second,
		"1.5":                   90 * time.Second,
		"2147483647":            24 * time.Hour,
		"99999999999999999999":  90 * time.Second,
		"9223372036854775807 s": 90 * time.Second,
	} {
		if got := wire.Keepalive(http.Header{"Keepalive-Ping-Interval": {text}}); got != want {
			t.Errorf("Keepalive(%q) = %v, want %v", text, got, want)
		}
	}
}

func TestUser(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "",
		"Basic dXNlcjo=":     "user",
		"basic cm9vdDpzZWNy": "root",
		"Basic dXNlcg==":     "user",
		"Basic %%%":          "",
		"Basic":              "",
		"Bearer dXNlcjo=":    "",
		"Basic Og==":         "",
	} {
		if got := wire.User(http.Header{"Authorization": {text}}); got != want {
			t.Errorf("User(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestError(t *testing.T) {
	w := httptest.NewRecorder()
	wire.Error(w, http.StatusUnauthorized, "invalid signature")
	if got := w.Body.String(); w.Code != 401 || got != `{"code":401,"message":"invalid signature"}` {
		t.Errorf("%d %s", w.Code, got)
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add("50", "Basic dXNlcjo=")
	f.Add("-0", "Basic ==")
	f.Fuzz(func(t *testing.T, keepalive, auth string) {
		h := http.Header{"Keepalive-Ping-Interval": {keepalive}, "Authorization": {auth}}
		if d := wire.Keepalive(h); d < time.Second || d > 24*time.Hour {
			t.Errorf("Keepalive(%q) = %v", keepalive, d)
		}
		wire.User(h)
	})
}
