// Package audit keeps the log of who did what: rows in one chain, which the
// store writes in the transaction of the action where there is one, and signed
// heads of the chain, which show when rows were cut off or all of them written
// anew. Operations that clients and guests can cause at will are counted.
package audit

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

const (
	// headEvery is how long a row may be without a signed head.
	headEvery  = time.Minute
	pruneEvery = time.Hour
	// keepHeads is how long each head is kept; later one of each hour is.
	keepHeads = 48 * time.Hour
	// closeWithin bounds what is still written when the server stops.
	closeWithin = 10 * time.Second
)

// Config is what a Log needs.
type Config struct {
	// Signs reports whether this server signs heads and drops old rows; nil always does.
	Signs func() bool
	Store store.Store
	Key   ed25519.PrivateKey
	// Heads is the file that signed heads are appended to; empty for none.
	Heads string
	// Keep is how long rows are kept at least; 0 for always.
	Keep time.Duration
	// Tell is told of each head; nil for nothing.
	Tell func(context.Context, cay.AuditHead) error
	Log  *slog.Logger
}

// Log is the audit log of an installation.
type Log struct {
	cfg   Config
	count counter

	mu      sync.Mutex     // held while a head is made
	signed  int64          // the row of the newest head; -1 while that is unknown
	waiting []cay.AuditRow // counted rows that could not be written yet
}

// New returns the log over the records. Run must follow, and Close.
func New(cfg Config) *Log {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Log{cfg: cfg, signed: -1}
}

// Key is the key that verifies heads.
func (l *Log) Key() ed25519.PublicKey {
	key, _ := l.cfg.Key.Public().(ed25519.PublicKey)
	return key
}

// Row returns a row of what a caller did, whose details are keys and values by
// turns; empty values are left out.
func Row(who cay.Caller, action, target string, outcome cay.Outcome, details ...string) cay.AuditRow {
	r := cay.AuditRow{
		At: time.Now(), Actor: who.Actor(), Team: who.Team, Action: action, Target: target, Outcome: outcome,
		Details: make(map[string]string, len(details)/2),
	}
	for i := 0; i+1 < len(details); i += 2 {
		if details[i+1] != "" {
			r.Details[details[i]] = details[i+1]
		}
	}
	r.Come(who.From)
	return r
}

// Record records an action that no event tells. A caller that has gone does not
// keep it from the log. A nil log records nothing.
func (l *Log) Record(ctx context.Context, who cay.Caller, action, target string, outcome cay.Outcome, details ...string) error {
	if l == nil {
		return nil
	}
	return l.cfg.Store.AddAudit(context.WithoutCancel(ctx), Row(who, action, target, outcome, details...))
}

// Query says which rows to list.
type Query = store.AuditQuery

// List lists rows of the caller's team, or of every team for one who asks for
// all and may.
func (l *Log) List(ctx context.Context, who cay.Caller, q Query, all bool) ([]cay.AuditRow, error) {
	needed := cay.ReadAudit
	if all {
		needed = cay.Admin
	} else {
		q.Team = who.Team
	}
	if err := who.May(needed); err != nil {
		return nil, err
	}
	return l.cfg.Store.Audit(ctx, q)
}

// Run writes what is counted, signs heads and drops old rows, until ctx ends.
func (l *Log) Run(ctx context.Context) {
	heads, prune := time.NewTicker(headEvery), time.NewTicker(pruneEvery)
	defer heads.Stop()
	defer prune.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-heads.C:
			err = l.Checkpoint(ctx)
		case <-prune.C:
			if l.cfg.Signs == nil || l.cfg.Signs() {
				err = l.prune(ctx, time.Now())
			}
		}
		if err != nil && ctx.Err() == nil {
			l.cfg.Log.Error("the audit log cannot be written", "err", err)
		}
	}
}

// Close writes what is counted and signs the last rows.
func (l *Log) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	return l.Checkpoint(ctx)
}

// Checkpoint writes what is counted, and signs the last row if none of the
// heads names it.
func (l *Log) Checkpoint(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.flush(ctx); err != nil {
		return err
	}
	if l.cfg.Signs != nil && !l.cfg.Signs() {
		l.signed = -1 // another server signs
		return nil
	}
	if l.signed < 0 {
		last, err := l.cfg.Store.LastAuditHead(ctx, time.Time{}, false)
		if err != nil && cay.KindOf(err) != cay.NotFound {
			return err
		}
		l.signed = last.Seq
	}
	seq, hash, err := l.cfg.Store.LastAudit(ctx)
	if err != nil || seq <= l.signed {
		return err
	}
	h := cay.AuditHead{Seq: seq, Hash: hash, At: time.Now().UTC().Truncate(time.Millisecond)}
	h.Sign(l.cfg.Key)
	if err := l.cfg.Store.AddAuditHead(ctx, h); err != nil {
		return err
	}
	l.signed = seq
	l.cfg.Log.Info("audit log signed", "rows", seq, "hash", hash, "signature", hex.EncodeToString(h.Signature))
	return errors.Join(l.append(h), l.tell(ctx, h))
}

// append writes a head into the file of heads. The records have it as well, and
// the rows before it are safe from power cuts.
func (l *Log) append(h cay.AuditHead) error {
	if l.cfg.Heads == "" {
		return nil
	}
	f, err := os.OpenFile(l.cfg.Heads, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err == nil {
		err = errors.Join(write(f, Line{Head: wireHead(h)}), f.Sync(), f.Close())
	}
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot append a head of the audit log to %s", l.cfg.Heads)
	}
	return nil
}

func (l *Log) tell(ctx context.Context, h cay.AuditHead) error {
	if l.cfg.Tell == nil {
		return nil
	}
	return l.cfg.Tell(ctx, h)
}

// prune drops the rows of whole days that are older than they must be kept, up
// to the last head of those days. The log itself says so.
func (l *Log) prune(ctx context.Context, now time.Time) error {
	if l.cfg.Keep > 0 {
		day := now.Add(-l.cfg.Keep).UTC().Truncate(24 * time.Hour)
		head, err := l.cfg.Store.LastAuditHead(ctx, day, false)
		if err == nil {
			err = l.drop(ctx, head)
		}
		if err != nil && cay.KindOf(err) != cay.NotFound {
			return err
		}
	}
	_, err := l.cfg.Store.PruneAudit(ctx, now.Add(-keepHeads))
	return err
}

func (l *Log) drop(ctx context.Context, head cay.AuditHead) error {
	dropped, err := l.cfg.Store.LastAuditHead(ctx, time.Time{}, true)
	if err != nil && cay.KindOf(err) != cay.NotFound || dropped.Seq >= head.Seq {
		return err
	}
	row := Row(cay.Caller{}, ActionDropped, "", cay.OutcomeOK, "through", strconv.FormatInt(head.Seq, 10), "hash", head.Hash.String())
	return l.cfg.Store.DropAudit(ctx, head.Seq, row)
}

// ActionDropped is the action of a row that says up to which other one rows
// were dropped, because they were kept long enough.
const ActionDropped = "audit.dropped"
