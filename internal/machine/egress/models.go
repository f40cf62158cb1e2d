package egress

import (
	"net/http"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
)

// Visitor is the sandbox that a request comes from.
type Visitor struct {
	Team    cay.TeamID
	Sandbox cay.SandboxID
}

// isModels reports whether a connection was sent to where guests are told that
// cay.ModelHost is.
func (p *Proxy) isModels(dst netip.AddrPort) bool {
	return p.cfg.Models != nil && dst == netip.AddrPortFrom(p.cfg.Gateway, portWeb)
}

// decideModels says whether a guest may ask models: by the rules of names, because
// the address means nothing. denyOut may have this one name.
func (r *rules) decideModels() verdict {
	if i, ok := r.names.find(cay.ModelHost); ok {
		return verdict{allow: true, rule: "allowOut " + r.policy.AllowOut[i], named: true}
	}
	if entry, ok := r.asks.find(cay.ModelHost, r.policy.AskOut); ok {
		return verdict{rule: "askOut " + entry, named: true, ask: true}
	}
	switch {
	case r.noModels:
		return verdict{rule: "denyOut " + cay.ModelHost}
	case r.everything():
		return verdict{allow: true, rule: "internet access"}
	}
	return verdict{rule: "no rule allows the name"}
}

// answerModels leads a guest that may ask models to the gateway.
func (p *Proxy) answerModels(g *guest, h dnsmessage.Header, q dnsmessage.Question, r *rules) []byte {
	if v := r.decideModels(); !v.allow && !v.ask {
		g.refuse(cay.Connection{Protocol: "dns", Name: cay.ModelHost, Address: "dns", Rule: v.rule})
		return reply(h, q, dnsmessage.RCodeRefused, nil)
	}
	return p.answerCached(h, q)
}

// serveModels has a request to cay.ModelHost answered, also one that is refused: the
// refusal is in the words of the wire.
func (w *web) serveModels(rw http.ResponseWriter, r *http.Request, v *visit) {
	decision, denied := v.flow.guest.rules.Load().decideModels(), ""
	switch {
	case decision.ask:
		if why := w.p.mayReach(r.Context(), v.flow, "HTTP", cay.ModelHost); why != "" {
			denied = decision.rule + ": " + why
		}
	case !decision.allow:
		denied = decision.rule
	}
	if denied != "" {
		v.flow.refused("http", cay.ModelHost, denied)
	} else {
		v.flow.allowed("http", cay.ModelHost, decision)
	}
	w.p.cfg.Models(rw, r, Visitor{v.flow.guest.team, v.flow.guest.sandbox}, denied)
}
