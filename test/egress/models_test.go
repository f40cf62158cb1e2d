package egress_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/egress"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// models stands for the gateway of models.
func (w *world) models(rw http.ResponseWriter, r *http.Request, from egress.Visitor, denied string) {
	if denied != "" {
		rw.WriteHeader(http.StatusForbidden)
	}
	fmt.Fprintf(rw, "%s %s from %s of %s: %s", r.Method, r.URL.Path, from.Sandbox, from.Team, denied)
}

// askModels is a request of the guest to models.
func askModels(w *world, host string) (reply, error) {
	return w.client(vnet.Gateway, 80, "").do("POST", host, "/v1/messages", strings.NewReader("{}"))
}

// modelsAnswer is that they answer the guest, at the address that its name server says.
func modelsAnswer(w *world) error {
	got, err := askModels(w, cay.ModelHost)
	more, other := askModels(w, "MODELS.cay.internal.:80")
	want := fmt.Sprintf("POST /v1/messages from %s of %s: ", w.spec.Sandbox, w.spec.Team)
	return errors.Join(status(got, err, 200, want), status(more, other, 200, want), answers(w, "udp4", cay.ModelHost, dnsmessage.TypeA, vnet.Gateway),
		answers(w, "tcp4", cay.ModelHost, dnsmessage.TypeAAAA), unseen(w, ""))
}

// modelsRefuse is that they refuse the guest for a reason.
func modelsRefuse(w *world, why string) error {
	got, err := askModels(w, cay.ModelHost)
	return errors.Join(status(got, err, 403, why), unseen(w, ""))
}

var modelsOpen = group{"models, with the internet", anyName, []attempt{
	{"models answer", modelsAnswer},
	{"other names at their address", func(w *world) error {
		for _, host := range []string{"a.example", "cay.internal", "x.cay.internal", "169.254.77.1", "models.cay.internal.a.example"} {
			got, err := askModels(w, host)
			if err := denied(w, got, err, "closed range"); err != nil {
				return fmt.Errorf("%s: %w", host, err)
			}
		}
		return unseen(w, "")
	}},
	{"models at another address", func(w *world) error {
		for _, a := range []netip.Addr{w.a, w.own()} {
			if got, err := w.client(a, 80, "").do("POST", cay.ModelHost, "/v1/messages", strings.NewReader("{}")); err == nil && strings.Contains(got.body, string(w.spec.Sandbox)) {
				return fmt.Errorf("%s answers %q", a, got.body)
			}
		}
		return nil
	}},
	{"a policy that closes them", func(w *world) error {
		w.policy(cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{cay.ModelHost}})
		defer w.policy(anyName(w))
		return errors.Join(modelsRefuse(w, "denyOut models.cay.internal"), code(w, cay.ModelHost, dnsmessage.TypeA, dnsmessage.RCodeRefused))
	}},
}}

var modelsDenied = group{"models closed by name", func(*world) cay.NetworkPolicy {
	return cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{cay.ModelHost}}
}, []attempt{
	{"models refuse", func(w *world) error {
		return errors.Join(modelsRefuse(w, "denyOut models.cay.internal"), code(w, cay.ModelHost, dnsmessage.TypeA, dnsmessage.RCodeRefused))
	}},
	{"the internet is open", func(w *world) error {
		got, err := w.client(w.a, 80, "").get("a.example", "/")
		return status(got, err, 200, "hello")
	}},
}}

var modelsAlone = group{"models alone", func(*world) cay.NetworkPolicy {
	return cay.NetworkPolicy{AllowOut: []string{cay.ModelHost}}
}, []attempt{
	{"models answer", modelsAnswer},
	{"nothing else does", func(w *world) error {
		got, err := w.client(w.a, 80, "").get("a.example", "/")
		return denied(w, got, err, "allow_internet_access false")
	}},
}}

var modelsAsked = group{"models after a yes", func(*world) cay.NetworkPolicy {
	return cay.NetworkPolicy{AskOut: []string{cay.ModelHost}}
}, []attempt{
	{"a yes", func(w *world) error {
		p := w.person(cay.ModelHost + ":80")
		if err := modelsAnswer(w); err != nil {
			return err
		}
		if n := len(p.questions()); n != 2 { // one for each connection
			return fmt.Errorf("%d questions were asked", n)
		}
		return nil
	}},
	{"a no", func(w *world) error {
		w.person()
		got, err := askModels(w, cay.ModelHost)
		return errors.Join(status(got, err, 403, "askOut models.cay.internal: a person said no"), unseen(w, ""))
	}},
}}

var modelsClosed = group{"models without a network", func(*world) cay.NetworkPolicy { return cay.NetworkPolicy{} }, []attempt{
	{"models refuse", func(w *world) error { return modelsRefuse(w, "no rule allows the name") }},
}}
