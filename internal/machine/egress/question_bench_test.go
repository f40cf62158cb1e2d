package egress

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
)

// BenchmarkOpenQuestion is a question of a guest that may reach everything, through
// our name server and straight to the host's, as the packet filter could send it.
func BenchmarkOpenQuestion(b *testing.B) {
	hosts := packets(b)
	go answerAll(hosts)
	p := New(Config{Resolvers: []netip.AddrPort{hosts.LocalAddr().(*net.UDPAddr).AddrPort()}})
	b.Cleanup(p.Close)
	p.Set(netip.MustParseAddr("127.0.0.1"), cay.InstanceSpec{Sandbox: "box", Team: "team", Network: cay.NetworkPolicy{AllowInternet: true}})
	ours := packets(b)
	go p.ServeUDP(ours)
	for _, way := range []struct {
		name string
		to   net.Addr
	}{{"straight", hosts.LocalAddr()}, {"ours", ours.LocalAddr()}} {
		b.Run(way.name, func(b *testing.B) {
			c, err := net.Dial("udp", way.to.String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			question, reply := query(b, "www.example.com.", dnsmessage.TypeA), make([]byte, maxQuestion)
			for b.Loop() {
				if _, err := c.Write(question); err != nil {
					b.Fatal(err)
				}
				if _, err := c.Read(reply); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func packets(b *testing.B) net.PacketConn {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// answerAll is a name server to which every name is one address.
func answerAll(c net.PacketConn) {
	buf := make([]byte, maxQuestion)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		h, q, _ := readQuestion(buf[:n])
		_, _ = c.WriteTo(reply(h, q, dnsmessage.RCodeSuccess, []netip.Addr{netip.MustParseAddr("192.88.99.1")}), from)
	}
}
