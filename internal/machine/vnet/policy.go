package vnet

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// policy is a sandbox's egress policy as the packet filter keeps it. The zero
// value lets nothing out.
type policy struct {
	open    bool // the internet
	dns     bool // all names
	asking  bool // names are for the server of Diverted to decide
	web     bool // the web is
	gateway bool // the gateway's web ports are, where names lead that a person is asked about
	allowed []netip.Prefix
	denied  []netip.Prefix
	network networkID // shared with others
	fenced  bool      // it sends while the lease lasts alone
}

// networkID tells private networks apart; the zero one is none. It is a digest,
// so that it means the same to every manager.
type networkID [4 * networkParts]byte

// networkParts is how many marks of the kernel a network is.
const networkParts = 4

func networkOf(p *cay.PrivateNetwork) networkID {
	if p == nil {
		return networkID{}
	}
	sum := sha256.Sum256([]byte(string(p.Team) + "\x00" + p.Name))
	return networkID(sum[:16])
}

// Apply sets what the instance in a slot may reach, in one step, in place of
// the policy before. The server of Diverted must know the policy already.
// IPv6 destinations are taken and have no effect, because guests have no IPv6.
func (m *Manager) Apply(_ context.Context, s Slot, p cay.NetworkPolicy) error {
	m.mu.Lock()
	ok := m.slots[s.Index] == held
	m.mu.Unlock()
	if !ok {
		return cay.Errorf(cay.Conflict, "network slot %d is not in use", s.Index)
	}
	if err := m.shape(s.Index, p.Bandwidth); err != nil {
		return err
	}
	in := inKernel(p)
	if m.diverts && in.dns {
		in.dns, in.asking = false, true
	}
	return m.changePolicy(s.Index, func(before policy) policy {
		in.fenced = before.fenced
		return in
	})
}

// Fence has what the instance in a slot sends pass only while KeepLease says so, whatever
// its policy is. It holds until the slot is released.
func (m *Manager) Fence(_ context.Context, s Slot) error {
	return m.changePolicy(s.Index, func(p policy) policy {
		p.fenced = true
		return p
	})
}

// KeepLease lets fenced slots send for a time from now on, in place of the time before. Its
// end is the kernel's: no process of ours has to be alive.
func (m *Manager) KeepLease(_ context.Context, lasts time.Duration) error {
	m.rules.Lock()
	defer m.rules.Unlock()
	c, err := nftables.New()
	if err != nil {
		return cay.Wrap(cay.Internal, err, "no netlink socket")
	}
	s := newSets(m.table())
	one := func(timeout time.Duration) []nftables.SetElement {
		return []nftables.SetElement{{Key: []byte{unix.NFPROTO_IPV4}, Timeout: timeout}}
	}
	// An element that is there keeps its time when it is added: it is deleted in the same
	// transaction, and one that is not there is added for that first.
	err = c.SetAddElements(s.leased, one(lasts))
	if err == nil {
		err = c.SetDeleteElements(s.leased, one(0))
	}
	if err == nil {
		err = c.SetAddElements(s.leased, one(lasts))
	}
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		return cay.Wrap(cay.Internal, err, "the lease of fenced slots cannot be renewed")
	}
	return nil
}

// inKernel is the part of a policy that the packet filter decides alone.
// Everything that goes through a SOCKS server is diverted.
func inKernel(p cay.NetworkPolicy) policy {
	allowed, denied := prefixes(slices.Concat(p.AllowOut, p.NameServers())), prefixes(p.DenyOut)
	everything := wide(allowed) || p.AllowInternet && !wide(denied)
	something := p.AllowInternet || len(p.AllowOut) > 0 || len(p.AskOut) > 0
	asking := p.Private != nil || something && (!everything || len(p.Rules) > 0)
	out := policy{
		dns:     everything && !asking,
		asking:  asking,
		gateway: len(p.AskOut) > 0,
		network: networkOf(p.Private),
	}
	if p.Proxy == nil {
		out.open, out.web, out.allowed, out.denied = p.AllowInternet, len(p.Rules) > 0, allowed, denied
	}
	if slices.ContainsFunc(out.denied, func(d netip.Prefix) bool { return d.Bits() == 0 }) {
		// An address that is neither allowed nor denied is refused anyway, and
		// sets of ranges are the slowest to change.
		out.open, out.denied = false, nil
	}
	return out
}

