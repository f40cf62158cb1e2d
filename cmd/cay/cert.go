package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/edge/certs"
)

type certCmd struct {
	PEM bool `name:"pem" help:"Print the authority's certificate itself, to trust it on another machine."`
}

// Help says when there is one.
func (certCmd) Help() string {
	return `A server on localhost, or with CAY_TLS=local, has an authority of its own. Trust it in this shell: eval "$(cay cert)"`
}

func (c *certCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	path := certs.LocalPath(cfg.Data)
	text, err := authorityOf(cfg)
	if err != nil {
		return err
	}
	if c.PEM {
		_, err := a.out.Write(text)
		return err
	}
	trust, err := a.trustIn(cfg)
	if err != nil {
		return err
	}
	if a.json {
		out := map[string]string{"certificate": path}
		for _, l := range trust {
			out[l[0]] = l[1]
		}
		return a.printJSON(out)
	}
	fmt.Fprintf(a.out, "# in this shell: SDKs, curl, Python, Node\n")
	for _, l := range trust {
		fmt.Fprintf(a.out, "export %s=%s\n", l[0], l[1])
	}
	fmt.Fprintf(a.out, "# on this machine, browsers too: cay env --install-trust\n"+
		"# on another one: cay cert --pem >cay.crt; on Debian and Ubuntu, as root, put it into\n"+
		"# /usr/local/share/ca-certificates and run update-ca-certificates; browsers import the file\n")
	return nil
}

func authorityOf(cfg config.Config) ([]byte, error) {
	text, err := os.ReadFile(certs.LocalPath(cfg.Data))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cay.Errorf(cay.NotFound, "the server in %s has no authority of its own", cfg.Data).
			WithHint("it makes one when it starts with CAY_TLS=local, or on localhost without a domain; or set CAY_DATA_DIR to the server's")
	}
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "the authority cannot be read")
	}
	return text, nil
}

// trustIn are variables by which programs trust a server's authority. Most of
// them name what is trusted in place of the system's, so they name a file with
// both.
func (a *app) trustIn(cfg config.Config) ([][2]string, error) {
	if _, err := authorityOf(cfg); err != nil {
		return nil, err
	}
	own, node := certs.LocalPath(cfg.Data), a.getenv("NODE_EXTRA_CA_CERTS")
	bundle, err := certs.Bundle(cfg.Data, a.getenv("SSL_CERT_FILE"), a.getenv("REQUESTS_CA_BUNDLE"), node)
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "the certificates to trust cannot be written").
			WithHint("run it as root, on the server's machine")
	}
	if node != "" && node != own { // this one adds to what Node has
		own = bundle
	}
	return [][2]string{
		{"NODE_EXTRA_CA_CERTS", own},
		{"SSL_CERT_FILE", bundle}, {"REQUESTS_CA_BUNDLE", bundle}, {"CURL_CA_BUNDLE", bundle},
	}, nil
}
