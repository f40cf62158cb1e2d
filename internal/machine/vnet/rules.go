package vnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
	"github.com/cay-run/cay/internal/guest"
)

// sets are the table's memory of slots.
type sets struct {
	slots   *nftables.Set // interface . address: the address that each may send from
	open    *nftables.Set // address: reaches the internet
	dns     *nftables.Set // address: may ask all names
	asking  *nftables.Set // address: its questions are diverted
	web     *nftables.Set // address: its connections to the web are diverted
	gateway *nftables.Set // address: its connections to the gateway's web ports are diverted
	allowed *nftables.Set // address . destination: beats denied
	denied  *nftables.Set // address . destination
	blocked *nftables.Set // destination: closed to all
	own     *nftables.Set // destination: the host itself
	fenced  *nftables.Set // address: what it sends passes while leased has an element
	leased  *nftables.Set // a protocol: IPv4, until the lease of this machine is over

	networks [networkParts]*nftables.Set // address: a part of its private network
	members  [networkParts]*nftables.Set // a part of a private network . address
}

func (m *Manager) table() *nftables.Table {
	return &nftables.Table{Name: m.name, Family: nftables.TableFamilyINet}
}

func newSets(t *nftables.Table) *sets {
	pair := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	s := &sets{
		slots: &nftables.Set{
			Table: t, Name: "slots", Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr),
		},
		open:    &nftables.Set{Table: t, Name: "open", KeyType: nftables.TypeIPAddr},
		dns:     &nftables.Set{Table: t, Name: "dns", KeyType: nftables.TypeIPAddr},
		asking:  &nftables.Set{Table: t, Name: "asking", KeyType: nftables.TypeIPAddr},
		web:     &nftables.Set{Table: t, Name: "web", KeyType: nftables.TypeIPAddr},
		gateway: &nftables.Set{Table: t, Name: "gateway", KeyType: nftables.TypeIPAddr},
		allowed: &nftables.Set{Table: t, Name: "allowed", KeyType: pair, Interval: true, Concatenation: true},
		denied:  &nftables.Set{Table: t, Name: "denied", KeyType: pair, Interval: true, Concatenation: true},
		blocked: &nftables.Set{Table: t, Name: "blocked", KeyType: nftables.TypeIPAddr, Interval: true},
		own:     &nftables.Set{Table: t, Name: "own", KeyType: nftables.TypeIPAddr},
		fenced:  &nftables.Set{Table: t, Name: "fenced", KeyType: nftables.TypeIPAddr},
		leased:  &nftables.Set{Table: t, Name: "leased", KeyType: nftables.TypeNFProto, HasTimeout: true},
	}
	for i := range networkParts {
		s.networks[i] = &nftables.Set{
			Table: t, Name: fmt.Sprintf("networks%d", i), KeyType: nftables.TypeIPAddr, DataType: nftables.TypeMark, IsMap: true,
		}
		s.members[i] = &nftables.Set{
			Table: t, Name: fmt.Sprintf("members%d", i), Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeMark, nftables.TypeIPAddr),
		}
	}
	return s
}

func (s *sets) all() []*nftables.Set {
	fixed := []*nftables.Set{s.slots, s.open, s.dns, s.asking, s.web, s.gateway, s.allowed, s.denied, s.blocked, s.own, s.fenced, s.leased}
	return slices.Concat(fixed, s.networks[:], s.members[:])
}

// writeTable writes the packet filter in one transaction. Chains are replaced;
// sets stay, and so do the policies of living instances.
func (m *Manager) writeTable(resolver netip.AddrPort) error {
	blocked, err := m.blockedRanges()
	if err != nil {
		return err
	}
	m.blocked = blocked
	err = m.writeTableOnce(resolver, blocked)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBUSY) {
		// Another version's sets are in the way. Adoption applies policies again;
		// until then the slots are closed.
		if err := m.deleteTable(); err != nil {
			return err
		}
		err = m.writeTableOnce(resolver, blocked)
	}
	if err != nil {
		return cay.Wrap(cay.Unsupported, err, "the packet filter cannot be written").
			WithHint("the kernel needs nftables with nat, reject and sets (nf_tables, nft_nat, nft_masq, nft_reject_inet): modprobe nf_tables")
	}
	return m.admitFound()
}

