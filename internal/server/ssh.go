package server

import (
	"context"
	"crypto/ed25519"
	"io"
	"path/filepath"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/edge/sshd"
	"github.com/cay-run/cay/internal/keys/seal"
)

// openSSH makes the SSH server, which listens nowhere yet.
func (s *Server) openSSH(keys *auth.Auth) error {
	path := filepath.Join(s.cfg.Data, "ssh_host.key")
	seed, err := seal.Secret(path)
	if err != nil {
		return err
	}
	if len(seed) != ed25519.SeedSize {
		return cay.Errorf(cay.Internal, "the SSH host key %s has %d bytes, not %d", path, len(seed), ed25519.SeedSize).
			WithHint("restore it from a backup; without it clients warn of another host")
	}
	s.ssh, err = sshd.New(sshd.Config{
		HostKey: ed25519.NewKeyFromSeed(seed),
		Password: func(ctx context.Context, key string) (cay.TeamID, cay.KeyID, error) {
			record, err := keys.Verify(ctx, key)
			if err == nil {
				err = record.Caller().May(cay.ExecSandboxes)
			}
			return record.Team, record.ID, err
		},
		While: func(ctx context.Context, team cay.TeamID, key cay.KeyID) (context.Context, context.CancelFunc) {
			return keys.While(ctx, cay.Caller{Team: team, Key: key})
		},
		Owner:     s.teamOf,
		Elsewhere: s.shellElsewhere(),
		Opens:     keys.SSHKeyOpens,
		Adder:     keys.SSHKeyAdder,
		Enter: func(ctx context.Context, team cay.TeamID, id cay.SandboxID) error {
			return s.control.Enter(ctx, cay.ForTeam(team), id)
		},
		Keep: func(ctx context.Context, team cay.TeamID, id cay.SandboxID) error {
			return s.control.Keep(ctx, cay.ForTeam(team), id)
		},
		Used:     func(ctx context.Context, id cay.SandboxID) { s.control.Used(ctx, id, true) },
		MayStart: s.mayStartNow,
		Dial:     s.proxy.Dial,
		Token:    s.agentToken,

		Visited: func(who cay.Caller, id cay.SandboxID, ends bool) {
			action := audit.SSHOpened
			if ends {
				action = audit.SSHClosed
			}
			s.audit.Count(audit.Seen{Who: who, Action: action, Target: string(id)})
		},
		Refused: s.telemetry.SSHRefused,
		Log:     s.log,
	})
	if err == nil {
		s.later(func() error { s.ssh.Close(); return nil })
	}
	return err
}

// teamOf is the team of a sandbox that is not over.
func (s *Server) teamOf(ctx context.Context, id cay.SandboxID) (cay.TeamID, error) {
	team, err := s.control.Owner(id)
	if !s.member() || cay.KindOf(err) != cay.NotFound {
		return team, err
	}
	home, err := s.records.SandboxHome(ctx, id)
	if err == nil && (home.State == cay.Killed || home.State == cay.Creating) {
		err = ledger.NoSandbox(id)
	}
	return home.Team, err
}

// shellElsewhere leads to the SSH servers of other members; nil for a machine alone.
func (s *Server) shellElsewhere() func(context.Context, cay.TeamID, cay.SandboxID, []cay.Origins) (io.ReadWriteCloser, error) {
	if !s.member() {
		return nil
	}
	return s.cluster.front.Shell
}

// agentToken is what the agent of a sandbox that runs asks for.
func (s *Server) agentToken(id cay.SandboxID) string {
	i, _ := s.node.Lookup(id)
	return i.Spec.AccessToken
}
