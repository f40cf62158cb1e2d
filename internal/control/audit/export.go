package audit

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// Line is a line of an export, and of a file of heads: one of its fields is
// there. An export begins with Export and ends with End; a head follows the row
// that it is of.
type Line struct {
	Export *Begin `json:"export,omitempty"`
	Row    *Wire  `json:"row,omitempty"`
	Head   *Head  `json:"head,omitempty"`
	End    *End   `json:"end,omitempty"`
}

// Begin is the first line of an export.
type Begin struct {
	Version int    `json:"version"`
	Key     string `json:"key"` // that verifies heads, hexadecimal
	At      string `json:"at"`
}

// End is the last line of an export.
type End struct {
	Rows int64 `json:"rows"`
	Last int64 `json:"last"` // the number of the last row
}

// Wire is a row in JSON.
type Wire struct {
	Seq     int64             `json:"seq"`
	At      string            `json:"at"`
	Actor   WireActor         `json:"actor"`
	Team    string            `json:"teamID"`
	Action  string            `json:"action"`
	Target  string            `json:"target"`
	Outcome string            `json:"outcome"`
	Request string            `json:"requestID"`
	Address string            `json:"address"`
	Agent   string            `json:"userAgent"`
	Details map[string]string `json:"details"`
	Prev    string            `json:"prev"`
	Hash    string            `json:"hash"`
}

// WireActor is an actor in JSON.
type WireActor struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Head is a signed head in JSON.
type Head struct {
	Seq       int64  `json:"seq"`
	Hash      string `json:"hash"`
	At        string `json:"at"`
	Key       string `json:"key"`
	Signature string `json:"signature"`
}

// WireRow returns a row for JSON.
func WireRow(r cay.AuditRow) Wire {
	if r.Details == nil {
		r.Details = map[string]string{}
	}
	return Wire{
		Seq: r.Seq, At: r.At.UTC().Format(cay.AuditTime), Actor: WireActor{string(r.Actor.Kind), r.Actor.ID, r.Actor.Name},
		Team: string(r.Team), Action: r.Action, Target: r.Target, Outcome: string(r.Outcome),
		Request: r.Request, Address: r.Address, Agent: r.Agent, Details: r.Details, Prev: r.Prev.String(), Hash: r.Hash.String(),
	}
}

// row is the row that JSON has. A text that is no hash or no time is zero, which
// no hash is of.
func (w Wire) row() cay.AuditRow {
	r := cay.AuditRow{
		Seq: w.Seq, Actor: cay.Actor{Kind: cay.ActorKind(w.Actor.Kind), ID: w.Actor.ID, Name: w.Actor.Name},
		Team: cay.TeamID(w.Team), Action: w.Action, Target: w.Target, Outcome: cay.Outcome(w.Outcome),
		Request: w.Request, Address: w.Address, Agent: w.Agent, Details: w.Details,
	}
	r.At, _ = time.Parse(cay.AuditTime, w.At)
	r.Prev, _ = cay.ParseHash(w.Prev)
	r.Hash, _ = cay.ParseHash(w.Hash)
	return r
}

func wireHead(h cay.AuditHead) *Head {
	return &Head{
		Seq: h.Seq, Hash: h.Hash.String(), At: h.At.UTC().Format(cay.AuditTime),
		Key: hex.EncodeToString(h.Key), Signature: hex.EncodeToString(h.Signature),
	}
}

func (h Head) head() cay.AuditHead {
	out := cay.AuditHead{Seq: h.Seq}
	out.At, _ = time.Parse(cay.AuditTime, h.At)
	out.Hash, _ = cay.ParseHash(h.Hash)
	out.Key, _ = hex.DecodeString(h.Key)
	out.Signature, _ = hex.DecodeString(h.Signature)
	return out
}

func write(w io.Writer, line Line) error { return json.NewEncoder(w).Encode(line) }

// exportPage is how many rows are read at once.
const exportPage = 1000

// Export writes all rows that are kept, with the heads of the chain, as lines
// of JSON.
func (l *Log) Export(ctx context.Context, w io.Writer) error {
	out := json.NewEncoder(w)
	begin := Begin{Version: 1, Key: hex.EncodeToString(l.Key()), At: time.Now().UTC().Format(cay.AuditTime)}
	if err := out.Encode(Line{Export: &begin}); err != nil {
		return err
	}
	dropped, err := l.cfg.Store.LastAuditHead(ctx, time.Time{}, true)
	if err != nil && cay.KindOf(err) != cay.NotFound {
		return err
	}
	newest, err := l.cfg.Store.LastAuditHead(ctx, time.Time{}, false)
	if err != nil && cay.KindOf(err) != cay.NotFound {
		return err
	}
	// Rows up to that head are read after it: one that is not there is missing.
	heads := headReader{log: l, last: newest.Seq}
	end := End{Last: dropped.Seq}
	for {
		rows, err := l.cfg.Store.Audit(ctx, store.AuditQuery{After: end.Last, Limit: exportPage})
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			break
		}
		for _, r := range rows {
			if err := heads.until(ctx, r.Seq-1, out); err != nil {
				return err
			}
			wire := WireRow(r)
			if err := out.Encode(Line{Row: &wire}); err != nil {
				return err
			}
			end.Last, end.Rows = r.Seq, end.Rows+1
		}
	}
	// A head of rows that are gone is told as well.
	if err := heads.until(ctx, newest.Seq, out); err != nil {
		return err
	}
	return out.Encode(Line{End: &end})
}

// headReader writes heads in their order between rows.
type headReader struct {
	log  *Log
	last int64 // none is told after it
	next int64
	page []cay.AuditHead
	over bool
}

// until writes the heads of rows up to one.
func (h *headReader) until(ctx context.Context, seq int64, out *json.Encoder) error {
	for {
		if len(h.page) == 0 && !h.over {
			page, err := h.log.cfg.Store.AuditHeads(ctx, h.next, exportPage)
			if err != nil {
				return err
			}
			h.page, h.over = page, len(page) < exportPage
		}
		if len(h.page) == 0 || h.page[0].Seq > min(seq, h.last) {
			return nil
		}
		if err := out.Encode(Line{Head: wireHead(h.page[0])}); err != nil {
			return err
		}
		h.next, h.page = h.page[0].Seq+1, h.page[1:]
	}
}
