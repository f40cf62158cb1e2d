package operator

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/trail"
)

func (d *Desk) auditRoutes(routes *http.ServeMux) {
	routes.HandleFunc("POST /audit/export", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		err := d.cfg.Audit.Checkpoint(r.Context())
		if err == nil {
			err = d.cfg.Audit.Export(r.Context(), w)
		}
		if err != nil {
			// The export has no last line; the log says why.
			d.cfg.Log.ErrorContext(r.Context(), "an export of the audit log failed", "err", err)
		}
	})
	routes.HandleFunc("GET /audit/key", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, auditKey{hex.EncodeToString(d.cfg.Audit.Key())})
	})
}

type auditKey struct {
	Key string `json:"key"`
}

// record records what the operator asked for and what came of it, which it
// returns.
func (d *Desk) record(ctx context.Context, action, target string, err error) error {
	outcome, kind := cay.OutcomeOK, ""
	if err != nil {
		outcome, kind = cay.OutcomeFailed, string(cay.KindOf(err))
	}
	who := cay.Caller{Name: "operator", From: trail.OriginOf(ctx)}
	if e := d.cfg.Audit.Record(ctx, who, action, target, outcome, "error", kind); e != nil {
		d.cfg.Log.ErrorContext(ctx, "what the operator did could not be recorded", "action", action, "err", e)
	}
	return err
}

// AuditKey is the key that verifies heads of the server's audit log,
// hexadecimal.
func (c Client) AuditKey(ctx context.Context) (string, error) {
	var out auditKey
	err := c.ask(ctx, http.MethodGet, "/audit/key", &out)
	return out.Key, err
}

// Audit has the server export its audit log, and read has it while it comes.
func (c Client) Audit(ctx context.Context, read func(io.Reader) error) error {
	return c.stream(ctx, http.MethodPost, "/audit/export", read)
}
