package oci

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
)

// parse reads a reference as Docker does: "debian" is docker.io's
// library/debian:latest. Registries that the operator named plain are spoken
// to over http.
func (s *Store) parse(ref string) (name.Reference, error) {
	if len(ref) > 512 {
		return nil, cay.Errorf(cay.Invalid, "an image's name is too long")
	}
	opts := []name.Option{name.WeakValidation}
	parsed, err := name.ParseReference(ref, opts...)
	if err == nil && slices.Contains(s.opts.PlainHTTP, parsed.Context().RegistryStr()) {
		parsed, err = name.ParseReference(ref, append(opts, name.Insecure)...)
	}
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "%q is not the name of an image", ref).
			WithHint("write it as for docker pull, e.g. debian:12 or registry.example.com/team/image:tag")
	}
	return parsed, nil
}

// fetch asks a registry for an image: its configuration now, layers later.
func (s *Store) fetch(ctx context.Context, ref name.Reference, creds Credentials) (v1.Image, error) {
	auth, err := creds.authenticator(ctx, s.client)
	if err != nil {
		return nil, err
	}
	img, err := remote.Image(ref,
		remote.WithContext(ctx),
		remote.WithAuth(auth),
		remote.WithTransport(s.client.Transport),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithUserAgent("cay"),
		remote.WithRetryBackoff(remote.Backoff{Duration: 300 * time.Millisecond, Factor: 3, Jitter: 0.2, Steps: 3}),
	)
	if err != nil {
		return nil, pullError(err, ref.String())
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, pullError(err, ref.String())
	}
	if m.Config.Size > configMost {
		return nil, cay.Errorf(cay.Invalid, "the configuration of %s is too large", ref)
	}
	return img, nil
}

// pullError puts what a registry or the way to it said into our words.
func pullError(err error, what string) error {
	var ours *cay.Error
	var answer *transport.Error
	var dns *net.DNSError
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.As(err, &answer):
		switch answer.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return cay.Wrap(cay.Denied, err, "the registry refuses %s: it does not exist, or the credentials are wrong", what)
		case http.StatusNotFound:
			return cay.Wrap(cay.NotFound, err, "the registry has no image %s", what)
		case http.StatusTooManyRequests:
			return cay.Wrap(cay.Exhausted, err, "the registry allows no more pulls now").
				WithHint("give credentials, or try again later")
		}
		return cay.Wrap(cay.Unavailable, err, "the registry failed for %s with status %d", what, answer.StatusCode)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return cay.Wrap(cay.Unavailable, err, "pulling %s was cancelled", what)
	case errors.As(err, &dns):
		return cay.Wrap(cay.Unavailable, err, "the registry of %s is not known: %v", what, dns)
	case strings.Contains(err.Error(), "no child with platform"):
		return cay.Wrap(cay.NotFound, err, "%s is not made for linux/%s", what, runtime.GOARCH)
	case isMalformed(err):
		return cay.Wrap(cay.Invalid, err, "the registry's answer for %s is no image: %v", what, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return cay.Wrap(cay.Unavailable, err, "the registry ended in the middle of %s", what)
	}
	return cay.Wrap(cay.Unavailable, err, "cannot pull %s: %v", what, err)
}

// isMalformed reports whether an answer came, and is not what it should be.
func isMalformed(err error) bool {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	return errors.As(err, &syntax) || errors.As(err, &kind) || strings.Contains(err.Error(), "error verifying")
}

func (c Credentials) authenticator(ctx context.Context, client *http.Client) (authn.Authenticator, error) {
	switch {
	case c.AWS != nil:
		password, err := ecrPassword(ctx, client, *c.AWS, time.Now())
		if err != nil {
			return nil, err
		}
		return authn.FromConfig(authn.AuthConfig{Username: "AWS", Password: password}), nil
	case c.GCP != "":
		// The key itself is a password for Google's registries, under this name.
		var key struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(c.GCP), &key); err != nil || key.Type != "service_account" {
			return nil, cay.Errorf(cay.Invalid, "the key for Google's registry is not the JSON of a service account").
				WithHint("gcloud iam service-accounts keys create writes one")
		}
		return authn.FromConfig(authn.AuthConfig{Username: "_json_key", Password: c.GCP}), nil
	case c.Username != "" || c.Password != "":
		return authn.FromConfig(authn.AuthConfig{Username: c.Username, Password: c.Password}), nil
	}
	return authn.Anonymous, nil
}

// newClient speaks to registries. A build's client names them, so it reaches only
// addresses outside, but for the hosts that the operator allows.
func newClient(allowed []string, networks outside.Networks) *http.Client {
	dialer := &net.Dialer{Timeout: 20 * time.Second, KeepAlive: 30 * time.Second}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = http.ProxyFromEnvironment
	t.ResponseHeaderTimeout = time.Minute
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slices.Contains(allowed, addr) || viaProxy(addr) {
			return dialer.DialContext(ctx, network, addr)
		}
		c, err := networks.DialContext(ctx, network, addr)
		if cay.KindOf(err) == cay.Denied {
			err = cay.Wrap(cay.Denied, err, "%v: registries are not looked for there", err).
				WithHint("the operator can allow it: CAY_REGISTRIES=%s", addr)
		}
		return c, err
	}
	return &http.Client{Transport: t}
}

// viaProxy reports whether addr is a proxy that the environment names: the
// operator trusts it, and it decides what is reached.
func viaProxy(addr string) bool {
	for _, scheme := range []string{"http", "https"} {
		r := &http.Request{URL: mustURL(scheme + "://registry.invalid/")}
		u, err := http.ProxyFromEnvironment(r)
		if err != nil || u == nil {
			continue
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		if net.JoinHostPort(u.Hostname(), port) == addr {
			return true
		}
	}
	return false
}
