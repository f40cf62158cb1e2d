package egress_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"
)

// clientHello is one as sloppy programs write it, in records of that size.
func clientHello(size int, ech bool, names ...string) []byte {
	u16 := func(b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }
	var extensions []byte
	for _, n := range names {
		entry := append([]byte{0}, u16([]byte(n))...)
		extensions = append(append(extensions, 0, 0), u16(u16(entry))...)
	}
	if ech {
		extensions = append(append(extensions, 0xfe, 0x0d), u16([]byte{1, 2, 3})...)
	}
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0)             // session
	body = append(body, 0, 2, 0x13, 1) // cipher suites
	body = append(body, 1, 0)          // compressions
	body = append(body, u16(extensions)...)
	message := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	var out []byte
	for len(message) > 0 {
		n := min(size, len(message))
		out = append(append(out, 22, 3, 1), u16(message[:n])...)
		message = message[n:]
	}
	return out
}

// alert wants TLS to be refused with an alert, or the connection reset.
func alert(w *world, a netip.Addr, port uint16, hello []byte) error {
	got, err := w.says(a, port, string(hello))
	if err == nil && (len(got) < 7 || got[0] != 21 || got[6] != 49) {
		return fmt.Errorf("answered %q", got)
	}
	return unseen(w, "tls")
}

func overTLS(w *world, a netip.Addr, port uint16, sni, host string) (reply, error) {
	return w.client(a, port, sni).get(host, "/")
}

var tlsByName = group{"tls by name", byName, []attempt{
	{"an allowed name passes", func(w *world) error {
		got, err := overTLS(w, w.a, 443, "a.example", "a.example")
		return status(got, err, 200, "hello from a.example")
	}},
	{"an allowed name passes on another port", func(w *world) error {
		got, err := overTLS(w, w.a, 8443, "a.example", "a.example")
		return status(got, err, 200, "hello")
	}},
	{"a name below a wildcard passes", func(w *world) error {
		got, err := overTLS(w, w.a, 443, "sub.w.example", "sub.w.example")
		return status(got, err, 200, "hello")
	}},
	{"a name of two addresses passes at both", func(w *world) error {
		for _, a := range []netip.Addr{w.a, w.b} {
			if got, err := overTLS(w, a, 443, "two.example", "two.example"); status(got, err, 200, "hello") != nil {
				return status(got, err, 200, "hello")
			}
		}
		return nil
	}},
	{"capital letters are the same name", func(w *world) error {
		_, err := w.says(w.a, 443, string(clientHello(1<<14, false, "A.ExAmPlE")))
		return errors.Join(err, saw(w, "tls"))
	}},
	{"the wildcard's own name", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false, "w.example")) }},
	{"another name", func(w *world) error { return alert(w, w.b, 443, clientHello(1<<14, false, "b.example")) }},
	{"another name at an allowed address", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false, "b.example")) }},
	{"an allowed name at another address", func(w *world) error { return alert(w, w.b, 443, clientHello(1<<14, false, "a.example")) }},
	{"an allowed name at an address that it never had", func(w *world) error { return alert(w, w.c, 8443, clientHello(1<<14, false, "two.example")) }},
	{"no name", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false)) }},
	{"two names", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false, "a.example", "b.example")) }},
	{"an address as a name", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false, w.a.String())) }},
	{"a name that begins with an allowed one", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false, "a.example.evil.test")) }},
	{"a name that ends with an allowed one", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false, "evil-a.example")) }},
	{"a name with a zero byte", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false, "a.example\x00.evil.test")) }},
	{"a hidden name (ECH)", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, true, "a.example")) }},
	{"another name in records of one byte", func(w *world) error { return alert(w, w.a, 443, clientHello(1, false, "b.example")) }},
	{"an allowed name in small records passes", func(w *world) error {
		_, err := w.says(w.a, 443, string(clientHello(7, false, "a.example")))
		return errors.Join(err, saw(w, "tls a.example"))
	}},
	{"an endless ClientHello", func(w *world) error {
		got, err := w.says(w.a, 443, string([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff})+strings.Repeat("x", 1<<14))
		if err == nil && got[0] != 21 {
			return fmt.Errorf("answered %q", got)
		}
		return unseen(w, "tls")
	}},
	{"DNS over TLS at an allowed name", func(w *world) error { return alert(w, w.a, 853, clientHello(1<<14, false, "a.example")) }},
	{"DNS over HTTPS at another name", func(w *world) error {
		_, err := overTLS(w, w.b, 443, "b.example", "b.example")
		return refused(w, err)
	}},
	{"a private address under an allowed name", func(w *world) error { return alert(w, w.private[1], 443, clientHello(1<<14, false, "private.example")) }},
}}

