package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/singleflight"
)

const (
	askWithin  = 3 * time.Second // one server, one try
	askTries   = 2
	minTTL     = time.Second
	maxTTL     = 5 * time.Minute
	badTTL     = 2 * time.Second // of a failure
	learnedFor = time.Hour       // programs keep addresses longer than they are told to
	maxNames   = 8192
	maxAnswers = 16
	maxLearned = 256 // addresses of a name
)

// resolver asks the host's name servers and remembers which addresses names
// have had.
type resolver struct {
	servers []netip.AddrPort
	closed  func(netip.Addr) bool
	once    singleflight.Group

	mu      sync.Mutex
	answers map[string]answer
	learned map[string]map[netip.Addr]time.Time // until when
}

// answer is what a name resolved to.
type answer struct {
	code  dnsmessage.RCode
	addrs []netip.Addr
	// hidden says that the name has addresses in closed ranges only.
	hidden bool
	until  time.Time
}

func newResolver(servers []netip.AddrPort, closed func(netip.Addr) bool) *resolver {
	return &resolver{
		servers: servers, closed: closed,
		answers: map[string]answer{}, learned: map[string]map[netip.Addr]time.Time{},
	}
}

// lookup returns the IPv4 addresses of a clean name. The error means that no
// server answered.
func (r *resolver) lookup(ctx context.Context, name string) (answer, error) {
	r.mu.Lock()
	a, ok := r.answers[name]
	r.mu.Unlock()
	if ok && time.Now().Before(a.until) {
		return a, nil
	}
	// The first caller may leave; others wait for the same answer.
	result := r.once.DoChan(name, func() (any, error) {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWithin*askTries*time.Duration(max(1, len(r.servers))))
		defer cancel()
		return r.fetch(within, name)
	})
	select {
	case got := <-result:
		if got.Err != nil {
			return answer{}, got.Err
		}
		return got.Val.(answer), nil
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

func (r *resolver) fetch(ctx context.Context, name string) (answer, error) {
	query, id, err := question(name)
	if err != nil {
		return answer{}, err
	}
	reply, err := r.ask(ctx, query, func(b []byte) bool { return answers(b, id, name) })
	if err != nil {
		return answer{}, err
	}
	a := readAnswer(reply)
	all := len(a.addrs)
	a.addrs = slices.DeleteFunc(a.addrs, r.closed)
	a.hidden = all > 0 && len(a.addrs) == 0
	if len(a.addrs) > maxAnswers {
		a.addrs = a.addrs[:maxAnswers]
	}
	r.keep(name, a)
	return a, nil
}

// keep remembers an answer, and forgets everything when that is too much.
func (r *resolver) keep(name string, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.answers) >= maxNames {
		clear(r.answers)
	}
	r.answers[name] = a
	if len(a.addrs) == 0 {
		return
	}
	if len(r.learned) >= maxNames {
		clear(r.learned)
	}
	had := r.learned[name]
	if had == nil || len(had) > maxLearned {
		had = map[netip.Addr]time.Time{}
		r.learned[name] = had
	}
	for _, addr := range a.addrs {
		had[addr] = time.Now().Add(learnedFor)
	}
}

// has reports whether an address is, or was a moment ago, one of the name's.
func (r *resolver) has(ctx context.Context, name string, addr netip.Addr) bool {
	r.mu.Lock()
	until, ok := r.learned[name][addr]
	r.mu.Unlock()
	if ok && time.Now().Before(until) {
		return true
	}
	// This process may not have been there when the guest asked.
	a, err := r.lookup(ctx, name)
	return err == nil && slices.Contains(a.addrs, addr)
}

// question is a query for the IPv4 addresses of a name.
func question(name string) (query []byte, id uint16, err error) {
	id = uint16(rand.Uint32())
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return nil, 0, err
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	query, err = m.Pack()
	return query, id, err
}

// answers reports whether b answers the question with that id about a name.
func answers(b []byte, id uint16, name string) bool {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || !h.Response || h.ID != id {
		return false
	}
	q, err := p.Question()
	return err == nil && q.Type == dnsmessage.TypeA && strings.EqualFold(strings.TrimSuffix(q.Name.String(), "."), name)
}

// readAnswer takes the addresses out of an answer, whichever aliases lead to
// them: the server followed those.
func readAnswer(b []byte) answer {
	a := answer{code: dnsmessage.RCodeServerFailure, until: time.Now().Add(badTTL)}
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || p.SkipAllQuestions() != nil {
		return a
	}
	a.code = h.RCode
	ttl := maxTTL
	for {
		head, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return answer{code: dnsmessage.RCodeServerFailure, until: a.until}
		}
		ttl = min(ttl, time.Duration(head.TTL)*time.Second)
		if head.Type != dnsmessage.TypeA || head.Class != dnsmessage.ClassINET {
			if p.SkipAnswer() != nil {
				break
			}
			continue
		}
		body, err := p.AResource()
		if err != nil {
			break
		}
		a.addrs = append(a.addrs, netip.AddrFrom4(body.A))
	}
	if len(a.addrs) > 0 {
		a.until = time.Now().Add(max(minTTL, ttl))
	}
	return a
}

// ask sends a query to the servers, in their order, until one gives a good
// answer.
func (r *resolver) ask(ctx context.Context, query []byte, good func([]byte) bool) ([]byte, error) {
	err := errors.New("the host has no name server")
	for range askTries {
		for _, server := range r.servers {
			var reply []byte
			if reply, err = exchange(ctx, "udp", server, query, good); err == nil && truncated(reply) {
				reply, err = exchange(ctx, "tcp", server, query, good)
			}
			if err == nil {
				return reply, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
	return nil, err
}

func truncated(b []byte) bool { return len(b) > 2 && b[2]&2 != 0 }

// exchange asks one server once.
func exchange(ctx context.Context, network string, server netip.AddrPort, query []byte, good func([]byte) bool) ([]byte, error) {
	d := net.Dialer{Timeout: askWithin}
	c, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := c.SetDeadline(time.Now().Add(askWithin)); err != nil {
		return nil, err
	}
	if network == "tcp" {
		if err := writeFramed(c, query); err != nil {
			return nil, err
		}
		reply, err := readFramed(c)
		if err == nil && !good(reply) {
			err = errors.New("the name server answered another question")
		}
		return reply, err
	}
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, 65535)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		if good(buf[:n]) { // else it is late, or forged
			return buf[:n], nil
		}
	}
}

// readFramed reads a message as it goes over TCP.
func readFramed(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeFramed(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}
