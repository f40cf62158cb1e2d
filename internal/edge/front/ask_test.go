package front

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

// The node of a sandbox, or one with a place, does what another one asks for, and its
// errors come as they are.
func TestAsk(t *testing.T) {
	ctx := t.Context()
	db, a, b := pair(t)
	says := func(n *node, err error) {
		f := func(what []byte) ([]byte, error) { return fmt.Appendf(nil, "%s: %s", n.id, what), err }
		n.asked.Store(&f)
	}
	says(a, nil)
	says(b, nil)
	box := put(t, db, "nb")
	b.has.Store(&box)
	ask := func(id cay.SandboxID) (string, error) {
		text, err := a.front.Ask(ctx, id, "base", []byte("do it"))
		return string(text), err
	}
	if text, err := ask(box); err != nil || text != "nb: do it" {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := ask("inone"); err != nil || text != "na: do it" { // who says that there is none
		t.Errorf("of no sandbox: %q, %v", text, err)
	}
	says(b, cay.Wrap(cay.Denied, errors.New("hidden"), "no").WithCode(cay.CodeBounds).WithHint("ask again"))
	var ours *cay.Error
	if _, err := ask(box); !errors.As(err, &ours) || ours.Kind != cay.Denied || ours.Code != cay.CodeBounds || ours.Hint != "ask again" || err.Error() != "no" {
		t.Errorf("an error came as %#v", err)
	}
	says(b, errors.New("hidden"))
	if _, err := ask(box); cay.KindOf(err) != cay.Internal || strings.Contains(err.Error(), "hidden") {
		t.Errorf("an error came as %v", err)
	}
	full := cay.Errorf(cay.Unavailable, "full").WithCode(cay.CodeCapacity)
	says(b, full)
	for range 8 {
		if text, err := ask(""); err != nil || text != "na: do it" {
			t.Fatalf("with one node full: %q, %v", text, err)
		}
	}
	says(b, nil)
	says(a, full)
	for range 8 {
		if text, err := ask(""); err != nil || text != "nb: do it" {
			t.Fatalf("with this node full: %q, %v", text, err)
		}
	}
	says(b, full)
	if _, err := ask(""); cay.CodeOf(err) != cay.CodeCapacity {
		t.Errorf("with all full: %v", err)
	}
	for port, want := range map[int]string{7: string(box) + " of nb\n", 8: ""} {
		conn, err := a.front.Dial(ctx, box, port)
		if want == "" {
			if cay.KindOf(err) != cay.Conflict || cay.CodeOf(err) != cay.CodeBounds {
				t.Errorf("port %d: %v", port, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); line != want {
			t.Errorf("%q, %v", line, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	// A client that says that it is a member is none.
	b.answer(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "as a client ", r.Header.Get(hopAsk), r.Header.Get(hopPort))
	})
	r, err := http.NewRequestWithContext(ctx, "POST", a.public.URL+"/sandboxes/"+string(box), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(hopAsk, "1")
	r.Header.Set(hopPort, "7")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); string(text) != "as a client " {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}
