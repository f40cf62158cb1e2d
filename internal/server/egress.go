package server

import (
	"context"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/identity"
	"github.com/cay-run/cay/internal/machine/egress"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// openEgress serves what the packet filter diverts.
func (s *Server) openEgress() (err error) {
	if s.authority, err = egress.OpenAuthority(s.cfg.Data); err != nil {
		return err
	}
	if err := s.openPackages(); err != nil {
		return err
	}
	if s.identity, err = identity.Open(filepath.Join(s.cfg.Data, "identity"), s.cfg.URL(), s.log); err != nil {
		return err
	}
	net := s.host.Net
	cfg := egress.Config{
		Dial:      net.Dial,
		Original:  vnet.Original,
		Closed:    net.Closed,
		Resolvers: net.Resolvers(),
		Secret:    s.secret,
		Identity:  s.identity.Token,
		Authority: s.authority,
		OnDenied:  s.recordDenial,
		Log:       s.log,
		Gateway:   vnet.Gateway,
		Server:    s.inner(),
	}
	if s.packages != nil {
		cfg.Packages = s.packages
	}
	s.egress = egress.New(cfg)
	s.later(func() error { s.egress.Close(); return nil })
	d := net.Diverted() // until the network is closed
	s.diverted.Go(func() { s.egress.Serve(d.Conns) })
	s.diverted.Go(func() { s.egress.ServeUDP(d.Questions) })
	s.diverted.Go(func() { s.egress.ServeTCP(d.QuestionConns) })
	return nil
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

// recordDenial records an event of a refusal. Before Run there is no control to
// record it.
func (s *Server) recordDenial(ctx context.Context, id cay.SandboxID, c cay.Connection) {
	select {
	case <-s.ready:
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, denialWithin)
	defer cancel()
	err := s.control.Report(ctx, id, cay.EgressDenied, cay.ReasonPolicy,
		"rule", c.Rule, "protocol", c.Protocol, "name", c.Name, "address", c.Address)
	if err != nil && ctx.Err() == nil && cay.KindOf(err) != cay.NotFound { // it is over
		s.log.WarnContext(ctx, "a refused connection could not be recorded", "sandbox", id, "err", err)
	}
}

const denialWithin = 10 * time.Second
