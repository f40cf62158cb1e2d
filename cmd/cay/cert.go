package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/certs"
	"github.com/cay-run/cay/internal/config"
)

type certCmd struct {
	PEM bool `name:"pem" help:"Print the authority's certificate itself, to trust it on another machine."`
}

// Help says when there is one.
func (certCmd) Help() string {
	return `A server with CAY_TLS=local has an authority of its own. Trust it in this shell: eval "$(cay cert)"`
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
	trust, err := trustIn(cfg)
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
	fmt.Fprintf(a.out, "# on this machine, browsers apart (Debian, Ubuntu; as root)\n"+
		"# install -m 644 %s /usr/local/share/ca-certificates/cay.crt && update-ca-certificates\n"+
		"# on another machine: cay cert --pem >cay.crt, and the same there; browsers import that file\n", path)
	return nil
}

func authorityOf(cfg config.Config) ([]byte, error) {
	text, err := os.ReadFile(certs.LocalPath(cfg.Data))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cay.Errorf(cay.NotFound, "the server in %s has no authority of its own", cfg.Data).
			WithHint("start it once with CAY_TLS=local, or set CAY_DATA_DIR to the server's")
	}
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "the authority cannot be read")
	}
	return text, nil
}

// systemRoots are where Linux distributions keep what programs trust.
var systemRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem",
}

// trustIn are variables by which programs trust a server's authority. Most of
// them name what is trusted instead of the system's, so there is a file with
// both.
func trustIn(cfg config.Config) ([][2]string, error) {
	own, err := authorityOf(cfg)
	if err != nil {
		return nil, err
	}
	path := certs.LocalPath(cfg.Data)
	bundle := filepath.Join(filepath.Dir(path), "bundle.pem")
	both := bytes.NewBuffer(bytes.Clone(own))
	for _, name := range systemRoots {
		if roots, err := os.ReadFile(name); err == nil {
			both.Write(roots)
			break
		}
	}
	if old, err := os.ReadFile(bundle); err != nil || !bytes.Equal(old, both.Bytes()) {
		if err := replace(bundle, both.Bytes()); err != nil {
			return nil, cay.Wrap(cay.Unavailable, err, "cannot write %s", bundle).WithHint("run it as root, on the server's machine")
		}
	}
	return [][2]string{
		{"NODE_EXTRA_CA_CERTS", path}, {"SSL_CERT_FILE", bundle}, {"REQUESTS_CA_BUNDLE", bundle}, {"CURL_CA_BUNDLE", bundle},
	}, nil
}

func replace(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
