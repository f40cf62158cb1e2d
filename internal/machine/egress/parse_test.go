package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"html"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
)

// helloOf is the ClientHello that Go's own client sends.
func helloOf(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		_ = tls.Client(client, cfg).Handshake()
	}()
	buf := make([]byte, maxHello)
	n, err := server.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	return buf[:n]
}

func TestReadHello(t *testing.T) {
	good := helloOf(t, &tls.Config{ServerName: "API.Example.com", NextProtos: []string{"h2"}})
	for name, tc := range map[string]struct {
		in   []byte
		want hello
		bad  bool
	}{
		"Go's":      {good, hello{name: "api.example.com"}, false},
		"and more":  {append(bytes.Clone(good), good...), hello{name: "api.example.com"}, false},
		"cut":       {good[:len(good)-1], hello{}, true},
		"no name":   {helloOf(t, &tls.Config{InsecureSkipVerify: true}), hello{}, false},
		"empty":     {nil, hello{}, true},
		"a request": {[]byte("GET / HTTP/1.1\r\n\r\n"), hello{}, true},
		"an alert":  {[]byte{21, 3, 3, 0, 2, 2, 49}, hello{}, true},
		"no record": {[]byte{22, 3, 1, 0, 0}, hello{}, true},
	} {
		got, err := readHello(bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(tc.in)), peekSize))
		if (err != nil) != tc.bad || err == nil && got != tc.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, tc.want)
		}
	}
}

// FuzzHello: whatever comes, reading ends, and a name that is believed is one
// of a host.
func FuzzHello(f *testing.F) {
	f.Add(helloOf(f, &tls.Config{ServerName: "a.example"}))
	f.Add(helloOf(f, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}))
	f.Add([]byte{22, 3, 1, 0, 5, 1, 0, 0, 1, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readHello(bufio.NewReaderSize(bytes.NewReader(in), peekSize))
		if err == nil && got.name != "" && got.name != cleanName(got.name) {
			t.Fatalf("the name %q is not clean", got.name)
		}
	})
}

func query(t testing.TB, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzQuestion: a guest that may reach one name gets no answer about others,
// whatever it asks, and answers are well-formed.
func FuzzQuestion(f *testing.F) {
	f.Add(query(f, "a.example.", dnsmessage.TypeA))
	f.Add(query(f, "b.example.", dnsmessage.TypeTXT))
	f.Add(query(f, strings.Repeat("x.", 120), dnsmessage.TypeALL))
	f.Add([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	p := New(Config{})
	f.Cleanup(p.Close)
	p.names.keep("a.example", answer{addrs: []netip.Addr{netip.MustParseAddr("192.88.99.1")}, until: time.Now().Add(24 * time.Hour)})
	g := &guest{decided: &decisions{}}
	g.rules.Store(compile(cay.NetworkPolicy{AllowOut: []string{"a.example"}}))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > maxQuestion {
			return
		}
		out := p.answer(context.Background(), g, in)
		if out == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(out); err != nil || !m.Response || len(out) > maxQuestion+64 {
			t.Fatalf("answered %x: %v", out, err)
		}
		if len(m.Answers) > 0 && cleanName(m.Questions[0].Name.String()) != "a.example" {
			t.Fatalf("answered %v", m)
		}
	})
}

// FuzzAnswer: whatever a name server sends, reading ends and gives IPv4
// addresses.
func FuzzAnswer(f *testing.F) {
	f.Add(reply(dnsmessage.Header{ID: 7}, dnsmessage.Question{Name: dnsmessage.MustNewName("a.example."), Type: 1, Class: 1}, 0,
		[]netip.Addr{netip.MustParseAddr("1.2.3.4")}))
	f.Add(query(f, "a.example.", dnsmessage.TypeA))
	f.Fuzz(func(t *testing.T, in []byte) {
		answers(in, 7, "a.example")
		for _, a := range readAnswer(in).addrs {
			if !a.Is4() {
				t.Fatalf("got %s", a)
			}
		}
	})
}

// FuzzRequest: the name that a request counts for is the one that its server
// is sent.
func FuzzRequest(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: a.example:80\r\n\r\n")
	f.Add("GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
	f.Add("GET / HTTP/1.1\r\nHost: 127.1\r\n\r\n")
	f.Add("GET / HTTP/1.1\r\nHost: [::ffff:7f00:1]\r\n\r\n")
	f.Fuzz(func(t *testing.T, in string) {
		isHTTP(bufio.NewReaderSize(strings.NewReader(in), peekSize))
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(in)))
		if err != nil {
			return
		}
		if name := requestName(r); name != "" && !strings.Contains(strings.ToLower(r.Host), name) {
			t.Fatalf("%q counts as %q", r.Host, name)
		}
	})
}

