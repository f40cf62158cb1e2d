package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// A link to send an archive is for its team, its archive and its time, whatever
// key comes with it, and ends with its team.
func TestLinksOfUploads(t *testing.T) {
	w := servertest.Start(t)
	team, err := w.Admin("").CreateTeam(t.Context(), "loaders")
	if err != nil {
		t.Fatal(err)
	}
	key, err := w.Admin(team.ID).CreateAPIKey(t.Context(), client.NewAPIKey{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	link := func(key, name, hash string) *url.URL {
		id := ""
		if code, text := call(t, w, key, "POST", "/v3/templates", `{"name":"`+name+`"}`); code/100 == 2 {
			id = field(t, text, "templateID")
		}
		code, text := call(t, w, key, "GET", "/templates/"+id+"/files/"+hash, "")
		if code != http.StatusCreated {
			t.Fatalf("a link of %s: %d %s", name, code, text)
		}
		u, err := url.Parse(field(t, text, "url"))
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	hash, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	good, theirs := link(key.Key, "loads", hash), link(w.Key, "others", hash)
	send := func(u url.URL, key string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), "PUT", u.String(), strings.NewReader("no archive"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-Key", key)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	with := func(name, value string) url.URL {
		u, q := *good, good.Query()
		q.Set(name, value)
		if value == "" {
			q.Del(name)
		}
		u.RawQuery = q.Encode()
		return u
	}
	elsewhere := *good
	elsewhere.Path = strings.Replace(elsewhere.Path, hash, other, 1)
	for what, u := range map[string]url.URL{
		"another team": with("team", theirs.Query().Get("team")), "another team's proof": with("signature", theirs.Query().Get("signature")),
		"another archive": elsewhere, "a longer life": with("expires", "9999999999"), "no proof": with("signature", ""),
		"no team": with("team", ""), "no time": with("expires", ""),
	} {
		for _, k := range []string{"", key.Key, w.Key} {
			if code, text := send(u, k); code != http.StatusForbidden {
				t.Errorf("a link with %s: %d %s", what, code, text)
			}
		}
	}
	if code, text := send(*good, ""); code == http.StatusForbidden || code == http.StatusUnauthorized {
		t.Errorf("a good link: %d %s", code, text)
	}
	for _, end := range []struct {
		what string
		do   func() error
		code int
	}{
		{"disabled", func() error { _, err := w.Admin("").DisableTeam(t.Context(), "loaders", false); return err }, http.StatusForbidden},
		{"removed", func() error { return w.Admin("").RemoveTeam(t.Context(), "loaders", true) }, http.StatusNotFound},
	} {
		if err := end.do(); err != nil {
			t.Fatal(err)
		}
		code, text := send(*good, "")
		if code != end.code || code == http.StatusForbidden && !strings.Contains(text, cay.CodeTeamDisabled) {
			t.Errorf("a link of a team that is %s: %d %s", end.what, code, text)
		}
	}
}

// field is a text field of an answer.
func field(t *testing.T, text, name string) string {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	value, _ := out[name].(string)
	return value
}
