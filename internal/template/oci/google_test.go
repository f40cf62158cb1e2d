package oci

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/cay-run/cay"
)

// A registry as Google's: a client that shows a service account's key as the
// password of _json_key gets a token, and the token opens it.
func TestGoogle(t *testing.T) {
	needRoot(t)
	const right = "{\n  \"type\": \"service_account\",\n  \"private_key\": \"-----BEGIN PRIVATE KEY-----\\nMII\\n\"\n}\n"
	inner := registry.New(registry.Logger(discard()))
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch user, password, _ := r.BasicAuth(); {
		case r.URL.Path == "/token" && user == "_json_key" && password == right:
			fmt.Fprint(w, `{"token":"open"}`)
		case r.URL.Path != "/token" && r.Header.Get("Authorization") == "Bearer open":
			inner.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="google"`, server.URL))
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	ref, err := name.ParseReference(host+"/project/app:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	auth := authn.FromConfig(authn.AuthConfig{Username: "_json_key", Password: right})
	if err := remote.Write(ref, imageOf(t, layerOf(t, item{name: "f", body: "1"})), remote.WithAuth(auth)); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.TempDir(), Options{PlainHTTP: []string{host}})
	if err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		creds Credentials
		kind  cay.Kind
	}{
		"the key":                  {Credentials{GCP: right}, ""},
		"the key as a password":    {Credentials{Username: "_json_key", Password: right}, ""},
		"another key":              {Credentials{GCP: strings.Replace(right, "MII", "XII", 1)}, cay.Denied},
		"no key":                   {Credentials{}, cay.Denied},
		"what is no key":           {Credentials{GCP: "ya29.token"}, cay.Invalid},
		"a key of another account": {Credentials{GCP: `{"type":"external_account"}`}, cay.Invalid},
	} {
		if _, err := s.Pull(t.Context(), ref.String(), test.creds, nil); cay.KindOf(err) != test.kind {
			t.Errorf("%s: got %v, want %q", what, err, test.kind)
		} else if err != nil && strings.Contains(err.Error(), "PRIVATE KEY") {
			t.Errorf("%s: the error shows the key: %v", what, err)
		}
	}
}
