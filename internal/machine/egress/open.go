package egress

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
)

// A guest that may reach everything may ask everything, and gets what the
// host's name server says, but for internal names: on a cloud or in a company
// that server knows hosts which no sandbox may reach, or hear of. To a guest
// they do not exist.

// innerDomains are domains that have no place in the internet. Names of one
// word have none either.
var innerDomains = []string{"local", "internal", "intranet", "lan", "home", "corp", "private", "localdomain", "home.arpa"}

// noInternalName is why a question is answered as if a name did not exist.
const noInternalName = "internal names are not resolved"

// answerOpen answers a guest that may reach everything.
func (p *Proxy) answerOpen(ctx context.Context, g *guest, h dnsmessage.Header, q dnsmessage.Question, query []byte) []byte {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	hide := func() []byte {
		g.refuse(cay.Connection{Protocol: "dns", Name: name, Address: "dns", Rule: noInternalName})
		return reply(h, q, dnsmessage.RCodeNameError, nil)
	}
	address := q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA
	switch {
	case address:
	case isInner(name), p.isClosedReverse(name):
		return hide()
	default: // any other record says that the name exists
		if a, err := p.names.lookup(ctx, cleanName(name)); err == nil && a.hidden {
			return hide()
		}
	}
	said := p.relay(ctx, query, h.ID)
	if said == nil {
		return nil
	}
	out, hidden, err := p.withoutClosed(said)
	switch {
	case err != nil:
		return reply(h, q, dnsmessage.RCodeServerFailure, nil)
	case hidden:
		return hide()
	}
	return out
}

// isInner reports whether a name has no place in the internet.
func isInner(name string) bool {
	if name == "" { // the root
		return false
	}
	return !strings.Contains(name, ".") ||
		slices.ContainsFunc(innerDomains, func(d string) bool { return name == d || strings.HasSuffix(name, "."+d) })
}

// isClosedReverse reports whether a name asks for the name of an address that
// is closed, or of a range that begins with one. Guests have no IPv6, and get
// no names of it.
func (p *Proxy) isClosedReverse(name string) bool {
	if strings.HasSuffix("."+name, ".ip6.arpa") {
		return true
	}
	labels, ok := strings.CutSuffix("."+name, ".in-addr.arpa")
	if !ok {
		return false
	}
	octets := strings.Split(strings.TrimPrefix(labels, "."), ".")
	slices.Reverse(octets)
	var b [4]byte
	for i, text := range octets {
		n, err := strconv.ParseUint(text, 10, 8)
		if i >= len(b) || err != nil {
			return true
		}
		b[i] = byte(n)
	}
	return p.cfg.Closed(netip.AddrFrom4(b))
}

// withoutClosed takes closed addresses out of an answer. It is hidden where no
// other answers to its question are left. A guest's own loopback stays.
func (p *Proxy) withoutClosed(said []byte) (out []byte, hidden bool, err error) {
	var m dnsmessage.Message
	if err := m.Unpack(said); err != nil {
		return nil, false, err
	}
	had, gone := 0, 0
	closed := func(r dnsmessage.Resource) bool {
		a, ok := addressOf(r)
		if !ok {
			return false
		}
		had++
		open := a.IsLoopback() || a.Is4() && !p.cfg.Closed(a) || a.Is6() && outside.Internet(a)
		if !open {
			gone++
		}
		return !open
	}
	m.Answers = slices.DeleteFunc(m.Answers, closed)
	if gone > 0 && gone == had {
		return nil, true, nil
	}
	m.Authorities = slices.DeleteFunc(m.Authorities, closed)
	m.Additionals = slices.DeleteFunc(m.Additionals, closed)
	if gone == 0 {
		return said, false, nil
	}
	out, err = m.Pack()
	return out, false, err
}

func addressOf(r dnsmessage.Resource) (netip.Addr, bool) {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(body.A), true
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(body.AAAA).Unmap(), true
	}
	return netip.Addr{}, false
}

// answerLocalhost answers for names that are the guest itself.
func answerLocalhost(h dnsmessage.Header, q dnsmessage.Question) []byte {
	if q.Type != dnsmessage.TypeA {
		return reply(h, q, dnsmessage.RCodeSuccess, nil)
	}
	return reply(h, q, dnsmessage.RCodeSuccess, []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})})
}

// fit cuts an answer to what a client takes in a datagram: it asks again over
// TCP then.
func fit(answer, query []byte) []byte {
	size := 512
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err == nil && p.SkipAllQuestions() == nil && p.SkipAllAnswers() == nil && p.SkipAllAuthorities() == nil {
		for {
			head, err := p.AdditionalHeader()
			if err != nil {
				break
			}
			if head.Type == dnsmessage.TypeOPT {
				size = max(size, int(head.Class))
			}
			if p.SkipAdditional() != nil {
				break
			}
		}
	}
	if len(answer) <= size {
		return answer
	}
	_, q, _ := readQuestion(query)
	m := dnsmessage.Message{Header: dnsmessage.Header{
		ID: h.ID, Response: true, Truncated: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true,
	}}
	if q.Name.Length > 0 {
		m.Questions = []dnsmessage.Question{q}
	}
	short, err := m.Pack()
	if err != nil {
		return nil
	}
	return short
}