func TestMask(t *testing.T) {
	secrets := []string{"abcab", "key"}
	for in, want := range map[string]string{
		"":                     "",
		"nothing":              "nothing",
		"abcab":                "*****",
		"abcabcab":             "*****cab",
		"xxabcaxabcab key ke":  "xxabcax***** *** ke",
		"abca":                 "abca",
		"keykeykey":            "*********",
		strings.Repeat("k", 9): strings.Repeat("k", 9),
	} {
		for name, r := range map[string]io.Reader{
			"whole": strings.NewReader(in), "in bytes": iotest.OneByteReader(strings.NewReader(in)),
			"with its end": iotest.DataErrReader(strings.NewReader(in)),
		} {
			got, err := io.ReadAll(&masked{body: io.NopCloser(r), needles: needlesOf(secrets), left: maskWithin})
			if string(got) != want || err != nil {
				t.Errorf("%s %s: %q, %v, want %q", in, name, got, err, want)
			}
		}
	}
	// A short secret is any data's by chance: it is hidden at the beginning. A
	// long one is hidden to the end, however the body comes.
	const long = "a secret of some length"
	body := strings.Repeat("-", 3*maskPiece) + "key" + strings.Repeat("+", 2*maskPiece+1) + long + "?" + long[:9]
	want := strings.ReplaceAll(body, long, strings.Repeat("*", len(long)))
	for _, r := range []io.Reader{strings.NewReader(body), iotest.OneByteReader(strings.NewReader(body)), iotest.HalfReader(strings.NewReader(body))} {
		got, err := io.ReadAll(&masked{body: io.NopCloser(r), needles: needlesOf([]string{long, "key"}), left: maskWithin})
		if string(got) != want || err != nil {
			t.Errorf("of %d bytes %d came, %v; the secret is hidden: %v", len(body), len(got), err, !strings.Contains(string(got), long))
		}
	}
}

func TestMaskedForms(t *testing.T) {
	const secret = `a/b+c "d" <e>&é`
	n := needlesOf([]string{secret})
	for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), html.EscapeString(secret)} {
		h := http.Header{"X-Echo": {"was " + form}}
		n.header(h)
		if want := "was " + strings.Repeat("*", len(form)); h.Get("X-Echo") != want {
			t.Errorf("%q became %q", form, h.Get("X-Echo"))
		}
	}
	h := http.Header{"X-T0ken-Echo": {"1"}, "X-Other": {"2"}}
	needlesOf([]string{"t0KEN"}).header(h)
	if len(h) != 1 {
		t.Errorf("a field whose name is the secret: %v", h)
	}
}

func BenchmarkMask(b *testing.B) {
	body := bytes.Repeat([]byte("some words of an answer, "), 1<<20/25)
	n := needlesOf([]string{"sk-0123456789abcdef0123456789abcdef"})
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, &masked{body: io.NopCloser(bytes.NewReader(body)), needles: n, left: maskWithin}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestNames(t *testing.T) {
	var n names[string]
	for _, d := range []string{"a.example", "*.w.example", "*.deep.w.example", "*.com"} {
		n.add(d, d, 2)
	}
	for name, want := range map[string]string{
		"a.example": "a.example", "w.example": "", "x.w.example": "*.w.example", "y.x.w.example": "*.w.example",
		"z.deep.w.example": "*.deep.w.example", "deep.w.example": "*.w.example", "any.com": "*.com", "com": "",
		"ba.example": "", "": "", "example": "",
	} {
		if got, _ := n.find(name); got != want {
			t.Errorf("%q is found as %q, want %q", name, got, want)
		}
	}
}

func TestRingForgetsTheOldest(t *testing.T) {
	var r ring
	for i := range kept + 3 {
		r.add(cay.Connection{Sent: int64(i)})
	}
	got := r.list()
	if len(got) != kept || got[0].Sent != 3 || got[kept-1].Sent != kept+2 {
		t.Errorf("kept %d, from %d to %d", len(got), got[0].Sent, got[len(got)-1].Sent)
	}
}

// TestTeamComesLater: a guest that is known before it has a team gets the team
// later, and the team's secrets with it.
func TestTeamComesLater(t *testing.T) {
	p := New(Config{})
	defer p.Close()
	addr := netip.MustParseAddr("10.0.0.1")
	p.Set(addr, cay.InstanceSpec{Sandbox: "box"})
	p.Set(addr, cay.InstanceSpec{Sandbox: "box", Team: "team"})
	if g := p.guest(&net.TCPAddr{IP: addr.AsSlice(), Port: 1}); g == nil || g.team != "team" {
		t.Errorf("it is %+v", g)
	}
}

func BenchmarkCompile500(b *testing.B) {
	p := cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{cay.AllTraffic}}
	for i := range 500 {
		p.AllowOut = append(p.AllowOut, "h"+strings.Repeat("x", i%20)+string(rune('a'+i%26))+".example.com")
	}
	for b.Loop() {
		if err := p.Check(); err != nil {
			b.Fatal(err)
		}
		compile(p)
	}
}