// is reports whether two policies are one to the packet filter.
func (p policy) is(q policy) bool {
	return p.open == q.open && p.dns == q.dns && p.asking == q.asking && p.web == q.web && p.gateway == q.gateway && p.network == q.network && p.fenced == q.fenced &&
		slices.Equal(p.allowed, q.allowed) && slices.Equal(p.denied, q.denied)
}

// prefixes are the IPv4 ranges of a list; domains are none.
func prefixes(in []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range in {
		if p, ok := cay.Destination(s); ok && p.Addr().Is4() {
			out = append(out, p)
		}
	}
	return disjoint(out)
}

// wide reports whether a list names half of the internet or more at once.
func wide(list []netip.Prefix) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Bits() <= 1 })
}

// elements are the set elements that say a policy for an address.
func (p policy) elements(s *sets, addr netip.Addr) map[*nftables.Set][]nftables.SetElement {
	out := map[*nftables.Set][]nftables.SetElement{}
	if p.open {
		out[s.open] = []nftables.SetElement{{Key: addr.AsSlice()}}
	}
	if p.dns {
		out[s.dns] = []nftables.SetElement{{Key: addr.AsSlice()}}
	}
	if p.asking {
		out[s.asking] = []nftables.SetElement{{Key: addr.AsSlice()}}
	}
	if p.web {
		out[s.web] = []nftables.SetElement{{Key: addr.AsSlice()}}
	}
	if p.gateway {
		out[s.gateway] = []nftables.SetElement{{Key: addr.AsSlice()}}
	}
	if p.fenced {
		out[s.fenced] = []nftables.SetElement{{Key: addr.AsSlice()}}
	}
	if p.network != (networkID{}) {
		for i := range networkParts {
			part := p.network[4*i : 4*i+4]
			out[s.networks[i]] = []nftables.SetElement{{Key: addr.AsSlice(), Val: part}}
			out[s.members[i]] = []nftables.SetElement{{Key: slices.Concat(part, addr.AsSlice())}}
		}
	}
	pairs := func(prefixes []netip.Prefix) (out []nftables.SetElement) {
		for _, d := range prefixes {
			out = append(out, nftables.SetElement{
				Key:    append(addr.AsSlice(), d.Addr().AsSlice()...),
				KeyEnd: append(addr.AsSlice(), last(d).AsSlice()...),
			})
		}
		return out
	}
	if len(p.allowed) > 0 {
		out[s.allowed] = pairs(p.allowed)
	}
	if len(p.denied) > 0 {
		out[s.denied] = pairs(p.denied)
	}
	return out
}

// changePolicy replaces a slot's policy in one transaction.
func (m *Manager) changePolicy(index int, change func(before policy) policy) error {
	m.rules.Lock()
	defer m.rules.Unlock()
	next := change(m.applied[index])
	if next.is(m.applied[index]) {
		return nil // as where only domains differ
	}
	c, err := nftables.New()
	if err != nil {
		return cay.Wrap(cay.Internal, err, "no netlink socket")
	}
	s := newSets(m.table())
	before := m.applied[index].elements(s, m.addr(index))
	after := next.elements(s, m.addr(index))
	for _, set := range s.all() {
		if len(before[set]) > 0 {
			if err := c.SetDeleteElements(set, before[set]); err != nil {
				return cay.Wrap(cay.Internal, err, "network policy")
			}
		}
		if err := addElements(c, set, after[set]); err != nil {
			return cay.Wrap(cay.Internal, err, "network policy")
		}
	}
	if err := c.Flush(); err != nil {
		return cay.Wrap(cay.Internal, err, "the network policy of slot %d cannot be set", index)
	}
	m.applied[index] = next
	return nil
}

// addElements adds in pieces: a netlink attribute holds no more than 64 KiB.
func addElements(c *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	for len(elements) > 0 {
		n := min(len(elements), 256)
		if err := c.SetAddElements(set, elements[:n]); err != nil {
			return err
		}
		elements = elements[n:]
	}
	return nil
}

// admit lets slots send in their own names.
func (m *Manager) admit(indices []int) error {
	return m.changeSlots(indices, func(c *nftables.Conn, s *sets, e []nftables.SetElement) error {
		return addElements(c, s.slots, e)
	})
}

