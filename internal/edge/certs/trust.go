package certs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/spawn"
)

// systemRoots are where Linux distributions keep what programs trust.
var systemRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem",
}

// Bundle writes a file of a data directory's authority and of what this
// machine trusts, for variables such as SSL_CERT_FILE that name what is trusted
// in place of the system's. More are files that the caller trusts already; one
// that is not there adds nothing.
func Bundle(data string, more ...string) (string, error) {
	path := filepath.Join(filepath.Dir(LocalPath(data)), "bundle.pem")
	own, err := os.ReadFile(LocalPath(data))
	if err != nil {
		return "", err
	}
	all := bytes.NewBuffer(bytes.Clone(own))
	for _, name := range systemRoots {
		if roots, err := os.ReadFile(name); err == nil {
			all.Write(roots)
			break
		}
	}
	for _, name := range more {
		roots, err := os.ReadFile(name)
		if err == nil && name != path && !bytes.Contains(all.Bytes(), bytes.TrimSpace(roots)) {
			all.WriteByte('\n')
			all.Write(roots)
		}
	}
	old, missing := os.ReadFile(path)
	if missing == nil && bytes.Equal(old, all.Bytes()) {
		return path, nil
	}
	err = os.WriteFile(path+".new", all.Bytes(), 0o644)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if missing == nil && bytes.HasPrefix(old, own) && errors.Is(err, os.ErrPermission) {
		return path, nil // what root wrote serves every user
	}
	return path, err
}

// stores are where distributions take an authority from, and what makes it
// count.
var stores = []struct{ dir, update string }{
	{"/usr/local/share/ca-certificates", "update-ca-certificates"},   // Debian, Ubuntu, Alpine
	{"/etc/pki/ca-trust/source/anchors", "update-ca-trust"},          // Fedora and its kin
	{"/etc/ca-certificates/trust-source/anchors", "update-ca-trust"}, // Arch
	{"/usr/share/pki/trust/anchors", "update-ca-certificates"},       // SUSE
}

// Person is the user whose browsers are to trust an authority.
type Person struct{ Name, Home string }

// Install has this machine's programs trust the authority of a data directory,
// in place of one that an earlier call installed for it, and the person's
// Chromium too where certutil is there. It returns lines that tell what it did.
func Install(ctx context.Context, data string, person Person) (told []string, err error) {
	text, err := os.ReadFile(LocalPath(data))
	if err != nil {
		return nil, err
	}
	name := installedName(data)
	found := false
	for _, store := range stores {
		update, err := exec.LookPath(store.update)
		if _, missing := os.Stat(store.dir); err != nil || missing != nil {
			continue
		}
		found = true
		path := filepath.Join(store.dir, name+".crt")
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return told, cay.Wrap(cay.Denied, err, "the system's certificates cannot be changed").WithHint("run it as root")
		}
		if err := do(ctx, update); err != nil {
			return told, err
		}
		told = append(told, "this machine's programs trust "+path)
		break
	}
	if !found {
		return nil, cay.Errorf(cay.Unsupported, "it is not known how this system is told of an authority").
			WithHint("import %s by hand", LocalPath(data))
	}
	line, err := installForBrowser(ctx, LocalPath(data), name, person)
	return append(told, line), err
}

// installedName tells the authorities of several data directories apart, and
// stays when one of them makes a new authority.
func installedName(data string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(data)))
	return "cay-" + hex.EncodeToString(sum[:4])
}

// installForBrowser changes the database that Chromium reads on Linux.
func installForBrowser(ctx context.Context, cert, name string, person Person) (string, error) {
	if _, err := exec.LookPath("certutil"); err != nil {
		return "browsers have stores of their own: import " + cert + ", or install libnss3-tools and do this again", nil
	}
	db := filepath.Join(person.Home, ".pki", "nssdb")
	as := func(args ...string) error {
		if person.Name != "" {
			args = append([]string{"runuser", "-u", person.Name, "--"}, args...)
		}
		return do(ctx, args...)
	}
	if _, err := os.Stat(filepath.Join(db, "cert9.db")); err != nil {
		if err := errors.Join(as("mkdir", "-p", "-m", "700", db), as("certutil", "-d", "sql:"+db, "-N", "--empty-password")); err != nil {
			return "", err
		}
	}
	_ = as("certutil", "-d", "sql:"+db, "-D", "-n", name) // the one before, if there is one
	if err := as("certutil", "-d", "sql:"+db, "-A", "-t", "C,,", "-n", name, "-i", cert); err != nil {
		return "", err
	}
	return "Chromium trusts it (" + db + "); Firefox: import " + cert, nil
}

func do(ctx context.Context, args ...string) error {
	out, err := spawn.Command(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return cay.Wrap(cay.Unavailable, fmt.Errorf("%w: %.500s", err, bytes.TrimSpace(out)), "%s failed", args[0])
	}
	return nil
}
