// Package hosttest has a machine in memory, for tests of what stands on a
// machine: no root, no engine, no packet filter. Its instances are guests that
// answer over real sockets, each on a loopback address of its own; snapshots
// are real ones, on disk, and volumes plain directories. As the instances of a real machine do, they outlive
// the server that made them: the next Open finds them.
package hosttest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/embedded"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/machine/vnet"
	"github.com/cay-run/cay/internal/machine/volume/dirs"
)

// Machine is a machine in memory. Its methods are safe for concurrent use.
type Machine struct {
	// Agent answers what the agents of all guests have no answer of their own for,
	// such as a real agent on the test's machine. It is set before a server opens
	// the machine; nil answers with 404.
	Agent http.Handler
	// Ports are what all guests serve besides, by port: a connection, to its end. It
	// is set before a server opens the machine.
	Ports map[int]func(net.Conn)
	// Features are those of the machine's processor, sorted, on which all memory that it
	// saves relies.
	Features []string
	// Engine is the build of its engine, set before a server opens the machine.
	Engine string

	t    testing.TB
	base [3]byte // of its loopback addresses
	gate net.Listener

	mu         sync.Mutex
	containers map[cay.InstanceID]*container
	ended      bool
	slots      map[int]slotState
	policies   map[int]cay.NetworkPolicy // by the slot
}

// New returns a machine with nothing on it. Its guests end with the test.
func New(t testing.TB) *Machine {
	t.Helper()
	m := &Machine{t: t, Engine: engineName, containers: map[cay.InstanceID]*container{}, slots: map[int]slotState{}, policies: map[int]cay.NetworkPolicy{}}
	for range 100 { // tests of other processes have machines as well
		m.base = [3]byte{127, byte(64 + rand.IntN(64)), byte(rand.IntN(256))}
		gate, err := net.Listen("tcp4", net.JoinHostPort(m.addr(gateIndex).String(), fmt.Sprint(guest.AgentPort)))
		if err != nil {
			continue
		}
		m.gate = gate
		t.Cleanup(m.end)
		return m
	}
	t.Fatal("no range of loopback addresses is free")
	return nil
}

// end is the end of the machine.
func (m *Machine) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endAll()
	m.ended = true // a server that was cut off may be at a start
	m.gate.Close()
}

// endAll ends all guests. The caller holds m.mu.
func (m *Machine) endAll() {
	for _, c := range m.containers {
		c.guest.close()
	}
	clear(m.containers)
}

// Open opens the machine, as host.Open does with a real one.
func (m *Machine) Open(ctx context.Context, cfg host.Config, _ *slog.Logger) (*host.Machine, error) {
	snapshots, err := snapshot.Open(cfg.Data)
	if err != nil {
		return nil, err
	}
	volumes, err := dirs.Open(cfg.Volumes())
	if err != nil {
		return nil, err
	}
	agent := filepath.Join(cfg.Data, "agent")
	if err := os.WriteFile(agent, []byte("the agent of a machine in memory"), 0o600); err != nil {
		return nil, err
	}
	m.forget()
	n := &network{m: m}
	if n.diverted, err = divert(ctx); err != nil {
		return nil, err
	}
	return &host.Machine{
		Binaries:  embedded.Binaries{EngineHash: m.Engine, AgentPath: agent, AgentDigest: "hosttest", GatewayPath: agent, GatewayDigest: "hosttest"},
		Engine:    m,
		Snapshots: snapshots,
		Volumes:   volumes,
		Net:       n,
		Room:      func() (node.Room, error) { return node.Room{}, nil },
	}, nil
}

// forget has the machine look as it does to the next process.
func (m *Machine) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for index, state := range m.slots {
		if state == slotHeld {
			m.slots[index] = slotFound
		}
	}
	for _, c := range m.containers {
		c.watched = nil
	}
}

// Guests lists the guests of all instances that live.
func (m *Machine) Guests() []*Guest {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*Guest
	for _, c := range m.containers {
		if !c.dead {
			out = append(out, c.guest)
		}
	}
	return out
}

// Guest finds the guest of a sandbox, nil for none.
func (m *Machine) Guest(id cay.SandboxID) *Guest {
	for _, g := range m.Guests() {
		if g.Memory().SandboxID == string(id) {
			return g
		}
	}
	return nil
}