// expel undoes admit. It is idempotent.
func (m *Manager) expel(index int) error {
	return m.changeSlots([]int{index}, func(c *nftables.Conn, s *sets, e []nftables.SetElement) error {
		// Adding first makes deleting what is not there no error.
		if err := c.SetAddElements(s.slots, e); err != nil {
			return err
		}
		return c.SetDeleteElements(s.slots, e)
	})
}

func (m *Manager) changeSlots(indices []int, change func(*nftables.Conn, *sets, []nftables.SetElement) error) error {
	m.rules.Lock()
	defer m.rules.Unlock()
	c, err := nftables.New()
	if err != nil {
		return cay.Wrap(cay.Internal, err, "no netlink socket")
	}
	var elements []nftables.SetElement
	for _, index := range indices {
		key := make([]byte, 16, 20)
		copy(key, m.linkName(index))
		elements = append(elements, nftables.SetElement{Key: append(key, m.addr(index).AsSlice()...)})
	}
	if err := change(c, newSets(m.table()), elements); err != nil {
		return cay.Wrap(cay.Internal, err, "network slots")
	}
	if err := c.Flush(); err != nil {
		return cay.Wrap(cay.Internal, err, "the packet filter's slots cannot be changed")
	}
	return nil
}

// admitFound rebuilds the set of slots from those found, and reads back the
// policies that an earlier manager applied to them.
func (m *Manager) admitFound() error {
	var indices []int
	byAddr := map[netip.Addr]int{}
	for index := range m.slots {
		indices = append(indices, index)
		byAddr[m.addr(index)] = index
	}
	err := m.changeSlots(indices, func(c *nftables.Conn, s *sets, e []nftables.SetElement) error {
		c.FlushSet(s.slots)
		return addElements(c, s.slots, e)
	})
	if err != nil {
		return err
	}
	return m.readPolicies(byAddr)
}

// readPolicies fills m.applied from the packet filter.
func (m *Manager) readPolicies(byAddr map[netip.Addr]int) error {
	c, err := nftables.New()
	if err != nil {
		return cay.Wrap(cay.Internal, err, "no netlink socket")
	}
	s := newSets(m.table())
	read := func(set *nftables.Set, add func(*policy, nftables.SetElement)) error {
		elements, err := c.GetSetElements(set)
		if err != nil {
			return cay.Wrap(cay.Internal, err, "the packet filter cannot be read")
		}
		for _, e := range elements {
			if len(e.Key) < 4 {
				continue
			}
			index, ok := byAddr[netip.AddrFrom4([4]byte(e.Key[:4]))]
			if !ok {
				continue
			}
			p := m.applied[index]
			add(&p, e)
			m.applied[index] = p
		}
		return nil
	}
	adds := map[*nftables.Set]func(*policy, nftables.SetElement){
		s.open:    func(p *policy, _ nftables.SetElement) { p.open = true },
		s.dns:     func(p *policy, _ nftables.SetElement) { p.dns = true },
		s.asking:  func(p *policy, _ nftables.SetElement) { p.asking = true },
		s.web:     func(p *policy, _ nftables.SetElement) { p.web = true },
		s.gateway: func(p *policy, _ nftables.SetElement) { p.gateway = true },
		s.fenced:  func(p *policy, _ nftables.SetElement) { p.fenced = true },
		s.allowed: func(p *policy, e nftables.SetElement) { p.allowed = append(p.allowed, destination(e)) },
		s.denied:  func(p *policy, e nftables.SetElement) { p.denied = append(p.denied, destination(e)) },
	}
	for i, set := range s.networks {
		adds[set] = func(p *policy, e nftables.SetElement) { copy(p.network[4*i:4*i+4], e.Val) }
	}
	for set, add := range adds {
		if err := read(set, add); err != nil {
			return err
		}
	}
	return nil
}

// destination is the prefix behind an element of flows; the zero one for
// other elements.
func destination(e nftables.SetElement) netip.Prefix {
	if len(e.Key) < 8 || len(e.KeyEnd) < 8 {
		return netip.Prefix{}
	}
	first, end := netip.AddrFrom4([4]byte(e.Key[4:8])), netip.AddrFrom4([4]byte(e.KeyEnd[4:8]))
	for bits := 0; bits <= 32; bits++ {
		if p := netip.PrefixFrom(first, bits); p.Masked().Addr() == first && last(p) == end {
			return p
		}
	}
	return netip.PrefixFrom(first, 32)
}