func (m *Manager) writeTableOnce(resolver netip.AddrPort, blocked []netip.Prefix) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := c.AddTable(m.table())
	s := newSets(t)
	for _, set := range s.all() {
		if err := c.AddSet(set, nil); err != nil {
			return err
		}
	}
	c.FlushSet(s.blocked)
	if err := c.SetAddElements(s.blocked, intervals(blocked)); err != nil {
		return err
	}
	c.FlushSet(s.own)
	var own []nftables.SetElement
	for _, a := range m.own {
		own = append(own, nftables.SetElement{Key: a.AsSlice()})
	}
	if err := c.SetAddElements(s.own, own); err != nil {
		return err
	}
	w := chainWriter{c: c, t: t, guests: m.name + "-"}
	conns, questions := m.diverted.ports()
	w.spoofing(s)
	w.divert(s, resolver, conns, questions, m.gatewayPorts(), m.ports)
	w.input(resolver, conns, questions)
	w.forward(s, resolver)
	w.output(s, m.mark())
	w.masquerade(m.network)
	return c.Flush()
}

func (m *Manager) deleteTable() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddTable(m.table()) // so that deleting is no error when there is none
	c.DelTable(m.table())
	if err := c.Flush(); err != nil {
		return cay.Wrap(cay.Internal, err, "the packet filter %q cannot be removed", m.name)
	}
	return nil
}

// blockedRanges are the closed ranges and the networks that the host is a
// member of: its neighbours are none of a guest's business.
func (m *Manager) blockedRanges() ([]netip.Prefix, error) {
	m.own = nil
	out := outside.Closed4()
	var addrs []netlink.Addr
	err := untorn(func() (err error) {
		addrs, err = m.links.AddrList(nil, netlink.FAMILY_V4)
		return err
	})
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the host's addresses cannot be listed")
	}
	for _, a := range addrs {
		own, ok := netip.AddrFromSlice(a.IP)
		if ok {
			own = own.Unmap()
			bits, _ := a.Mask.Size()
			out = append(out, outside.Neighbourhood(netip.PrefixFrom(own, bits)))
			if !own.IsLoopback() && own != Gateway && !slices.Contains(m.own, own) {
				m.own = append(m.own, own)
			}
		}
	}
	for _, hole := range m.opened {
		out = without(out, hole.Masked())
	}
	return disjoint(slices.Concat(out, m.closed4, []netip.Prefix{m.network, netip.PrefixFrom(Gateway, 32)})), nil
}

// without takes a range out of prefixes.
func without(in []netip.Prefix, hole netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range in {
		switch {
		case !p.Overlaps(hole):
			out = append(out, p)
		case p.Bits() < hole.Bits(): // the hole is in one of its halves
			first, _ := p.Addr().Prefix(p.Bits() + 1)
			second := netip.PrefixFrom(last(first).Next(), p.Bits()+1)
			out = append(out, without([]netip.Prefix{first, second}, hole)...)
		}
	}
	return out
}

// disjoint sorts prefixes and leaves out those within others: the kernel
// takes no overlapping intervals.
func disjoint(in []netip.Prefix) []netip.Prefix {
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, p := range in {
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// intervals are the elements of a set of ranges: each begins at its first
// address and ends before the one after its last.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	var out []nftables.SetElement
	for _, p := range prefixes {
		out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		if next := last(p).Next(); next.IsValid() {
			out = append(out, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// last is the last address of an IPv4 prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(b)
}

// chainWriter queues chains and rules.
type chainWriter struct {
	c      *nftables.Conn
	t      *nftables.Table
	guests string // what every guest's interface begins with
}

// chain begins a chain anew.
func (w chainWriter) chain(name string, typ nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) func(...[]expr.Any) {
	chain := w.c.AddChain(&nftables.Chain{Name: name, Table: w.t, Type: typ, Hooknum: hook, Priority: prio})
	w.c.FlushChain(chain)
	return func(parts ...[]expr.Any) {
		w.c.AddRule(&nftables.Rule{Table: w.t, Chain: chain, Exprs: slices.Concat(parts...)})
	}
}

// spoofing drops what a guest sends in another's name, all IPv6, and what a fenced one
// sends without a lease, before anything looks at it.
func (w chainWriter) spoofing(s *sets) {
	rule := w.chain("spoofing", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	rule(w.from(), notIPv4(), drop())
	rule(w.from(), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1},
		&expr.Payload{DestRegister: unix.NFT_REG_2, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.slots.Name, SetID: s.slots.ID, Invert: true},
	}, drop())
	rule(w.from(), fromSet(s.fenced), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: unix.NFT_REG_1},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.leased.Name, SetID: s.leased.ID, Invert: true},
	}, drop())
}

