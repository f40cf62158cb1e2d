package front

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
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

// Large answers come whole, byte by byte, over connections that small ones use, too; one that breaks
// off is seen to.
func TestLargeCopies(t *testing.T) {
	_, a, b := pair(t)
	large := make([]byte, 3<<20+123)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large)
	b.front.cfg.Copies = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		w.Header().Set("Content-Length", strconv.Itoa(n))
		if r.URL.Query().Has("broken") {
			_, _ = w.Write(large[:n/2])
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(large[:n])
	})
	at, err := a.members.Node(t.Context(), b.id)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) ([]byte, error) {
		resp, err := a.front.AskFor(at)(t.Context(), path)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		return io.ReadAll(resp.Body)
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for _, n := range []int{len(large), 1, batch, 0, batch + i, 1 << 20, 16 << 10, 5000} {
				if got, err := get("/?n=" + strconv.Itoa(n)); err != nil || !bytes.Equal(got, large[:n]) {
					t.Errorf("of %d bytes come %d, %v", n, len(got), err)
				}
			}
			if got, err := get("/?broken&n=100000"); err == nil {
				t.Errorf("%d bytes of an answer that breaks off are taken for all", len(got))
			}
		})
	}
	all.Wait()
}
