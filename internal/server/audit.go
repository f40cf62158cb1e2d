package server

import (
	"context"
	"crypto/ed25519"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/keys/seal"
)

// openAudit makes the audit log, whose last rows are signed before the records
// are closed.
func (s *Server) openAudit() error {
	key, err := auditKey(s.cfg.Data)
	if err != nil {
		return err
	}
	s.audit = audit.New(audit.Config{
		Store: s.records, Key: key, Heads: s.cfg.AuditHeadsFile(), Keep: time.Duration(s.cfg.AuditDays) * 24 * time.Hour,
		Tell: func(ctx context.Context, h cay.AuditHead) error {
			return s.control.TellHead(ctx, cay.ForTeam(s.team.ID), h)
		},
		Signs: s.leads,
		Log:   s.log,
	})
	s.later(s.audit.Close)
	return nil
}

// auditKey is the key of the installation, which signs heads of the audit log.
func auditKey(data string) (ed25519.PrivateKey, error) {
	path := filepath.Join(data, "audit.key")
	seed, err := seal.Secret(path)
	if err != nil {
		return nil, err
	}
	if len(seed) != ed25519.SeedSize {
		return nil, cay.Errorf(cay.Internal, "the key of the audit log %s has %d bytes, not %d", path, len(seed), ed25519.SeedSize).
			WithHint("restore it from a backup; with another key, heads of before do not fit")
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
