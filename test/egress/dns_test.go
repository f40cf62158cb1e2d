package egress_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/vnet"
)

var nameServer = netip.AddrPortFrom(vnet.DNS, 53)

// answers asks the guest's name server and wants these addresses.
func answers(w *world, network, name string, kind dnsmessage.Type, want ...netip.Addr) error {
	m, err := w.ask(network, nameServer, name, kind)
	if err != nil {
		return err
	}
	var got []netip.Addr
	for _, a := range m.Answers {
		body, ok := a.Body.(*dnsmessage.AResource)
		if !ok {
			return fmt.Errorf("answered with %s", a.Header.Type)
		}
		got = append(got, netip.AddrFrom4(body.A))
	}
	if m.RCode != dnsmessage.RCodeSuccess || fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("answered %s with %v, want %v", m.RCode, got, want)
	}
	return nil
}

// code wants a code, no answer, and that the host's name server saw nothing.
func code(w *world, name string, kind dnsmessage.Type, want dnsmessage.RCode) error {
	m, err := w.ask("udp4", nameServer, name, kind)
	if err != nil {
		return err
	}
	if m.RCode != want || len(m.Answers) > 0 {
		return fmt.Errorf("answered %s with %v, want %s", m.RCode, m.Answers, want)
	}
	return unseen(w, "dns")
}

// raw sends a message that no honest program sends.
func raw(w *world, m dnsmessage.Message, want dnsmessage.RCode) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	got, err := w.askRaw("udp4", nameServer, b)
	if err != nil {
		return err
	}
	if got.RCode != want || len(got.Answers) > 0 {
		return fmt.Errorf("answered %s with %v, want %s", got.RCode, got.Answers, want)
	}
	return unseen(w, "dns")
}

func aQuestion(name string, kind dnsmessage.Type, class dnsmessage.Class) dnsmessage.Question {
	return dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: class}
}

