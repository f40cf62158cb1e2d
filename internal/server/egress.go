package server

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/egress"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// openEgress serves what the packet filter diverts.
func (s *Server) openEgress(m *host.Machine) (*egress.Authority, error) {
	authority, err := egress.OpenAuthority(s.cfg.Data)
	if err != nil {
		return nil, err
	}
	if err := s.openPackages(); err != nil {
		return nil, err
	}
	told := &denials{tell: s.tellDenial, ready: s.ready, queue: make(chan denial, 256), done: make(chan struct{})}
	cfg := egress.Config{
		Dial:      m.Net.Dial,
		Original:  vnet.Original,
		Closed:    m.Net.Closed,
		Resolvers: m.Net.Resolvers(),
		Secret:    s.secret,
		Authority: authority,
		OnDenied:  told.add,
		Log:       s.log,
		Gateway:   vnet.Gateway,
		Server:    s.inner(),
	}
	if s.packages != nil {
		cfg.Packages = s.packages
	}
	s.egress = egress.New(cfg)
	go told.run()
	s.later(func() error {
		s.egress.Close()
		close(told.done)
		return nil
	})
	d := m.Net.Diverted()
	go s.egress.Serve(d.Conns) // until m.Net is closed
	go s.egress.ServeUDP(d.Questions)
	go s.egress.ServeTCP(d.QuestionConns)
	return authority, nil
}

// secret returns a secret of a team, for headers. A guest may ask before there
// is a control.
func (s *Server) secret(ctx context.Context, team cay.TeamID, name string) (string, error) {
	select {
	case <-s.ready:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	return s.control.SecretValue(ctx, team, name)
}

// tellDenial records an event of what a sandbox may not reach.
func (s *Server) tellDenial(d denial) {
	ctx, cancel := context.WithTimeout(context.Background(), denialWithin)
	defer cancel()
	c := d.conn
	err := s.control.Report(ctx, d.sandbox, cay.EgressDenied, cay.ReasonPolicy,
		"rule", c.Rule, "protocol", c.Protocol, "name", c.Name, "address", c.Address)
	if err != nil && cay.KindOf(err) != cay.NotFound { // it is over
		s.log.Warn("a refused connection could not be recorded", "sandbox", d.sandbox, "err", err)
	}
}

const (
	denialWithin = 10 * time.Second
	denialAgain  = time.Minute // how long the same one is not told again
	denialsKept  = 4096
)

// denial is what a sandbox may not reach.
type denial struct {
	sandbox cay.SandboxID
	conn    cay.Connection
}

// denials tells each refusal once a minute, and never makes a guest wait.
type denials struct {
	tell  func(denial)
	ready <-chan struct{} // before that there is no listener
	queue chan denial
	done  chan struct{}

	mu   sync.Mutex
	told map[denialKey]time.Time
}

type denialKey struct {
	sandbox             cay.SandboxID
	rule, name, address string
}

func (d *denials) add(id cay.SandboxID, _ cay.TeamID, c cay.Connection) {
	key := denialKey{id, c.Rule, c.Name, c.Address}
	d.mu.Lock()
	at, ok := d.told[key]
	again := !ok || time.Since(at) > denialAgain
	if again {
		if d.told == nil || len(d.told) >= denialsKept {
			d.told = map[denialKey]time.Time{}
		}
		d.told[key] = time.Now()
	}
	d.mu.Unlock()
	if !again {
		return
	}
	select {
	case d.queue <- denial{id, c}:
	default: // the list of connections has it
	}
}

func (d *denials) run() {
	select {
	case <-d.ready:
	case <-d.done:
		return
	}
	for {
		select {
		case x := <-d.queue:
			d.tell(x)
		case <-d.done:
			return
		}
	}
}
