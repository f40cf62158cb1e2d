package egress_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/cay-run/cay"
)

// attempt is one thing that a guest tries. It returns nil when the guest got its
// due, and no more.
type attempt struct {
	name string
	try  func(*world) error
}

// group is attempts under one policy.
type group struct {
	name     string
	policy   func(*world) cay.NetworkPolicy
	attempts []attempt
}

// byName is a policy that allows nothing but names.
func byName(*world) cay.NetworkPolicy {
	return cay.NetworkPolicy{
		AllowInternet: true, DenyOut: []string{cay.AllTraffic},
		AllowOut: []string{"a.example", "*.w.example", "two.example", "private.example", "mixed.example", "meta.example", "moving.example"},
	}
}

func TestEgress(t *testing.T) {
	w := newWorld(t)
	var table strings.Builder
	tab := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	count := 0
	for _, g := range []group{tlsByName, httpByName, rawByName, questions, openQuestions, closedRanges, nothing, addresses, secrets, socks, live, private, hairpin, asking, askingAny, closedAsking, modelsOpen, modelsDenied, modelsAlone, modelsAsked, modelsClosed} {
		for _, a := range g.attempts {
			count++
			ok := t.Run(g.name+"/"+strings.ReplaceAll(a.name, " ", "_"), func(t *testing.T) {
				w.policy(g.policy(w))
				w.seen()
				if err := a.try(w); err != nil {
					t.Errorf("%s: %v (servers saw %q)", a.name, err, w.seen())
				}
			})
			fmt.Fprintf(tab, "%s\t%s\t%s\n", map[bool]string{true: "held", false: "BROKEN"}[ok], g.name, a.name)
		}
	}
	tab.Flush()
	t.Logf("%d attempts\n%s", count, table.String())
}

// refused wants an error, and that no server but those of names saw anything.
func refused(w *world, err error) error {
	if err == nil {
		return errors.New("it got through")
	}
	return unseen(w, "")
}

// unseen wants that no server saw anything with a text, apart from questions
// when the text is empty.
func unseen(w *world, text string) error {
	for _, hit := range w.seen() {
		if text == "" && !strings.HasPrefix(hit, "dns ") || text != "" && strings.Contains(hit, text) {
			return fmt.Errorf("a server saw %q", hit)
		}
	}
	return nil
}

func saw(w *world, text string) error {
	hits := w.seen()
	if !slices.ContainsFunc(hits, func(h string) bool { return strings.Contains(h, text) }) {
		return fmt.Errorf("no server saw %q but %q", text, hits)
	}
	return nil
}

// status wants an answer with a status and a text in its body.
func status(got reply, err error, want int, text string) error {
	if err != nil {
		return err
	}
	if got.status != want || !strings.Contains(got.body, text) {
		return fmt.Errorf("answered %d %q, want %d with %q", got.status, got.body, want, text)
	}
	return nil
}

// denied wants a 403 with a reason in JSON, and that no server saw a request.
func denied(w *world, got reply, err error, reason string) error {
	if err := status(got, err, 403, reason); err != nil {
		return err
	}
	if !strings.Contains(got.body, `"rule":`) {
		return fmt.Errorf("no reason in %q", got.body)
	}
	return unseen(w, "")
}
