package member

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func issue(t *testing.T, cluster string, ids ...cay.NodeID) map[cay.NodeID]*Member {
	t.Helper()
	cert, key, err := NewAuthority(cluster)
	if err != nil {
		t.Fatal(err)
	}
	a, err := OpenAuthority(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	out := map[cay.NodeID]*Member{}
	for _, id := range ids {
		files, err := a.Issue(cluster, id)
		if err != nil {
			t.Fatal(err)
		}
		data := t.TempDir()
		if err := files.Write(data); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(data, Dir, keyFile))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("the key: %v, %v", st, err)
		}
		m, err := Open(data)
		if err != nil || m.Node != id || m.Cluster != cluster {
			t.Fatalf("%+v, %v", m, err)
		}
		out[id] = m
	}
	return out
}

// shake has two ends shake hands and returns the errors of both.
func shake(t *testing.T, server, client *tls.Config) (accepted, dialled error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			s := tls.Server(c, server)
			if err = s.Handshake(); err == nil {
				_, err = s.Write([]byte{1})
			}
			s.Close()
		}
		done <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err == nil {
		_, err = c.Read(make([]byte, 1)) // TLS 1.3 refuses a client after its handshake
		c.Close()
	}
	return <-done, err
}

// Members talk to members: by the authority, the cluster, the name and what the
// records say.
func TestMember(t *testing.T) {
	ours := issue(t, "c1", "na", "nb")
	theirs := issue(t, "c2", "na", "nb")
	a, b := ours["na"], ours["nb"]
	admit := func(node cay.NodeID, print string) error {
		if node != "na" || print != a.Fingerprint {
			return errors.New("it is no member")
		}
		return nil
	}
	server := b.ServerConfig(admit)
	for name, x := range map[string]struct {
		client *tls.Config
		opens  bool
	}{
		"a member":                   {a.ClientConfig("nb", b.Fingerprint), true},
		"a member that was removed":  {b.ClientConfig("nb", b.Fingerprint), false},
		"another cluster's":          {theirs["na"].ClientConfig("nb", b.Fingerprint), false},
		"to another node":            {a.ClientConfig("na", b.Fingerprint), false},
		"to another certificate":     {a.ClientConfig("nb", a.Fingerprint), false},
		"a stranger":                 {&tls.Config{InsecureSkipVerify: true}, false}, //nolint:gosec // it does not care
		"a stranger of an older TLS": {&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, false},
	} {
		accepted, dialled := shake(t, server, x.client)
		if opened := accepted == nil && dialled == nil; opened != x.opens {
			t.Errorf("%s: %v, %v", name, accepted, dialled)
		}
	}
	if _, dialled := shake(t, theirs["nb"].ServerConfig(admit), a.ClientConfig("nb", b.Fingerprint)); dialled == nil {
		t.Error("a member talks to another cluster's node")
	}
	if m, err := Open(t.TempDir()); m != nil || err != nil {
		t.Errorf("no member's: %+v, %v", m, err)
	}
	damaged := t.TempDir()
	if err := (Files{Cert: []byte("none"), Key: []byte("none"), Authority: []byte("none")}).Write(damaged); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(damaged); cay.KindOf(err) != cay.Internal {
		t.Errorf("damaged files: %v", err)
	}
}

func TestToken(t *testing.T) {
	token, other := NewToken(), NewToken()
	sealed, err := token.Seal([]byte("keys"))
	if err != nil || strings.Contains(sealed, "keys") || strings.Contains(token.Digest(), token.String()) {
		t.Fatal(sealed, err)
	}
	again, err := ParseToken(" " + token.String() + "\n")
	if err != nil || again.Digest() != token.Digest() {
		t.Fatal(again, err)
	}
	if plain, err := again.Open(sealed); string(plain) != "keys" || err != nil {
		t.Errorf("%q, %v", plain, err)
	}
	if _, err := other.Open(sealed); err == nil {
		t.Error("another token opens it")
	}
	for _, text := range []string{"", "cay_join_", "cay_join_00", token.String() + "00", strings.TrimPrefix(token.String(), tokenPrefix), strings.Replace(token.String(), "join", "join2", 1)} {
		if _, err := ParseToken(text); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A member's certificate lasts two years and is old after three months, and each that lasts longer is
// old; the next one takes its place when the records have it.
func TestRenewal(t *testing.T) {
	cert, key, err := NewAuthority("c")
	if err != nil {
		t.Fatal(err)
	}
	a, err := OpenAuthority(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	make1 := func() (Files, *Member) {
		t.Helper()
		files, err := a.Issue("c", "n")
		if err != nil {
			t.Fatal(err)
		}
		m, err := Parse(files)
		if err != nil {
			t.Fatal(err)
		}
		return files, m
	}
	first, m := make1()
	now := time.Now()
	if m.IsOld(now) || !m.IsOld(now.Add(91*24*time.Hour)) || m.Expires.After(now.AddDate(lasts, 0, 1)) || m.AuthorityExpires.Before(now.AddDate(9, 0, 0)) {
		t.Errorf("it expires %s, its authority %s", m.Expires, m.AuthorityExpires)
	}
	long := *m.cert.Leaf
	long.NotAfter = now.AddDate(10, 0, 0)
	before := *m
	if before.cert.Leaf = &long; !before.IsOld(now) {
		t.Error("one that lasts ten years is not old")
	}
	data := t.TempDir()
	if err := first.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := TakeNext(data, m.Fingerprint); err != nil { // there is none
		t.Fatal(err)
	}
	second, next := make1()
	if err := second.WriteNext(data); err != nil {
		t.Fatal(err)
	}
	for _, recorded := range []*Member{m, next} {
		if err := TakeNext(data, recorded.Fingerprint); err != nil {
			t.Fatal(err)
		}
		if got, err := Open(data); err != nil || got.Fingerprint != recorded.Fingerprint {
			t.Errorf("the records have %s, the directory %+v, %v", recorded.Fingerprint, got, err)
		}
	}
}