var questions = group{"questions by name", byName, []attempt{
	{"an allowed name is answered", func(w *world) error { return answers(w, "udp4", "a.example", dnsmessage.TypeA, w.a) }},
	{"an allowed name is answered over TCP", func(w *world) error { return answers(w, "tcp4", "two.example", dnsmessage.TypeA, w.a, w.b) }},
	{"there is no IPv6", func(w *world) error { return answers(w, "udp4", "a.example", dnsmessage.TypeAAAA) }},
	{"there is no record for HTTPS", func(w *world) error { return answers(w, "udp4", "a.example", 65) }},
	{"an allowed name that is not there", func(w *world) error {
		m, err := w.ask("udp4", nameServer, "none.w.example", dnsmessage.TypeA)
		if err != nil || m.RCode != dnsmessage.RCodeNameError {
			return fmt.Errorf("answered %s, %v", m.RCode, err)
		}
		return nil
	}},
	{"another name", func(w *world) error { return code(w, "b.example", dnsmessage.TypeA, dnsmessage.RCodeRefused) }},
	{"data in a name", func(w *world) error {
		return code(w, strings.Repeat("x", 60)+"."+strings.Repeat("y", 60)+".b.example", dnsmessage.TypeA, dnsmessage.RCodeRefused)
	}},
	{"data below an allowed name", func(w *world) error {
		return code(w, "data.a.example", dnsmessage.TypeA, dnsmessage.RCodeRefused)
	}},
	{"a TXT record", func(w *world) error { return code(w, "a.example", dnsmessage.TypeTXT, dnsmessage.RCodeRefused) }},
	{"a NULL record", func(w *world) error { return code(w, "a.example", 10, dnsmessage.RCodeRefused) }},
	{"every record", func(w *world) error { return code(w, "a.example", dnsmessage.TypeALL, dnsmessage.RCodeRefused) }},
	{"a mail server", func(w *world) error { return code(w, "a.example", dnsmessage.TypeMX, dnsmessage.RCodeRefused) }},
	{"the name of an address", func(w *world) error {
		return code(w, "1.99.88.192.in-addr.arpa", dnsmessage.TypePTR, dnsmessage.RCodeRefused)
	}},
	{"another class", func(w *world) error {
		return raw(w, dnsmessage.Message{Questions: []dnsmessage.Question{aQuestion("a.example.", dnsmessage.TypeA, dnsmessage.ClassCHAOS)}}, dnsmessage.RCodeRefused)
	}},
	{"two questions", func(w *world) error {
		q := aQuestion("a.example.", dnsmessage.TypeA, dnsmessage.ClassINET)
		return raw(w, dnsmessage.Message{Questions: []dnsmessage.Question{q, q}}, dnsmessage.RCodeFormatError)
	}},
	{"an update", func(w *world) error {
		m := dnsmessage.Message{Questions: []dnsmessage.Question{aQuestion("a.example.", dnsmessage.TypeA, dnsmessage.ClassINET)}}
		m.OpCode = 5
		return raw(w, m, dnsmessage.RCodeNotImplemented)
	}},
	{"data in the case of letters", func(w *world) error {
		if err := answers(w, "udp4", "SuB.w.eXaMpLe", dnsmessage.TypeA, w.a); err != nil {
			return err
		}
		return unseen(w, "SuB")
	}},
	{"an alias of a private address", func(w *world) error {
		m, err := w.ask("udp4", nameServer, "private.example", dnsmessage.TypeA)
		if err != nil || m.RCode != dnsmessage.RCodeRefused || len(m.Answers) > 0 {
			return fmt.Errorf("answered %s with %v, %v", m.RCode, m.Answers, err)
		}
		return nil
	}},
	{"a name of the metadata service", func(w *world) error {
		m, err := w.ask("udp4", nameServer, "meta.example", dnsmessage.TypeA)
		if err != nil || m.RCode != dnsmessage.RCodeRefused || len(m.Answers) > 0 {
			return fmt.Errorf("answered %s with %v, %v", m.RCode, m.Answers, err)
		}
		return nil
	}},
	{"a private address among public ones", func(w *world) error { return answers(w, "udp4", "mixed.example", dnsmessage.TypeA, w.a) }},
	{"rebinding", func(w *world) error {
		w.mu.Lock()
		w.zone["moving.example"] = []netip.Addr{w.a}
		w.mu.Unlock()
		if err := answers(w, "udp4", "moving.example", dnsmessage.TypeA, w.a); err != nil {
			return err
		}
		w.mu.Lock()
		w.zone["moving.example"] = []netip.Addr{w.private[2]}
		w.mu.Unlock()
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			m, err := w.ask("udp4", nameServer, "moving.example", dnsmessage.TypeA)
			if err == nil && m.RCode == dnsmessage.RCodeRefused {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("answered %v, %v for ever", m.Answers, err)
			}
		}
		w.seen()
		_, err := w.client(w.private[2], 80, "").get("moving.example", "/")
		return refused(w, err)
	}},
	{"another name server", func(w *world) error {
		_, err := w.ask("udp4", netip.AddrPortFrom(w.b, 53), "b.example", dnsmessage.TypeA)
		return errors.Join(refused(w, err), unseen(w, "dns"))
	}},
	{"a name server that the policy opens", func(w *world) error {
		p := byName(w)
		p.DNSServers = []string{w.b.String(), w.private[0].String()}
		w.policy(p)
		_, err := w.ask("udp4", netip.AddrPortFrom(w.b, 53), "b.example", dnsmessage.TypeA)
		if err != nil {
			return err
		}
		_, err = w.ask("udp4", netip.AddrPortFrom(w.private[0], 53), "b.example", dnsmessage.TypeA)
		if err == nil {
			return errors.New("a private address was opened")
		}
		return nil
	}},
	{"a name server that counts without a domain", func(w *world) error {
		w.policy(cay.NetworkPolicy{DNSServers: []string{w.b.String()}})
		_, err := w.ask("udp4", netip.AddrPortFrom(w.b, 53), "b.example", dnsmessage.TypeA)
		return errors.Join(refused(w, err), unseen(w, "dns"))
	}},
	{"another name server over TCP", func(w *world) error {
		_, err := w.ask("tcp4", netip.AddrPortFrom(w.b, 53), "b.example", dnsmessage.TypeA)
		return refused(w, err)
	}},
	{"the host's name server past ours", func(w *world) error {
		_, err := w.ask("udp4", netip.AddrPortFrom(w.private[0], 53), "b.example", dnsmessage.TypeA)
		return errors.Join(refused(w, err), unseen(w, "dns"))
	}},
}}

// internal wants that a name does not seem to exist to a guest that may reach
// everything, whatever it asks about it.
func internal(w *world, name string, kinds ...dnsmessage.Type) error {
	for _, kind := range kinds {
		for _, network := range []string{"udp4", "tcp4"} {
			m, err := w.ask(network, nameServer, name, kind)
			if err != nil || m.RCode != dnsmessage.RCodeNameError || len(m.Answers)+len(m.Authorities)+len(m.Additionals) > 0 {
				return fmt.Errorf("%s of %s over %s: %s, %v, %v", kind, name, network, m.RCode, m.Answers, err)
			}
		}
	}
	return nil
}