// Policy is what the packet filter has for a sandbox that lives.
func (m *Machine) Policy(id cay.SandboxID) cay.NetworkPolicy {
	g := m.Guest(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.containers {
		if c.guest == g {
			return m.policies[c.slot.Index]
		}
	}
	return cay.NetworkPolicy{}
}

// slotState is what is known of a slot.
type slotState int

const (
	slotIdle  slotState = iota
	slotHeld            // by an instance
	slotFound           // by one of an earlier process, perhaps
)

// gateIndex is the address that keeps other machines from the range.
const gateIndex = 254

func (m *Machine) addr(index int) netip.Addr {
	return netip.AddrFrom4([4]byte{m.base[0], m.base[1], m.base[2], byte(index)})
}

// slotOf finds the slot that a namespace is of.
func (m *Machine) slotOf(namespace string) (vnet.Slot, error) {
	var index int
	if _, err := fmt.Sscanf(namespace, namespaceFormat, &index); err != nil {
		return vnet.Slot{}, cay.Errorf(cay.Internal, "%q is no namespace of this machine", namespace)
	}
	return m.slot(index), nil
}

const namespaceFormat = "hosttest-%d"

func (m *Machine) slot(index int) vnet.Slot {
	return vnet.Slot{Index: index, Namespace: fmt.Sprintf(namespaceFormat, index), Addr: m.addr(index)}
}

// network is the machine's network, as one process has it open.
type network struct {
	m        *Machine
	diverted vnet.Diverted
}

var _ host.Net = (*network)(nil)

// divert listens where nothing is diverted to.
func divert(ctx context.Context) (vnet.Diverted, error) {
	var d vnet.Diverted
	var lc net.ListenConfig
	var err error
	if d.Conns, err = lc.Listen(ctx, "tcp4", "127.0.0.1:0"); err != nil {
		return d, err
	}
	if d.Questions, err = lc.ListenPacket(ctx, "udp4", "127.0.0.1:0"); err != nil {
		d.Conns.Close()
		return d, err
	}
	if d.QuestionConns, err = lc.Listen(ctx, "tcp4", "127.0.0.1:0"); err != nil {
		d.Conns.Close()
		d.Questions.Close()
	}
	return d, err
}

func (n *network) Acquire(context.Context) (vnet.Slot, error) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	for index := 1; index < gateIndex; index++ {
		if n.m.slots[index] == slotIdle {
			n.m.slots[index] = slotHeld
			return n.m.slot(index), nil
		}
	}
	return vnet.Slot{}, cay.Errorf(cay.Unavailable, "no network slot is free").WithCode(cay.CodeCapacity)
}

// Release frees a slot. One below an instance that lives is a fault of the
// caller.
func (n *network) Release(_ context.Context, s vnet.Slot) error {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if n.m.slots[s.Index] != slotHeld {
		return cay.Errorf(cay.Internal, "slot %d is released and not held", s.Index)
	}
	for id, c := range n.m.containers {
		if c.slot == s {
			n.m.t.Errorf("slot %d is released below instance %s", s.Index, id)
		}
	}
	n.m.slots[s.Index] = slotIdle
	return nil
}

func (n *network) Adopt(_ context.Context, index int) (vnet.Slot, error) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if n.m.slots[index] != slotFound {
		return vnet.Slot{}, cay.Errorf(cay.NotFound, "slot %d is not of an earlier start", index)
	}
	n.m.slots[index] = slotHeld
	return n.m.slot(index), nil
}

func (n *network) Apply(_ context.Context, s vnet.Slot, p cay.NetworkPolicy) error {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.m.policies[s.Index] = p
	return nil
}

func (n *network) Fence(context.Context, vnet.Slot) error { return nil }

// KeepLease is called by members of a cluster alone.
func (n *network) KeepLease(context.Context, time.Duration) error { return nil }

func (n *network) Sent(vnet.Slot) int64 { return 0 }

func (n *network) Reclaim(context.Context) error {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	for index, state := range n.m.slots {
		if state == slotFound {
			n.m.slots[index] = slotIdle
		}
	}
	return nil
}

func (n *network) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, cay.Errorf(cay.Unavailable, "a machine in memory has no internet")
}

func (n *network) Closed(netip.Addr) bool      { return true }
func (n *network) Resolvers() []netip.AddrPort { return nil }
func (n *network) Diverted() vnet.Diverted     { return n.diverted }

func (n *network) Close() error {
	n.diverted.Conns.Close()
	n.diverted.Questions.Close()
	n.diverted.QuestionConns.Close()
	return nil
}

func (n *network) Teardown(context.Context) error {
	n.m.mu.Lock()
	clear(n.m.slots)
	n.m.mu.Unlock()
	return n.Close()
}

// End has the instance of a sandbox end by itself.
func (m *Machine) End(id cay.SandboxID) {
	m.mu.Lock()
	var found cay.InstanceID
	for instance, c := range m.containers {
		if !c.dead && c.guest.Memory().SandboxID == string(id) {
			found = instance
		}
	}
	m.mu.Unlock()
	m.Die(found, cay.Death{Instance: found, Cause: cay.CauseEngine, Detail: "its test ended it"})
}
