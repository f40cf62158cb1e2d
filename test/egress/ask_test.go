package egress_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/egress"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// person answers what the proxy asks.
type person struct {
	mu    sync.Mutex
	yes   map[string]bool // by the subject
	wait  chan struct{}   // until it is closed no answer comes; nil does not wait
	asked []egress.Question
}

func (p *person) answer(ctx context.Context, q egress.Question) egress.Answer {
	p.mu.Lock()
	p.asked = append(p.asked, q)
	wait, yes := p.wait, p.yes[q.Subject]
	p.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return egress.Answer{Why: "no answer came"}
		}
	}
	if !yes {
		return egress.Answer{Why: "a person said no"}
	}
	return egress.Answer{Yes: true}
}

// hold has questions wait until wait is closed.
func (p *person) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait = make(chan struct{})
}

func (p *person) questions() []egress.Question {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// person has yes answered to some subjects, and no to others, and gives the guest
// another name: it has asked nothing yet.
func (w *world) person(yes ...string) *person {
	p := &person{yes: map[string]bool{}}
	for _, subject := range yes {
		p.yes[subject] = true
	}
	w.mu.Lock()
	w.asks = p
	w.mu.Unlock()
	name, _ := unique()
	w.spec.Sandbox = cay.SandboxID("sandbox-" + name)
	w.policy(w.spec.Network)
	return p
}

func withQuestions(*world) cay.NetworkPolicy {
	key := []cay.HeaderRule{{Headers: map[string]string{"X-Key": "${e2b.secrets.key}"}, Approve: true}}
	return cay.NetworkPolicy{
		AllowInternet: true, DenyOut: []string{cay.AllTraffic}, AllowOut: []string{"a.example", "c.example"},
		AskOut: []string{"b.example", "*.w.example", "private.example", "two.example"},
		Rules:  map[string][]cay.HeaderRule{"c.example": key, "two.example": key},
	}
}

// once wants that one question was asked, and returns it.
func once(p *person) (egress.Question, error) {
	all := p.questions()
	if len(all) != 1 {
		return egress.Question{}, fmt.Errorf("%d questions were asked: %+v", len(all), all)
	}
	return all[0], nil
}

var asking = group{"asking", withQuestions, []attempt{
	{"the name server leads to the gateway, and nothing leaves", func(w *world) error {
		p := w.person()
		for _, name := range []string{"b.example", "stolen-data.w.example"} {
			m, err := w.ask("udp4", nameServer, name, dnsmessage.TypeA)
			if err != nil {
				return err
			}
			if len(m.Answers) != 1 || m.Answers[0].Body.(*dnsmessage.AResource).A != vnet.Gateway.As4() {
				return fmt.Errorf("%s is at %v", name, m.Answers)
			}
		}
		if n := len(p.questions()); n != 0 {
			return fmt.Errorf("%d questions were asked", n)
		}
		return unseen(w, "dns")
	}},
	{"a yes over TLS", func(w *world) error {
		p := w.person("b.example:443")
		got, err := overTLS(w, vnet.Gateway, 443, "b.example", "b.example")
		if err := errors.Join(status(got, err, 200, "hello from b.example"), saw(w, "tls b.example")); err != nil {
			return err
		}
		q, err := once(p)
		if err == nil && (q.Kind != cay.EgressApproval || q.Sandbox != w.spec.Sandbox || q.Team != "team" || q.Title != "Reach b.example at port 443") {
			return fmt.Errorf("asked %+v", q)
		}
		return err
	}},
	{"a no over TLS", func(w *world) error {
		p := w.person()
		if err := alert(w, vnet.Gateway, 443, clientHello(1<<14, false, "b.example")); err != nil {
			return err
		}
		_, err := once(p)
		return errors.Join(err, unseen(w, "b.example"))
	}},
	{"a yes over HTTP is for the connection", func(w *world) error {
		p := w.person("b.example:80")
		c := w.client(vnet.Gateway, 80, "")
		got, err := c.get("b.example", "/path?token=hidden")
		if err := errors.Join(status(got, err, 200, "hello from b.example"), saw(w, "http b.example /path")); err != nil {
			return err
		}
		if got, err = c.get("b.example", "/again"); status(got, err, 200, "hello") != nil { // on the same connection
			return status(got, err, 200, "hello")
		}
		_, err = once(p)
		return err
	}},
	{"a no over HTTP", func(w *world) error {
		w.person()
		got, err := w.client(vnet.Gateway, 80, "").get("b.example", "/")
		return denied(w, got, err, "askOut b.example: a person said no")
	}},
	{"a no stands for a moment", func(w *world) error {
		p := w.person()
		for range 5 {
			got, err := w.client(vnet.Gateway, 80, "").get("b.example", "/")
			if err := denied(w, got, err, "said no"); err != nil {
				return err
			}
		}
		_, err := once(p)
		return err
	}},
	{"another port is another question", func(w *world) error {
		w.person("b.example:443")
		got, err := w.client(vnet.Gateway, 80, "").get("b.example", "/")
		return denied(w, got, err, "said no")
	}},
	{"at an address of the guest's choice the name alone counts", func(w *world) error {
		w.person("b.example:443", "b.example:80")
		got, err := overTLS(w, w.a, 443, "b.example", "b.example") // a's address
		if err := errors.Join(status(got, err, 200, "hello from b.example"), saw(w, "tls b.example")); err != nil {
			return err
		}
		got, err = w.client(w.a, 80, "").get("b.example", "/")
		return status(got, err, 200, "hello from b.example")
	}},
	{"a name below a wildcard", func(w *world) error {
		w.person("sub.w.example:443")
		got, err := overTLS(w, vnet.Gateway, 443, "sub.w.example", "sub.w.example")
		if err := errors.Join(status(got, err, 200, "hello"), saw(w, "tls sub.w.example")); err != nil {
			return err
		}
		return alert(w, vnet.Gateway, 443, clientHello(1<<14, false, "other.w.example"))
	}},
	{"an allowed name is not asked about", func(w *world) error {
		p := w.person()
		got, err := overTLS(w, w.a, 443, "a.example", "a.example")
		if n := len(p.questions()); n != 0 {
			return fmt.Errorf("%d questions were asked", n)
		}
		return status(got, err, 200, "hello")
	}},
	{"a name without a rule at the gateway", func(w *world) error {
		p := w.person("evil.example:443", "evil.example:80")
		err := alert(w, vnet.Gateway, 443, clientHello(1<<14, false, "evil.example"))
		got, more := w.client(vnet.Gateway, 80, "").get("evil.example", "/")
		if n := len(p.questions()); n != 0 {
			return fmt.Errorf("%d questions were asked", n)
		}
		return errors.Join(err, denied(w, got, more, ""))
	}},
	{"a hidden name (ECH)", func(w *world) error {
		p := w.person("b.example:443")
		err := alert(w, vnet.Gateway, 443, clientHello(1<<14, true, "b.example"))
		if n := len(p.questions()); n != 0 {
			return fmt.Errorf("%d questions were asked", n)
		}
		return err
	}},
	{"a name of closed addresses, after a yes", func(w *world) error {
		w.person("private.example:443", "private.example:80")
		_, err := overTLS(w, vnet.Gateway, 443, "private.example", "private.example")
		if err == nil {
			return errors.New("it got through")
		}
		got, err := w.client(vnet.Gateway, 80, "").get("private.example", "/")
		return errors.Join(status(got, err, 502, ""), unseen(w, "http"), unseen(w, "tls"))
	}},
	{"a second host on a connection that asked", func(w *world) error {
		w.person("b.example:80", "sub.w.example:80")
		for host, want := range map[string]int{"sub.w.example": 421, "a.example": 403} { // the gateway is not a's address
			c := w.client(vnet.Gateway, 80, "")
			got, err := c.get("b.example", "/")
			if err := status(got, err, 200, ""); err != nil {
				return err
			}
			if got, err = c.get(host, "/"); status(got, err, want, "") != nil {
				return status(got, err, want, "")
			}
		}
		return nil
	}},
	{"a connection waits for the answer, and others join it", func(w *world) error {
		p := w.person("b.example:443")
		p.hold()
		const callers = 5
		answers := make(chan error, callers)
		for range callers {
			go func() {
				got, err := overTLS(w, vnet.Gateway, 443, "b.example", "b.example")
				answers <- status(got, err, 200, "hello from b.example")
			}()
		}
		if err := eventually(func() bool { return len(p.questions()) == 1 }); err != nil {
			return err
		}
		select {
		case err := <-answers:
			return fmt.Errorf("one did not wait: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		if err := unseen(w, "b.example"); err != nil {
			return err
		}
		close(p.wait)
		var all error
		for range callers {
			all = errors.Join(all, <-answers)
		}
		_, err := once(p)
		return errors.Join(all, err)
	}},
	{"a sandbox that ends while it waits", func(w *world) error {
		p := w.person("b.example:443")
		p.hold()
		defer close(p.wait)
		failed := make(chan error, 1)
		go func() {
			_, err := overTLS(w, vnet.Gateway, 443, "b.example", "b.example")
			failed <- err
		}()
		if err := eventually(func() bool { return len(p.questions()) == 1 }); err != nil {
			return err
		}
		w.proxy.Drop(w.slot.Addr)
		if err := <-failed; err == nil {
			return errors.New("it got through")
		}
		return unseen(w, "b.example")
	}},
	{"a policy that closes while it waits", func(w *world) error {
		p := w.person("b.example:443")
		p.hold()
		failed := make(chan error, 1)
		go func() {
			_, err := overTLS(w, vnet.Gateway, 443, "b.example", "b.example")
			failed <- err
		}()
		if err := eventually(func() bool { return len(p.questions()) == 1 }); err != nil {
			return err
		}
		closed := w.spec.Network
		closed.AskOut = nil
		w.policy(closed)
		close(p.wait)
		if err := <-failed; err == nil {
			return errors.New("it got through")
		}
		return nil
	}},
	{"a flood of names is bounded", func(w *world) error {
		p := w.person()
		p.hold()
		const names = 40
		done := make(chan error, names)
		for i := range names {
			go func() {
				got, err := w.client(vnet.Gateway, 80, "").get(fmt.Sprintf("n%d.w.example", i), "/")
				done <- status(got, err, 403, "")
			}()
		}
		err := <-done // one of those that are too many
		if more := eventually(func() bool { return len(p.questions()) == 32 }); more != nil {
			return fmt.Errorf("%d questions are asked: %w", len(p.questions()), more)
		}
		close(p.wait)
		for range names - 1 {
			err = errors.Join(err, <-done)
		}
		if n := len(p.questions()); n != 32 {
			return fmt.Errorf("%d questions were asked", n)
		}
		return errors.Join(err, unseen(w, "w.example"))
	}},
	{"a secret after a yes", func(w *world) error {
		p := w.person("c.example key")
		got, err := overTLS(w, w.c, 443, "c.example", "c.example")
		if err := errors.Join(status(got, err, 200, "hello"), saw(w, "key="+secretValue)); err != nil {
			return err
		}
		q, err := once(p)
		if err == nil && (q.Kind != cay.SecretApproval || !strings.Contains(q.Body, "GET /") || strings.Contains(q.Body, secretValue)) {
			return fmt.Errorf("asked %+v", q)
		}
		return err
	}},
	{"a secret is asked about by request, without what may be secret in it", func(w *world) error {
		p := w.person("c.example key")
		c := w.client(w.c, 443, "c.example")
		for _, path := range []string{"/one?token=hidden", "/two", "/one?token=another"} {
			if got, err := c.get("c.example", path); status(got, err, 200, "hello") != nil {
				return status(got, err, 200, "hello")
			}
		}
		all := p.questions()
		if len(all) != 3 || all[0].Body == all[2].Body || !strings.Contains(all[0].Body, "GET /one?…") || strings.Contains(all[0].Body, "hidden") || !strings.Contains(all[1].Body, "GET /two") {
			return fmt.Errorf("asked %+v", all)
		}
		return nil
	}},
	{"a secret after a no", func(w *world) error {
		w.person()
		got, err := overTLS(w, w.c, 443, "c.example", "c.example")
		if err := status(got, err, 403, "said no"); err != nil {
			return err
		}
		return errors.Join(unseen(w, "http"), keyless(w))
	}},
	{"a host and a secret are two questions", func(w *world) error {
		p := w.person("two.example:443", "two.example key")
		got, err := overTLS(w, vnet.Gateway, 443, "two.example", "two.example")
		if err := errors.Join(status(got, err, 200, "hello"), saw(w, "key="+secretValue)); err != nil {
			return err
		}
		if n := len(p.questions()); n != 2 {
			return fmt.Errorf("%d questions were asked", n)
		}
		return nil
	}},
	{"a program inside asks the host", func(w *world) error {
		p := w.person("a tool")
		got, err := w.client(vnet.Gateway, guest.HostPort, "").do("POST", "anything", guest.AskPath, strings.NewReader(`{"subject":"a tool","title":"Call it\u202e","body":"{\n 1}"}`))
		if err := status(got, err, 200, `"yes":true`); err != nil {
			return err
		}
		q, err := once(p)
		if err == nil && (q.Kind != cay.ToolApproval || q.Title != "Call it " || q.Body != "{\n 1}" || q.Sandbox != w.spec.Sandbox) {
			return fmt.Errorf("asked %+v", q)
		}
		got, more := w.client(vnet.Gateway, guest.HostPort, "").do("POST", "anything", guest.AskPath, strings.NewReader(`{"subject":"another","title":"x"}`))
		return errors.Join(err, status(got, more, 200, `"yes":false,"why":"a person said no"`))
	}},
	{"nonsense for the host", func(w *world) error {
		p := w.person()
		for _, body := range []string{"", "{", `[]`, `{"title":"x"}`, `{"subject":"x"}`, `{"subject":"x","title":"` + strings.Repeat("x", 201) + `"}`, `{"subject":"x","title":"x","body":"` + strings.Repeat("x", 16<<10+1) + `"}`, strings.Repeat(" ", 1<<20)} {
			got, err := w.client(vnet.Gateway, guest.HostPort, "").do("POST", "a", guest.AskPath, strings.NewReader(body))
			if err := status(got, err, 400, ""); err != nil {
				return fmt.Errorf("%.60q: %w", body, err)
			}
		}
		got, err := w.client(vnet.Gateway, guest.HostPort, "").get("a", guest.AskPath)
		other, more := w.client(vnet.Gateway, guest.HostPort, "").get("a", "/")
		if n := len(p.questions()); n != 0 {
			return fmt.Errorf("%d questions were asked", n)
		}
		return errors.Join(status(got, err, 405, ""), status(other, more, 404, ""))
	}},
	{"a server that answers no questions", func(w *world) error {
		w.person("b.example:80")
		w.mu.Lock()
		w.asks = nil
		w.mu.Unlock()
		got, err := w.client(vnet.Gateway, 80, "").get("b.example", "/")
		return denied(w, got, err, "")
	}},
}}

// closedAsking is a sandbox that reaches nothing: it may ask all the same.
var closedAsking = group{"asking without a network", func(*world) cay.NetworkPolicy { return cay.NetworkPolicy{} }, []attempt{
	{"a program inside asks the host", func(w *world) error {
		w.person("a tool")
		got, err := w.client(vnet.Gateway, guest.HostPort, "").do("POST", "a", guest.AskPath, strings.NewReader(`{"subject":"a tool","title":"x"}`))
		return errors.Join(status(got, err, 200, `"yes":true`), unseen(w, ""))
	}},
	{"a name leads nowhere", func(w *world) error {
		got, err := w.client(vnet.Gateway, 80, "").get("b.example", "/")
		return denied(w, got, err, "closed range")
	}},
}}

// askingAny asks about all that is not allowed.
var askingAny = group{"asking about any name", func(*world) cay.NetworkPolicy {
	return cay.NetworkPolicy{AskOut: []string{cay.AnyName}}
}, []attempt{
	{"a yes", func(w *world) error {
		w.person("b.example:443")
		got, err := overTLS(w, vnet.Gateway, 443, "b.example", "b.example")
		return status(got, err, 200, "hello from b.example")
	}},
	{"a no", func(w *world) error {
		w.person("b.example:443")
		return alert(w, vnet.Gateway, 443, clientHello(1<<14, false, "a.example"))
	}},
	{"names that have no place in the internet", func(w *world) error {
		p := w.person()
		for _, name := range []string{"localhost", "metadata.google.internal", "printer.lan", "intranet"} {
			got, err := w.client(vnet.Gateway, 80, "").get(name, "/")
			if err := denied(w, got, err, ""); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if n := len(p.questions()); n != 0 {
			return fmt.Errorf("%d questions were asked: %+v", n, p.questions())
		}
		return nil
	}},
	{"an address", func(w *world) error {
		p := w.person()
		got, err := w.client(w.b, 80, "").get(w.b.String(), "/")
		if n := len(p.questions()); n != 0 {
			return fmt.Errorf("%d questions were asked", n)
		}
		return denied(w, got, err, "")
	}},
	{"a protocol without a name", func(w *world) error {
		_, err := w.says(w.a, 22, "hello")
		return refused(w, err)
	}},
	{"metadata of clouds", func(w *world) error {
		got, err := w.client(w.private[0], 80, "").get("b.example", "/")
		if err == nil && got.status == 200 {
			return errors.New("it got through")
		}
		return unseen(w, "http")
	}},
}}

// eventually waits until something is so.
func eventually(is func() bool) error {
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("it is not so after a minute")
		}
	}
	return nil
}
