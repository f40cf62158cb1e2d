package server

import (
	"cmp"
	"context"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/approvals"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/ledger"
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
		Ask:       s.ask,
		Authority: s.authority,
		OnDenied:  s.recordDenial,
		OnAllowed: s.countAllowed,
		OnSecret:  s.countSecret,
		Log:       s.log,
		Gateway:   vnet.Gateway,
		Server:    s.inner(),
	}
	if s.packages != nil {
		cfg.Packages = s.packages
	}
	if s.cfg.Models {
		cfg.Models = s.serveModels
	}
	s.egress = egress.New(cfg)
	s.later(func() error { s.egress.Close(); return nil })
	d := net.Diverted() // until the network is closed
	if d.Conns == nil { // a front has no guests
		return nil
	}
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

// ask has a person asked whether a guest may do something. The answer is in words
// for the guest, which learns of no person.
func (s *Server) ask(ctx context.Context, q egress.Question) egress.Answer {
	select {
	case <-s.ready:
	case <-ctx.Done():
		return egress.Answer{Why: "the server starts"}
	}
	x, err := s.control.Approvals.Hold(ctx, q.Team, approvals.Question{
		Sandbox: q.Sandbox, Kind: q.Kind, Subject: q.Subject, Title: q.Title, Body: q.Body,
	}, approvals.HeldWithin)
	switch {
	case err != nil && ctx.Err() != nil:
		return egress.Answer{Why: "the question could not be asked in time"}
	case cay.CodeOf(err) == cay.CodeApprovalLimit:
		return egress.Answer{Why: "too many questions wait for a decision"}
	case err != nil:
		s.log.WarnContext(ctx, "a question of a guest cannot be asked", "sandbox", q.Sandbox, "err", err)
		return egress.Answer{Why: "the question cannot be asked now"}
	case x.State == cay.ApprovalApproved:
		return egress.Answer{Yes: true}
	case x.State == cay.ApprovalPending:
		return egress.Answer{Why: "approval " + string(x.ID) + " waits for a decision; try again later"}
	}
	return egress.Answer{Why: "approval " + string(x.ID) + " is " + string(x.State)}
}

// mayStart has a person asked whether a command or code may start in a sandbox of
// this node, where its owner wants that.
func (s *Server) mayStart(ctx context.Context, id cay.SandboxID, what cay.Start, by ...cay.Origins) error {
	i, found := s.node.Lookup(id)
	if !found {
		return ledger.NoSandbox(id)
	}
	return s.control.Approvals.MayStart(ctx, cay.Sandbox{ID: id, Team: i.Spec.Team, AskCommands: i.Spec.AskCommands}, what, by...)
}

// mayStartNow is mayStart for as long as the sandbox has its present instance.
func (s *Server) mayStartNow(ctx context.Context, id cay.SandboxID, what cay.Start, by ...cay.Origins) error {
	now, done, err := s.proxy.While(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	err = s.mayStart(now, id, what, by...)
	if err != nil && now.Err() != nil && ctx.Err() == nil {
		return cay.Wrap(cay.Unavailable, err, "sandbox %s was paused, rolled back or ended while its command waited for a decision", id)
	}
	return err
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
	if team, err := s.control.Owner(id); err == nil {
		s.count(team, id, string(cay.EgressDenied), reached(c), cay.OutcomeDenied, "rule", c.Rule, "protocol", c.Protocol)
	}
	if err != nil && ctx.Err() == nil && cay.KindOf(err) != cay.NotFound { // it is over
		s.log.WarnContext(ctx, "a refused connection could not be recorded", "sandbox", id, "err", err)
	}
}

// countAllowed and countSecret have the audit log count what leaves. Before
// there is one, nothing runs that could.
func (s *Server) countAllowed(team cay.TeamID, id cay.SandboxID, c cay.Connection) {
	s.count(team, id, audit.Allowed, reached(c), cay.OutcomeOK, "rule", c.Rule, "protocol", c.Protocol)
}

func (s *Server) countSecret(team cay.TeamID, id cay.SandboxID, secret, host string) {
	s.count(team, id, audit.SecretUsed, secret, cay.OutcomeOK, "host", host)
}

func (s *Server) count(team cay.TeamID, id cay.SandboxID, action, target string, outcome cay.Outcome, details ...string) {
	select {
	case <-s.ready:
		s.audit.Count(audit.Seen{Who: cay.ForTeam(team), Sandbox: id, Action: action, Target: target, Outcome: outcome, Details: details})
	default:
	}
}

// reached is what a connection was to: by its name, if it said one.
func reached(c cay.Connection) string { return cmp.Or(c.Name, c.Address) }

const (
	denialWithin = 10 * time.Second
)
