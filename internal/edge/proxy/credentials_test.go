package proxy

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

func TestCredentialsDoNotReachGuests(t *testing.T) {
	w := newWorld(t)
	var got http.Header
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { got = r.Header.Clone() })
	w.sandbox(t, "i1", func(tg *Target) { tg.AccessToken, tg.TrafficToken = "access", "traffic" },
		map[int]http.Handler{3000: h, 49983: h, 49999: h})
	key := "e2b_" + strings.Repeat("0f", 20)
	volume := string(cay.NewTeamID()) + "." + strings.Repeat("0f", 32)
	basic := func(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }
	all, own, none := []string{"3000", "49983", "49999"}, []string{"49983", "49999"}, []string{}
	for _, c := range []struct {
		header, value string
		reaches       []string // ports
	}{
		{"X-API-Key", key, none},
		{"X-API-Key", "another app's", none},
		{"X-Admin-Token", "any", none},
		{"Authorization", "Bearer sk_" + key, none},
		{"X-Access-Token", key, none},
		{"Authorization", "Bearer cay_session_" + strings.Repeat("0f", 32), none},
		{"Authorization", "Bearer " + volume, none},
		{"X-Access-Token", volume, none},
		{"Authorization", basic("user:" + volume), none},
		{"Authorization", "Bearer " + strings.TrimSuffix(volume, "f"), all},
		{"X-Access-Token", "access", own},
		{"X-Access-Token", "traffic", own},
		{"X-Access-Token", "another app's", all},
		{"Authorization", "Bearer " + key, none},
		{"Authorization", "bearer  " + key, none},
		{"Authorization", "Bearer access", own},
		{"Authorization", key, none},
		{"Authorization", basic("user:" + key), none},
		{"Authorization", basic(key + ":"), none},
		{"Authorization", basic("user:"), all},
		{"Authorization", basic("user:traffic"), own},
		{"Authorization", "Bearer another.app's", all},
		{"Authorization", "Bearer e2b_short", all},
		{"Authorization", "", all},
	} {
		for _, port := range all {
			for _, method := range []string{"GET", "UPGRADE"} {
				req := w.request(t, "GET", "/", port+"-i1.x", nil)
				req.Header.Set(c.header, c.value)
				if method == "UPGRADE" {
					req.Header.Set("Connection", "Upgrade")
					req.Header.Set("Upgrade", "websocket")
				}
				w.do(t, req)
				_, reached := got[http.CanonicalHeaderKey(c.header)]
				if want := slices.Contains(c.reaches, port); reached != want {
					t.Errorf("%s %s: %q reaches port %s: %v, want %v", method, c.header, c.value, port, reached, want)
				}
			}
		}
	}
	req := w.request(t, "GET", "/", "3000-i1.x", nil)
	req.Header["Authorization"] = []string{"Bearer " + key, "Bearer theirs"}
	w.do(t, req)
	if v := got["Authorization"]; !slices.Equal(v, []string{"Bearer theirs"}) {
		t.Errorf("of two credentials %q reach the guest", v)
	}
	if req.Header.Get("Authorization") != "Bearer "+key {
		t.Error("the request itself was changed")
	}
}
