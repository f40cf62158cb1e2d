package identity

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/cay-run/cay"
)

func open(t *testing.T, dir, address string) *Issuer {
	t.Helper()
	i, err := Open(dir, address, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func mint(t *testing.T, i *Issuer, sandbox cay.SandboxID, audience string) string {
	t.Helper()
	text, err := i.Token("tm", sandbox, audience)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The verifier that others use finds the issuer by its name alone and takes
// its tokens, for their audience.
func TestOthersVerify(t *testing.T) {
	var issuer *Issuer
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	defer srv.Close()
	dir := filepath.Join(t.TempDir(), "identity")
	issuer = open(t, dir, srv.URL+"/")
	mux.HandleFunc(DiscoveryPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(issuer.Discovery()) })
	mux.HandleFunc(KeysPath, func(w http.ResponseWriter, _ *http.Request) {
		keys, err := issuer.Keys()
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(keys)
	})
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("keys are made before one is needed: %v", entries)
	}
	provider, err := oidc.NewProvider(t.Context(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	text := mint(t, issuer, "ix", "sts.example.com")
	for audience, good := range map[string]bool{"sts.example.com": true, "other": false} {
		got, err := provider.Verifier(&oidc.Config{ClientID: audience}).Verify(t.Context(), text)
		if (err == nil) != good {
			t.Errorf("for %q: %v", audience, err)
		}
		if err != nil {
			continue
		}
		if want := "spiffe://127.0.0.1/team/tm/sandbox/ix"; got.Subject != want {
			t.Errorf("the subject is %q, not %q", got.Subject, want)
		}
		if life := got.Expiry.Sub(got.IssuedAt); life > Lifetime || life < time.Minute {
			t.Errorf("it lives for %v", life)
		}
	}
	later := provider.Verifier(&oidc.Config{ClientID: "sts.example.com", Now: func() time.Time { return time.Now().Add(Lifetime + time.Second) }})
	if _, err := later.Verify(t.Context(), text); err == nil {
		t.Error("a token is good for longer than its life")
	}
	again := open(t, dir, srv.URL)
	if _, err := provider.Verifier(&oidc.Config{ClientID: "b"}).Verify(t.Context(), mint(t, again, "ix", "b")); err != nil {
		t.Errorf("after a start: %v", err)
	}
	info, err := os.Stat(again.ring.keys[0].path)
	if err != nil || info.Mode().Perm() != 0o600 || len(again.ring.keys) != 1 {
		t.Errorf("the key: %v, %v", info, err)
	}
}

// A token is sent again while more than half of its life is left, for its
// sandbox and its audience alone.
func TestReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := open(t, t.TempDir(), "https://api.example.com")
		first := mint(t, i, "ix", "a")
		if mint(t, i, "ix", "b") == first || mint(t, i, "iy", "a") == first {
			t.Error("a token is another's")
		}
		time.Sleep(reuse - time.Second)
		if mint(t, i, "ix", "a") != first {
			t.Error("a fresh token was not sent again")
		}
		time.Sleep(2 * time.Second)
		if mint(t, i, "ix", "a") == first {
			t.Error("a token was sent in the second half of its life")
		}
	})
}

func TestKeepsFewTokens(t *testing.T) {
	i := open(t, t.TempDir(), "https://api.example.com")
	now := time.Now()
	for n := range 3 * maxTokens {
		i.keep(holder{"i", string(rune(n))}, token{"", now.Add(Lifetime)}, now)
	}
	if len(i.tokens) > maxTokens {
		t.Errorf("%d are kept", len(i.tokens))
	}
}

// ids are the keys that a document publishes.
func ids(t *testing.T, i *Issuer) []string {
	t.Helper()
	text, err := i.Keys()
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, k := range set.Keys {
		if !k.IsPublic() {
			t.Fatal("a private key is published")
		}
		out = append(out, k.KeyID)
	}
	return out
}

func keyOf(t *testing.T, text string) string {
	t.Helper()
	parsed, err := jose.ParseSignedCompact(text, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Signatures[0].Header.KeyID
}

// A new key is published before it signs, the old one until its tokens are
// over; at each moment the key of every good token is published.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		i := open(t, dir, "https://api.example.com")
		first := keyOf(t, mint(t, i, "ix", "a"))
		time.Sleep(every + time.Minute)
		if got := keyOf(t, mint(t, i, "ix", "a")); got != first {
			t.Errorf("a key signs that none had time to read")
		}
		both := ids(t, i)
		if len(both) != 2 || both[0] != first {
			t.Fatalf("published are %v", both)
		}
		time.Sleep(announced + time.Minute)
		i = open(t, dir, "https://api.example.com") // the clock goes on while no server runs
		if got := keyOf(t, mint(t, i, "ix", "a")); got != both[1] {
			t.Errorf("%q signs, not the new key", got)
		}
		if !slices.Equal(ids(t, i), both) {
			t.Error("the old key is gone before its tokens are over")
		}
		time.Sleep(lingers)
		if got := ids(t, i); !slices.Equal(got, both[1:]) {
			t.Errorf("published are %v", got)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
			t.Errorf("left over: %v", left)
		}
	})
}

// Where no key can be made there is an error and no token; an old key signs on.
func TestNoRoomForAKey(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	none := open(t, filepath.Join(blocked, "identity"), "https://api.example.com")
	if text, err := none.Token("tm", "ix", "a"); err == nil || text != "" {
		t.Errorf("got %q, %v", text, err)
	}
	synctest.Test(t, func(t *testing.T) {
		i := open(t, t.TempDir(), "https://api.example.com")
		first := keyOf(t, mint(t, i, "ix", "a"))
		i.ring.dir = filepath.Join(i.ring.keys[0].path, "no directory")
		time.Sleep(every + time.Minute)
		if got := keyOf(t, mint(t, i, "ix", "a")); got != first || len(ids(t, i)) != 1 {
			t.Errorf("%q signs, not %q", got, first)
		}
	})
}

func TestADamagedKeyIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "1700000000000.pem"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "https://api.example.com", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("it was opened")
	}
}

func TestTrustDomain(t *testing.T) {
	for host, want := range map[string]string{
		"api.cay.localhost:7070": "cay.localhost", "api.Example.com": "example.com", "127.0.0.1:80": "127.0.0.1",
		"[::1]:7070": "cay.localhost", "cay.example.com": "cay.example.com",
	} {
		if got := trustDomain(host); got != want {
			t.Errorf("%s: %q, not %q", host, got, want)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	i := open(t, t.TempDir(), "https://api.example.com")
	var wg sync.WaitGroup
	got := make([]string, 8)
	for n := range got {
		wg.Go(func() { got[n], _ = i.Token("tm", "ix", "a") })
	}
	wg.Wait()
	for _, text := range got {
		if text == "" || text != got[0] {
			t.Errorf("they differ")
		}
	}
}

func BenchmarkToken(b *testing.B) {
	i, err := Open(b.TempDir(), "https://api.example.com", slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	for name, kept := range map[string]bool{"minted": false, "again": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if !kept {
					clear(i.tokens)
				}
				if _, err := i.Token("tm", "ix", "a"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
