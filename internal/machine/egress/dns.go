package egress

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
	"github.com/cay-run/cay/internal/shares"
)

const (
	maxQuestion  = 512
	questionsUDP = 2048 // under way, of all guests; more are dropped
	questionsOne = 128  // of one guest
	questionsTCP = 128  // connections; more are refused
	questionIdle = 15 * time.Second
	answerTTL    = 30 // seconds; more would outlive changes of policy
	memberTTL    = 5  // members come and go
)

// The types that browsers and runtimes ask for besides addresses; the answer
// is that there is none.
const (
	typeSVCB  dnsmessage.Type = 64
	typeHTTPS dnsmessage.Type = 65
)

// ServeUDP answers guests' questions until the connection is closed.
func (p *Proxy) ServeUDP(c net.PacketConn) {
	places := shares.New[cay.TeamID](questionsUDP, 0)
	buf := make([]byte, maxQuestion+1)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n > maxQuestion {
			continue
		}
		g := p.guest(from)
		if g == nil || g.asking.Load() >= questionsOne {
			continue
		}
		if !places.Take(g.team, 1) {
			continue
		}
		g.asking.Add(1)
		query := append([]byte(nil), buf[:n]...)
		done := func() { g.asking.Add(-1); places.Give(g.team, 1) }
		if !p.start(func() {
			defer done()
			if reply := p.answer(p.ctx, g, query); reply != nil {
				_, _ = c.WriteTo(fit(reply, query), from)
			}
		}) {
			done()
		}
	}
}

// ServeTCP is ServeUDP for connections.
func (p *Proxy) ServeTCP(l net.Listener) {
	places := shares.New[cay.TeamID](questionsTCP, 0)
	for c := range conns.Each(l) {
		g := p.guest(c.RemoteAddr())
		if g == nil || !places.Take(g.team, 1) {
			reset(c)
			continue
		}
		if !p.start(func() {
			defer places.Give(g.team, 1)
			p.serveQuestions(c, g)
		}) {
			places.Give(g.team, 1)
			reset(c)
		}
	}
}

func (p *Proxy) serveQuestions(c net.Conn, g *guest) {
	defer c.Close()
	defer context.AfterFunc(p.ctx, func() { c.Close() })()
	if c.SetDeadline(time.Now().Add(questionIdle)) != nil {
		return
	}
	for {
		query, err := readFramed(c)
		if err != nil || len(query) > maxQuestion {
			return
		}
		reply := p.answer(p.ctx, g, query)
		if reply == nil || writeFramed(c, reply) != nil {
			return
		}
	}
}

// answer answers a guest's question; nil answers nothing. A guest that may
// reach everything gets the answer of the host's name server, without internal
// names. Any other gets the addresses of the names that its policy allows, and
// its other questions neither tell it anything nor leave the host.
func (p *Proxy) answer(ctx context.Context, g *guest, query []byte) []byte {
	h, q, code := readQuestion(query)
	if code == dropQuestion {
		return nil
	}
	if code != dnsmessage.RCodeSuccess {
		return reply(h, q, code, nil)
	}
	r := g.rules.Load()
	name := cleanName(q.Name.String())
	if name == cay.ModelHost && p.cfg.Models != nil {
		return p.answerModels(g, h, q, r)
	}
	if member, ok := strings.CutSuffix(name, "."+cay.PrivateDomain); ok || name == cay.PrivateDomain {
		return p.answerMember(g, h, q, member)
	}
	if p.isServer(r, name) {
		return p.answerServer(g, h, q, r, name)
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return answerLocalhost(h, q)
	}
	if p.cached(r, name) {
		return p.answerCached(h, q)
	}
	_, named := r.names.find(name)
	_, dressed := r.headers.find(name)
	switch {
	case named || dressed && r.everything():
	case p.isAsked(r, name):
		return p.answerAsked(h, q)
	case r.everything():
		return p.answerOpen(ctx, g, h, q, query)
	default:
		g.refuse(cay.Connection{Protocol: "dns", Name: strings.TrimSuffix(q.Name.String(), "."), Address: "dns", Rule: "no rule allows the name"})
		return reply(h, q, dnsmessage.RCodeRefused, nil)
	}
	switch q.Type {
	case dnsmessage.TypeA:
	case dnsmessage.TypeAAAA, typeHTTPS, typeSVCB: // guests have no IPv6, and no hidden names
		return reply(h, q, dnsmessage.RCodeSuccess, nil)
	default:
		g.refuse(cay.Connection{Protocol: "dns", Name: name, Address: "dns", Rule: "only addresses are answered, not " + q.Type.String()})
		return reply(h, q, dnsmessage.RCodeRefused, nil)
	}
	a, err := p.names.lookup(ctx, name)
	switch {
	case err != nil:
		return reply(h, q, dnsmessage.RCodeServerFailure, nil)
	case a.hidden:
		g.refuse(cay.Connection{Protocol: "dns", Name: name, Address: "dns", Rule: "its addresses are in closed ranges"})
		return reply(h, q, dnsmessage.RCodeRefused, nil)
	}
	return reply(h, q, a.code, a.addrs)
}

