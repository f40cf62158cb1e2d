package front

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// A member is given what another one has of snapshots, also of one that is drained; clients, members
// that were removed and strangers are given nothing.
func TestCopies(t *testing.T) {
	db, a, b := pair(t)
	b.front.cfg.Copies = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "copy of ", r.URL.Path, " ", r.URL.RawQuery)
	})
	if err := db.SetDrain(t.Context(), b.id, cay.DrainMove); err != nil {
		t.Fatal(err)
	}
	at, err := a.members.Node(t.Context(), b.id)
	if err != nil {
		t.Fatal(err)
	}
	get := func(by *node, of cay.Node) (int, string, error) {
		resp, err := by.front.AskFor(of)(t.Context(), "/snapshots/s1?file=x")
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text), err
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if code, text, err := get(a, at); code != 200 || text != "copy of /snapshots/s1 file=x" || err != nil {
				t.Errorf("%d %q, %v", code, text, err)
			}
		})
	}
	all.Wait()
	own, err := b.members.Node(t.Context(), a.id)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, err := get(b, own); code != http.StatusNotFound || err != nil {
		t.Errorf("of a node without any: %d, %v", code, err)
	}
	resp, text := ask(t, b, "GET", "/snapshots/s1?file=x", nil, hopFor, toCopy)
	if text == "copy of /snapshots/s1 file=x" {
		t.Errorf("a client is given %d %q", resp.StatusCode, text)
	}
	stranger := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 10 * time.Second}
	r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+at.Address+"/snapshots/s1?file=x", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(hopFor, toCopy)
	if resp, err := stranger.Do(r); err == nil {
		resp.Body.Close()
		t.Errorf("a stranger is answered %d", resp.StatusCode)
	}
	at.Fingerprint = "another"
	if _, _, err := get(a, at); err == nil {
		t.Error("a node with another certificate is believed")
	}
}
