package egress_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/vnet"
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