func openPolicy(*world) cay.NetworkPolicy { return cay.DefaultNetwork() }

var everyKind = []dnsmessage.Type{
	dnsmessage.TypeA, dnsmessage.TypeTXT, dnsmessage.TypeSRV, dnsmessage.TypeMX, dnsmessage.TypeNS, dnsmessage.TypeSOA, dnsmessage.TypeALL, 65,
}

var openQuestions = group{"questions under an open policy", openPolicy, []attempt{
	{"a public name is answered", func(w *world) error { return answers(w, "udp4", "b.example", dnsmessage.TypeA, w.b) }},
	{"a public name is answered over TCP", func(w *world) error { return answers(w, "tcp4", "two.example", dnsmessage.TypeA, w.a, w.b) }},
	{"a name that is not there", func(w *world) error { return internal(w, "none.example", dnsmessage.TypeA, dnsmessage.TypeTXT) }},
	{"other records of a public name", func(w *world) error {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeTXT, dnsmessage.TypeAAAA, 65} {
			if err := answers(w, "udp4", "a.example", kind); err != nil {
				return err
			}
		}
		return nil
	}},
	{"a name of a private address", func(w *world) error { return internal(w, "private.example", everyKind...) }},
	{"a name of the metadata service", func(w *world) error { return internal(w, "meta.example", everyKind...) }},
	{"a private address among public ones", func(w *world) error { return answers(w, "udp4", "mixed.example", dnsmessage.TypeA, w.a) }},
	{"a private address behind the guest's own", func(w *world) error {
		w.mu.Lock()
		w.zone["loop.example"] = []netip.Addr{netip.MustParseAddr("127.0.0.1"), w.private[0]}
		w.mu.Unlock()
		return answers(w, "udp4", "loop.example", dnsmessage.TypeA, netip.MustParseAddr("127.0.0.1"))
	}},
	{"a name of one word", func(w *world) error {
		w.mu.Lock()
		w.zone["db"], w.zone["db.corp"] = []netip.Addr{w.private[2]}, []netip.Addr{w.private[2]}
		w.mu.Unlock()
		return internal(w, "db", everyKind...)
	}},
	{"a domain of companies", func(w *world) error { return internal(w, "db.corp", everyKind...) }},
	{"records below a domain of clouds", func(w *world) error {
		err := internal(w, "_ldap._tcp.dc.internal", dnsmessage.TypeSRV, dnsmessage.TypeTXT)
		return errors.Join(err, unseen(w, "_ldap"))
	}},
	{"names of private addresses and ranges", func(w *world) error {
		for _, name := range []string{"1.0.254.10.in-addr.arpa", "254.10.in-addr.arpa", "10.in-addr.arpa", "254.169.254.169.in-addr.arpa", "1.0.0.0.d.f.ip6.arpa", "x.10.in-addr.arpa"} {
			if err := errors.Join(internal(w, name, dnsmessage.TypePTR, dnsmessage.TypeNS), unseen(w, "arpa")); err != nil {
				return err
			}
		}
		_, err := w.ask("udp4", nameServer, "1.99.88.192.in-addr.arpa", dnsmessage.TypePTR)
		return errors.Join(err, saw(w, "1.99.88.192"))
	}},
	{"names of the guest itself", func(w *world) error {
		for _, name := range []string{"localhost", "app.localhost"} {
			err := errors.Join(answers(w, "udp4", name, dnsmessage.TypeA, netip.MustParseAddr("127.0.0.1")), answers(w, "udp4", name, dnsmessage.TypeAAAA))
			if err != nil {
				return err
			}
		}
		return unseen(w, "dns")
	}},
	{"an answer that a datagram does not hold", func(w *world) error {
		var many []netip.Addr
		for i := range 100 {
			many = append(many, netip.AddrFrom4([4]byte{192, 88, 98, byte(i)}))
		}
		w.mu.Lock()
		w.zone["many.example"] = many
		w.mu.Unlock()
		m, err := w.ask("udp4", nameServer, "many.example", dnsmessage.TypeA)
		if err != nil || !m.Truncated || len(m.Answers) > 0 {
			return fmt.Errorf("by datagram: %v, %v", m.Header, err)
		}
		return answers(w, "tcp4", "many.example", dnsmessage.TypeA, many...)
	}},
	{"a flood of one guest", func(w *world) error {
		for range 300 {
			c, err := w.udpTo(nameServer)
			if err != nil {
				return err
			}
			c.Write([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01"))
			c.Close()
		}
		return answers(w, "udp4", "a.example", dnsmessage.TypeA, w.a)
	}},
}}