// divert sends the guests' questions to the resolver, or to us; and to us the
// connections that forward would refuse, but for those to closed ranges, whose
// answer is plain. A name may allow the others, and a refusal there says why.
func (w chainWriter) divert(s *sets, resolver, conns, questions netip.AddrPort, gateway, server []uint16) {
	rule := w.chain("names", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		question := slices.Concat(w.from(), to(netip.PrefixFrom(DNS, 32)), protocol(proto), toPort(portNames))
		rule(question, fromSet(s.asking), destinationNAT(questions))
		if resolver.IsValid() {
			rule(question, fromSet(s.dns), destinationNAT(resolver))
		}
	}
	conn := slices.Concat(w.from(), protocol(unix.IPPROTO_TCP))
	for _, port := range gateway {
		rule(conn, to(netip.PrefixFrom(Gateway, 32)), toPort(port), destinationNAT(conns))
	}
	for _, port := range []uint16{guest.HostPort, portModels} {
		rule(conn, to(netip.PrefixFrom(Gateway, 32)), toPort(port), destinationNAT(conns))
	}
	for _, port := range webPorts { // names that a person is asked about lead there
		rule(conn, fromSet(s.gateway), to(netip.PrefixFrom(Gateway, 32)), toPort(port), destinationNAT(conns))
	}
	rule(w.from(), to(netip.PrefixFrom(Gateway, 32)), accept())
	for _, port := range server {
		rule(conn, toSet(s.own), toPort(port), destinationNAT(conns))
	}
	rule(conn, toSet(s.blocked), accept())
	for _, port := range webPorts {
		rule(conn, fromSet(s.web), toPort(port), destinationNAT(conns))
	}
	rule(conn, flowSet(s.allowed), accept())
	rule(conn, flowSet(s.denied), destinationNAT(conns))
	rule(conn, fromSet(s.open), accept())
	rule(conn, destinationNAT(conns))
}

const (
	portNames  = 53
	portModels = 80 // at the gateway, where the name of models leads
)

// gatewayPorts are the ports of the gateway whose connections are diverted.
func (m *Manager) gatewayPorts() []uint16 {
	out := slices.Clone(m.ports)
	if m.packages {
		out = append(out, webPorts...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// webPorts are those whose connections may have headers set.
var webPorts = []uint16{80, 443}

func destinationNAT(to netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: unix.NFT_REG_1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: unix.NFT_REG_2, Data: binaryutil.BigEndian.PutUint16(to.Port())},
		&expr.NAT{
			Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4,
			RegAddrMin: unix.NFT_REG_1, RegProtoMin: unix.NFT_REG_2, Specified: true,
		},
	}
}

// input lets guests send to the host itself: answers, diverted connections, and
// questions if the resolver is one of the host's addresses.
func (w chainWriter) input(resolver, conns, questions netip.AddrPort) {
	rule := w.chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	w.dropInvalid(rule)
	w.questions(rule, questions)
	w.redirected(rule, conns, unix.IPPROTO_TCP)
	rule(w.from(), replies(), accept())
	w.questions(rule, resolver)
	w.refuse(rule, w.from())
}

// forward is what guests may send through the host.
func (w chainWriter) forward(s *sets, resolver netip.AddrPort) {
	rule := w.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	w.dropInvalid(rule)
	w.neighbours(rule, s)
	rule(w.into(), replies(), accept())
	rule(w.into(), drop())
	w.questions(rule, resolver)
	w.refuse(rule, w.from(), toSet(s.blocked))
	for _, port := range webPorts { // connections that are older than the policy, and QUIC
		w.refuse(rule, w.from(), fromSet(s.web), protocol(unix.IPPROTO_TCP), toPort(port))
		w.refuse(rule, w.from(), fromSet(s.web), protocol(unix.IPPROTO_UDP), toPort(port))
	}
	rule(w.from(), flowSet(s.allowed), accept())
	w.refuse(rule, w.from(), flowSet(s.denied))
	rule(w.from(), fromSet(s.open), accept())
	w.refuse(rule, w.from())
}

// output keeps what Dial sends away from the host and from closed ranges.
func (w chainWriter) output(s *sets, mark uint32) {
	rule := w.chain("output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	marked := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: binaryutil.NativeEndian.PutUint32(mark)},
	}
	loopback := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte("lo\x00")},
	}
	w.refuse(rule, marked, loopback)
	w.refuse(rule, marked, toSet(s.blocked))
}

// masquerade hides guests behind the host.
func (w chainWriter) masquerade(network netip.Prefix) {
	rule := w.chain("masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	rule(w.notInto(), from(network), []expr.Any{&expr.Masq{}})
}

// questions accepts the questions that were sent to a resolver, if there is one.
func (w chainWriter) questions(rule func(...[]expr.Any), resolver netip.AddrPort) {
	if !resolver.IsValid() {
		return
	}
	w.redirected(rule, resolver, unix.IPPROTO_UDP)
	w.redirected(rule, resolver, unix.IPPROTO_TCP)
}

// redirected accepts what divert has sent somewhere.
func (w chainWriter) redirected(rule func(...[]expr.Any), where netip.AddrPort, proto byte) {
	rule(w.from(), redirected(), to(netip.PrefixFrom(where.Addr(), 32)), protocol(proto), toPort(where.Port()), accept())
}

// dropInvalid drops what belongs to no connection, without an answer: a late or
// repeated packet of a good connection looks like that, and a reset would end
// it. Sent on, it would leave with the guest's own address.
func (w chainWriter) dropInvalid(rule func(...[]expr.Any)) {
	rule(w.from(), conntrack(expr.CtKeySTATE, expr.CtStateBitINVALID), drop())
}

// refuse answers no, so that a guest need not wait for a timeout.
func (w chainWriter) refuse(rule func(...[]expr.Any), match ...[]expr.Any) {
	all := slices.Concat(match...)
	rule(all, protocol(unix.IPPROTO_TCP), []expr.Any{
		&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
	})
	rule(all, []expr.Any{
		&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH},
	})
}