var httpByName = group{"http by name", byName, []attempt{
	{"an allowed host passes", func(w *world) error {
		got, err := w.client(w.a, 80, "").get("a.example", "/")
		return status(got, err, 200, "hello from a.example")
	}},
	{"an allowed host passes on another port", func(w *world) error {
		got, err := w.client(w.a, 8080, "").get("a.example:8080", "/")
		return status(got, err, 200, "hello")
	}},
	{"another host", func(w *world) error {
		got, err := w.client(w.b, 80, "").get("b.example", "/")
		return denied(w, got, err, "0.0.0.0/0")
	}},
	{"another host at an allowed address", func(w *world) error {
		got, err := w.client(w.a, 80, "").get("b.example", "/")
		return denied(w, got, err, "0.0.0.0/0")
	}},
	{"an allowed host at another address", func(w *world) error {
		got, err := w.client(w.b, 80, "").get("a.example", "/")
		return denied(w, got, err, "not the name's")
	}},
	{"an address as a host", func(w *world) error {
		got, err := w.client(w.a, 80, "").get(w.a.String(), "/")
		return denied(w, got, err, "0.0.0.0/0")
	}},
	{"the host's loopback in every notation", func(w *world) error {
		for _, host := range []string{"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "metadata.google.internal"} {
			got, err := w.client(w.a, 80, "").get(host, "/")
			if err := denied(w, got, err, ""); err != nil {
				return fmt.Errorf("%s: %w", host, err)
			}
		}
		return nil
	}},
	{"a second request for another host", func(w *world) error {
		c := w.client(w.a, 80, "")
		got, err := c.get("a.example", "/")
		if err := status(got, err, 200, ""); err != nil {
			return err
		}
		w.seen()
		got, err = c.get("b.example", "/")
		return denied(w, got, err, "0.0.0.0/0")
	}},
	{"a pipelined request for another host", func(w *world) error {
		return twoRequests(w, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\nGET / HTTP/1.1\r\nHost: b.example\r\n\r\n", 200, 403)
	}},
	{"a request smuggled in a body", func(w *world) error {
		inner := "GET /smuggled HTTP/1.1\r\nHost: b.example\r\n\r\n"
		_, err := w.says(w.a, 80, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: "+fmt.Sprint(len(inner)+5)+
			"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+inner)
		if err != nil {
			return err
		}
		return unseen(w, "smuggled")
	}},
	{"a request with two hosts", func(w *world) error {
		got, err := w.says(w.a, 80, "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n")
		if err != nil || !strings.HasPrefix(got, "HTTP/1.1 400") {
			return fmt.Errorf("answered %q, %v", got, err)
		}
		return unseen(w, "http")
	}},
	{"a request without a host", func(w *world) error {
		got, err := w.says(w.a, 80, "GET / HTTP/1.0\r\n\r\n")
		if err != nil || !strings.Contains(got, " 403 ") {
			return fmt.Errorf("answered %q, %v", got, err)
		}
		return unseen(w, "http")
	}},
	{"an absolute address of another host", func(w *world) error {
		got, err := w.says(w.a, 80, "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
		if err != nil || !strings.Contains(got, " 403 ") {
			return fmt.Errorf("answered %q, %v", got, err)
		}
		return unseen(w, "http")
	}},
	{"a tunnel with CONNECT", func(w *world) error {
		got, err := w.says(w.a, 80, "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n")
		if err != nil || !strings.Contains(got, " 403 ") {
			return fmt.Errorf("answered %q, %v", got, err)
		}
		return unseen(w, "http")
	}},
	{"HTTP/2 without TLS to another authority", func(w *world) error {
		c := w.client(w.a, 80, "", "h2c")
		got, err := c.get("a.example", "/")
		if err := status(got, err, 200, "hello"); err != nil {
			return err
		}
		w.seen()
		got, err = c.get("b.example", "/")
		return denied(w, got, err, "0.0.0.0/0")
	}},
	{"a redirect to a private address", func(w *world) error {
		got, err := w.client(w.a, 80, "").get("a.example", "/redirect")
		if err != nil || got.status != 302 {
			return fmt.Errorf("answered %+v, %v", got, err)
		}
		w.seen()
		_, err = w.client(w.private[0], 80, "").get(w.private[0].String(), "/")
		return refused(w, err)
	}},
	{"a head without end", func(w *world) error {
		c, err := w.tcp(w.a, 80)
		if err != nil {
			return err
		}
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.example\r\n")
		for range 64 {
			if _, err := io.WriteString(c, "X: "+strings.Repeat("y", 4<<10)+"\r\n"); err != nil {
				break
			}
		}
		io.Copy(io.Discard, c)
		return unseen(w, "http")
	}},
}}

// twoRequests sends two requests at once and wants two answers.
func twoRequests(w *world, text string, first, second int) error {
	c, err := w.tcp(w.a, 80)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	r := bufio.NewReader(c)
	for _, want := range []int{first, second} {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != want {
			return fmt.Errorf("answered %d, want %d", resp.StatusCode, want)
		}
	}
	return unseen(w, "b.example")
}

var rawByName = group{"anything else by name", byName, []attempt{
	{"bytes that are no protocol", func(w *world) error {
		_, err := w.says(w.a, 9000, "\x00\x01 hello\n")
		return refused(w, err)
	}},
	{"SSH", func(w *world) error {
		_, err := w.says(w.a, 22, "SSH-2.0-guest\r\n")
		return refused(w, err)
	}},
	{"a client that says nothing", func(w *world) error {
		begun := time.Now()
		_, err := w.says(w.a, 9000, "")
		if time.Since(begun) > patience/2 {
			return errors.New("it hung")
		}
		return refused(w, err)
	}},
	{"datagrams", func(w *world) error { return refused(w, w.udp(w.a, 123)) }},
	{"QUIC", func(w *world) error { return refused(w, w.udp(w.a, 443)) }},
	{"DNS over QUIC", func(w *world) error { return refused(w, w.udp(w.a, 853)) }},
	{"multicast names", func(w *world) error { return refused(w, w.udp(netip.MustParseAddr("224.0.0.251"), 5353)) }},
	{"ICMP", func(w *world) error {
		c, err := w.guest.listenPacket("ip4:icmp", "0.0.0.0")
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.WriteTo([]byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}, &net.IPAddr{IP: w.a.AsSlice()}); err != nil {
			return nil // not even sent
		}
		buf := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return nil
				}
				return err
			}
			if n > 0 && buf[0] == 0 {
				return fmt.Errorf("an echo from %s", from)
			}
		}
	}},
	{"a packet in another's name", func(w *world) error {
		c, err := w.guest.listenPacket("ip4:255", "0.0.0.0")
		if err != nil {
			return err
		}
		c.Close()
		if err := spoof(w, netip.MustParseAddr("8.8.8.8"), w.a); err != nil {
			return err
		}
		got, err := w.client(w.a, 80, "").get("a.example", "/") // by now it would be there
		if err := status(got, err, 200, ""); err != nil {
			return err
		}
		return unseen(w, "udp")
	}},
}}
