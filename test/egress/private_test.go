package egress_test

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
)

// shared is a policy of a member of a private network that reaches nothing
// else.
func shared(team cay.TeamID, network, name string) cay.NetworkPolicy {
	return cay.NetworkPolicy{Private: &cay.PrivateNetwork{Team: team, Name: network, Member: name}}
}

// neighbour is another guest of the world's, until done.
func (w *world) neighbour(id cay.SandboxID, team cay.TeamID, p cay.NetworkPolicy) (n *world, done func(), err error) {
	n = &world{t: w.t, net: w.net, proxy: w.proxy, guestCA: w.guestCA}
	if n.slot, err = w.net.Acquire(w.t.Context()); err != nil {
		return nil, nil, err
	}
	n.guest = namespace(n.slot.Namespace)
	n.spec = cay.InstanceSpec{Sandbox: id, Team: team}
	n.policy(p)
	quiet := n.welcome()
	return n, func() {
		quiet()
		w.proxy.Drop(n.slot.Addr)
		w.must(w.net.Release(w.t.Context(), n.slot))
	}, nil
}

// welcome has a guest greet on port 7000, and answer datagrams to ports 7001
// and 7002.
func (w *world) welcome() (end func()) {
	l, err := w.guest.listen("tcp4", "0.0.0.0:7000")
	w.must(err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello from "+string(w.spec.Sandbox))
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	ends := []io.Closer{l}
	for _, port := range []int{7001, 7002} {
		u, err := w.guest.listenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", port))
		w.must(err)
		go w.echo(u)
		ends = append(ends, u)
	}
	return func() {
		for _, c := range ends {
			c.Close()
		}
	}
}

// with runs f with a neighbour.
func (w *world) with(id cay.SandboxID, team cay.TeamID, p cay.NetworkPolicy, f func(n *world) error) error {
	n, done, err := w.neighbour(id, team, p)
	if err != nil {
		return err
	}
	defer done()
	if w.spec.Sandbox == "sandbox" { // the first guest serves nothing by itself
		defer w.welcome()()
	}
	return f(n)
}

// named wants what a name is answered with.
func named(w *world, name string, want ...netip.Addr) error {
	m, err := w.ask("udp4", nameServer, name, dnsmessage.TypeA)
	if err != nil {
		return err
	}
	if len(want) == 0 {
		if m.RCode == dnsmessage.RCodeSuccess || len(m.Answers) > 0 {
			return fmt.Errorf("%s is answered: %s, %v", name, m.RCode, m.Answers)
		}
		return unseen(w, "internal")
	}
	got := map[netip.Addr]bool{}
	for _, a := range m.Answers {
		if body, ok := a.Body.(*dnsmessage.AResource); ok {
			got[netip.AddrFrom4(body.A)] = true
		}
	}
	for _, a := range want {
		if !got[a] || len(got) != len(want) {
			return fmt.Errorf("%s is answered %v, want %v", name, got, want)
		}
	}
	return unseen(w, "internal") // no other server was asked
}

// greets wants a neighbour reached.
func greets(from, to *world) error {
	got, err := from.says(to.slot.Addr, 7000, "x")
	if err != nil || !strings.HasPrefix(got, "hello from "+string(to.spec.Sandbox)) {
		return fmt.Errorf("%s to %s: %q, %v", from.spec.Sandbox, to.spec.Sandbox, got, err)
	}
	return from.udp(to.slot.Addr, 7001)
}

// apart wants a neighbour closed, both ways.
func apart(w, n *world) error {
	for _, pair := range [][2]*world{{w, n}, {n, w}} {
		if _, err := pair[0].says(pair[1].slot.Addr, 7000, "x"); err == nil {
			return fmt.Errorf("%s reaches %s", pair[0].spec.Sandbox, pair[1].spec.Sandbox)
		}
	}
	return nil
}

var private = group{"private networks", func(*world) cay.NetworkPolicy { return shared("team", "net", "me") }, []attempt{
	{"a member by its name and its id", func(w *world) error {
		return w.with("iother", "team", shared("team", "net", "db"), func(n *world) error {
			return errors.Join(
				named(w, "db.cay.internal", n.slot.Addr), named(w, "iother.cay.internal", n.slot.Addr),
				named(n, "me.cay.internal", w.slot.Addr), greets(w, n), greets(n, w))
		})
	}},
	{"a member that may reach everything else too", func(w *world) error {
		wide := cay.DefaultNetwork()
		wide.Private = &cay.PrivateNetwork{Team: "team", Name: "net", Member: "db"}
		return w.with("iother", "team", wide, func(n *world) error {
			return errors.Join(
				named(n, "me.cay.internal", w.slot.Addr), named(n, "b.example", w.b), named(n, "none.cay.internal"), greets(w, n))
		})
	}},
	{"several members of one name", func(w *world) error {
		return w.with("i1", "team", shared("team", "net", "db"), func(one *world) error {
			return one.with("i2", "team", shared("team", "net", "db"), func(two *world) error {
				return named(w, "db.cay.internal", one.slot.Addr, two.slot.Addr)
			})
		})
	}},
	{"the internet, which being a member does not open", func(w *world) error {
		return errors.Join(closed(w, w.a, 9000), named(w, "b.example"))
	}},
	{"a neighbour of the team in no network", func(w *world) error {
		return w.with("iother", "team", cay.DefaultNetwork(), func(n *world) error {
			if w.udp(n.slot.Addr, 7001) == nil || n.udp(w.slot.Addr, 7001) == nil {
				return errors.New("datagrams get through")
			}
			return errors.Join(apart(w, n), named(w, "iother.cay.internal"))
		})
	}},
	{"a neighbour of the team in another network", func(w *world) error {
		return w.with("iother", "team", shared("team", "net2", "db"), func(n *world) error {
			return errors.Join(apart(w, n), named(w, "db.cay.internal"), named(n, "me.cay.internal"))
		})
	}},
	{"another team's network of the same name", func(w *world) error {
		return w.with("iother", "team2", shared("team2", "net", "db"), func(n *world) error {
			return errors.Join(apart(w, n), named(w, "db.cay.internal"), named(w, "iother.cay.internal"), named(n, "me.cay.internal"))
		})
	}},
	{"a network whose name completes another team's", func(w *world) error {
		return w.with("iother", "tea", shared("tea", "mnet", "db"), func(n *world) error { return apart(w, n) })
	}},
	{"in the name of a member", func(w *world) error {
		return w.with("imember", "team", shared("team", "net", "db"), func(n *world) error {
			return n.with("ioutside", "team", cay.DefaultNetwork(), func(out *world) error {
				if err := spoofTo(out, w.slot.Addr, n.slot.Addr, 7002); err != nil {
					return err
				}
				return errors.Join(greets(w, n), unseen(n, ":7002")) // a later datagram came through
			})
		})
	}},
	{"a member that left", func(w *world) error {
		return w.with("iother", "team", shared("team", "net", "db"), func(n *world) error {
			c, err := w.tcp(n.slot.Addr, 7000)
			if err != nil {
				return err
			}
			if err := greets(w, n); err != nil {
				return err
			}
			n.policy(cay.NetworkPolicy{})
			_, _ = io.ReadFull(c, make([]byte, len("hello from iother"))) // sent before
			c.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(c, "more")
			if got, err := c.Read(make([]byte, 4)); err == nil {
				return fmt.Errorf("an open connection goes on: %d bytes", got)
			}
			return errors.Join(apart(w, n), named(w, "db.cay.internal"))
		})
	}},
	{"who comes after a member", func(w *world) error {
		member, done, err := w.neighbour("iold", "team", shared("team", "net", "db"))
		if err != nil {
			return err
		}
		was := member.slot
		done()
		defer w.welcome()()
		for range 16 { // slots are given out in turn
			n, done, err := w.neighbour("inew", "team2", cay.DefaultNetwork())
			if err != nil {
				return err
			}
			same := n.slot.Addr == was.Addr
			if same {
				err = errors.Join(apart(w, n), named(w, "db.cay.internal"))
			}
			done()
			if same || err != nil {
				return err
			}
		}
		return errors.New("the slot never came back")
	}},
}}