func (w chainWriter) from() []expr.Any {
	return w.link(expr.MetaKeyIIFNAME, expr.CmpOpEq)
}

func (w chainWriter) into() []expr.Any {
	return w.link(expr.MetaKeyOIFNAME, expr.CmpOpEq)
}

func (w chainWriter) notInto() []expr.Any {
	return w.link(expr.MetaKeyOIFNAME, expr.CmpOpNeq)
}

// link matches the beginning of an interface's name.
func (w chainWriter) link(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: []byte(w.guests)},
	}
}

func notIPv4() []expr.Any { return family(expr.CmpOpNeq) }
func isIPv4() []expr.Any  { return family(expr.CmpOpEq) }

func family(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: []byte{unix.NFPROTO_IPV4}},
	}
}

const (
	sourceOffset      = 12
	destinationOffset = 16
)

func address(offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func from(p netip.Prefix) []expr.Any { return slices.Concat(isIPv4(), within(sourceOffset, p)) }
func to(p netip.Prefix) []expr.Any   { return slices.Concat(isIPv4(), within(destinationOffset, p)) }

func within(offset uint32, p netip.Prefix) []expr.Any {
	mask := ^uint32(0) << (32 - p.Bits())
	return []expr.Any{
		address(offset, 4),
		&expr.Bitwise{
			SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: binaryutil.BigEndian.PutUint32(mask), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: p.Addr().AsSlice()},
	}
}

func fromSet(s *nftables.Set) []expr.Any { return lookup(sourceOffset, 4, s) }
func toSet(s *nftables.Set) []expr.Any   { return lookup(destinationOffset, 4, s) }

// flowSet looks source and destination up, which are neighbours in the header.
func flowSet(s *nftables.Set) []expr.Any { return lookup(sourceOffset, 8, s) }

func lookup(offset, length uint32, s *nftables.Set) []expr.Any {
	return append(isIPv4(), address(offset, length),
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.Name, SetID: s.ID})
}

// neighbours lets members of a private network reach each other, and no other
// guest another. The sender's network and the receiver's address are looked up
// together, part by part by way of the packet's mark: nft of Debian 12 aborts
// a listing of the host's tables on a rule that looks a whole network up.
func (w chainWriter) neighbours(rule func(...[]expr.Any), s *sets) {
	rule(w.from(), w.into(), []expr.Any{
		&expr.Immediate{Register: unix.NFT_REG_1, Data: make([]byte, 4)}, setMark(),
	})
	for i := range networkParts {
		rule(w.from(), w.into(), isIPv4(), []expr.Any{
			address(sourceOffset, 4),
			&expr.Lookup{
				SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, IsDestRegSet: true,
				SetName: s.networks[i].Name, SetID: s.networks[i].ID,
			},
			setMark(),
		})
		w.refuse(rule, w.from(), w.into(), isIPv4(), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG32_00},
			&expr.Payload{DestRegister: unix.NFT_REG32_01, Base: expr.PayloadBaseNetworkHeader, Offset: destinationOffset, Len: 4},
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.members[i].Name, SetID: s.members[i].ID, Invert: true},
		})
	}
	rule(w.from(), w.into(), isIPv4(), accept())
	w.refuse(rule, w.from(), w.into())
}

func setMark() expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1}
}

func protocol(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{proto}},
	}
}

func toPort(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

// replies matches packets of connections that the other side began.
func replies() []expr.Any {
	return conntrack(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// redirected matches packets whose destination was rewritten.
func redirected() []expr.Any {
	const destinationNAT = 1 << 5 // IPS_DST_NAT
	return conntrack(expr.CtKeySTATUS, destinationNAT)
}

// conntrack matches when any of the bits is set.
func conntrack(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: unix.NFT_REG_1},
		&expr.Bitwise{
			SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: make([]byte, 4)},
	}
}

func accept() []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
}

func drop() []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
}

// untorn repeats a listing that changed under the reader.
func untorn(list func() error) error {
	var err error
	for range 50 {
		if err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}