// answerMember answers with the addresses that a name has in the guest's
// private network. Such a question never leaves the host.
func (p *Proxy) answerMember(g *guest, h dnsmessage.Header, q dnsmessage.Question, name string) []byte {
	found := p.members(g, name)
	switch {
	case len(found) == 0:
		return reply(h, q, dnsmessage.RCodeNameError, nil)
	case q.Type != dnsmessage.TypeA:
		return reply(h, q, dnsmessage.RCodeSuccess, nil)
	}
	return replyFor(h, q, dnsmessage.RCodeSuccess, found, memberTTL)
}

// members are the addresses of those in a guest's private network that have a
// name, or the id, that is asked for; the guest itself may be one.
func (p *Proxy) members(g *guest, name string) []netip.Addr {
	own := g.rules.Load().policy.Private
	if own == nil {
		return nil
	}
	var out []netip.Addr
	p.mu.RLock()
	defer p.mu.RUnlock()
	for addr, other := range p.guests {
		r := other.rules.Load()
		if r == nil || r.policy.Private == nil {
			continue
		}
		x := r.policy.Private
		if x.Team == own.Team && x.Name == own.Name && (x.Member == name || string(other.sandbox) == name) {
			out = append(out, addr)
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), maxAnswers)]
}

// relay has the host's name server answer.
func (p *Proxy) relay(ctx context.Context, query []byte, id uint16) []byte {
	out, err := p.names.ask(ctx, query, func(b []byte) bool {
		return len(b) >= 12 && uint16(b[0])<<8|uint16(b[1]) == id && b[2]&0x80 != 0
	})
	if err != nil {
		return nil
	}
	return out
}

// dropQuestion is the code of what is answered with nothing.
const dropQuestion dnsmessage.RCode = 0xfff

// readQuestion reads a query: one question, of the internet's class.
func readQuestion(b []byte) (h dnsmessage.Header, q dnsmessage.Question, code dnsmessage.RCode) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || h.Response {
		return h, q, dropQuestion
	}
	if h.OpCode != 0 {
		return h, q, dnsmessage.RCodeNotImplemented
	}
	all, err := p.AllQuestions()
	if err != nil || len(all) != 1 {
		return h, q, dnsmessage.RCodeFormatError
	}
	q = all[0]
	if q.Class != dnsmessage.ClassINET {
		return h, q, dnsmessage.RCodeRefused
	}
	return h, q, dnsmessage.RCodeSuccess
}

// reply is an answer. The addresses are said to be the name's own: whichever
// aliases lead to them is not the guest's business.
func reply(h dnsmessage.Header, q dnsmessage.Question, code dnsmessage.RCode, addrs []netip.Addr) []byte {
	return replyFor(h, q, code, addrs, answerTTL)
}

func replyFor(h dnsmessage.Header, q dnsmessage.Question, code dnsmessage.RCode, addrs []netip.Addr, seconds uint32) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{
		ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true, RCode: code,
	}}
	if q.Name.Length > 0 {
		m.Questions = []dnsmessage.Question{q}
	}
	for _, a := range addrs {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: seconds},
			Body:   &dnsmessage.AResource{A: a.As4()},
		})
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}
