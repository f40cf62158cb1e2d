package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/cay-run/cay"
)

// maxLine bounds a line of an export: a row has two dozen short texts.
const maxLine = 1 << 20

// Verified is what a chain was found to be.
type Verified struct {
	Rows     int64  `json:"rows"`
	First    int64  `json:"first"`              // the first row that is there
	Last     int64  `json:"last"`               // the last one
	Heads    int    `json:"heads"`              // that fit, those to compare with included
	Signed   int64  `json:"signed"`             // the row of the newest of them
	Unproven int    `json:"unproven,omitempty"` // heads to compare with, of rows that were dropped
	Key      string `json:"key"`
	Broken   *Break `json:"broken,omitempty"` // nil for a chain that is whole
}

// Break is the first thing that is wrong with a chain.
type Break struct {
	Seq int64  `json:"seq"`
	Why string `json:"why"`
}

// Against is what a chain is compared with, from where its writer cannot
// change it: its key, and heads that it had. Both may be empty.
type Against struct {
	Key   string // hexadecimal
	Heads []cay.AuditHead
}

// ReadHeads reads a file of heads.
func ReadHeads(r io.Reader) ([]cay.AuditHead, error) {
	var out []cay.AuditHead
	err := lines(r, func(line Line) error {
		if line.Head != nil {
			out = append(out, line.Head.head())
		}
		return nil
	})
	return out, err
}

// lines reads each line. One that is cut off at the end is an error.
func lines(r io.Reader, visit func(Line) error) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	for n := 1; in.Scan(); n++ {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		dec := json.NewDecoder(bytes.NewReader(in.Bytes()))
		dec.DisallowUnknownFields()
		var line Line
		if err := dec.Decode(&line); err != nil {
			return cay.Wrap(cay.Invalid, err, "line %d is no line of an audit log", n)
		}
		if err := visit(line); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil {
		return cay.Wrap(cay.Invalid, err, "the audit log cannot be read")
	}
	return nil
}

// Verify reads an export and reports whether its chain is whole. An error means
// that it could not be read.
func Verify(r io.Reader, with Against) (Verified, error) {
	v := verifier{against: map[int64][]cay.AuditHead{}}
	for _, h := range with.Heads {
		v.against[h.Seq] = append(v.against[h.Seq], h)
	}
	v.out.Key = with.Key
	for _, h := range with.Heads {
		if v.out.Key == "" { // the first one was there before the others
			v.out.Key = hex.EncodeToString(h.Key)
		}
	}
	err := lines(r, v.line)
	if errors.Is(err, errBroken) {
		return v.out, nil
	}
	if err == nil && !v.ended {
		err = cay.Errorf(cay.Invalid, "the export was cut off: its last line is missing").WithHint("export it again")
	}
	if err != nil {
		return v.out, err
	}
	v.finish()
	return v.out, nil
}

// Verify signs the log's end, reads it and reports whether its chain is whole, by the
// heads that are beside it.
func (l *Log) Verify(ctx context.Context) (Verified, error) {
	if err := l.Checkpoint(ctx); err != nil {
		return Verified{}, err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(l.Export(ctx, w)) }()
	v, err := Verify(r, Against{})
	r.Close() // a chain that is broken is not read to its end
	return v, err
}

var errBroken = errors.New("the chain is broken")

// verifier goes along a chain.
type verifier struct {
	out      Verified
	last     cay.AuditRow // zero before the first
	begin    *cay.AuditHead
	dropped  int64 // up to which row the log says that rows were dropped
	restored cay.AuditRow
	against  map[int64][]cay.AuditHead
	ended    bool
}

func (v *verifier) broken(seq int64, format string, args ...any) error {
	if v.out.Broken == nil {
		v.out.Broken = &Break{seq, fmt.Sprintf(format, args...)}
	}
	return errBroken
}

func (v *verifier) line(line Line) error {
	switch {
	case line.Export != nil:
		return v.key(line.Export.Key)
	case line.Row != nil:
		return v.row(line.Row.row())
	case line.Head != nil:
		return v.head(line.Head.head())
	case line.End != nil:
		v.ended = true
	}
	return nil
}

// key holds the export to the key that is known already.
func (v *verifier) key(key string) error {
	if v.out.Key == "" {
		v.out.Key = key
	}
	if v.out.Key != key {
		return v.broken(0, "the log is signed with the key %s, not with %s", key, v.out.Key)
	}
	return nil
}

func (v *verifier) row(r cay.AuditRow) error {
	if v.out.Rows == 0 {
		v.out.First = r.Seq
		v.begins(&r)
	}
	switch {
	case r.Seq < v.last.Seq+1:
		return v.broken(r.Seq, "row %d comes after row %d", r.Seq, v.last.Seq)
	case r.Seq > v.last.Seq+1:
		return v.broken(v.last.Seq+1, "row %d is missing", v.last.Seq+1)
	case r.Prev != v.last.Hash:
		return v.broken(r.Seq, "row %d does not follow the one before it: rows were changed, put in or taken out", r.Seq)
	case r.Hash != r.Sum():
		return v.broken(r.Seq, "row %d was changed: its hash is not of what it says", r.Seq)
	}
	v.last = r
	v.out.Rows, v.out.Last = v.out.Rows+1, r.Seq
	switch r.Action {
	case ActionDropped:
		if through, err := strconv.ParseInt(r.Details["through"], 10, 64); err == nil {
			v.dropped = max(v.dropped, through)
		}
	case ActionRestored:
		v.restored = r
	}
	for _, h := range v.against[r.Seq] {
		if err := v.fits(h); err != nil {
			return err
		}
	}
	return nil
}

// begins has a chain whose first rows were dropped begin at the head of the
// last of them.
func (v *verifier) begins(r *cay.AuditRow) {
	if v.begin != nil && v.begin.Seq == r.Seq-1 {
		v.last.Seq, v.last.Hash = v.begin.Seq, v.begin.Hash
	}
}

func (v *verifier) head(h cay.AuditHead) error {
	switch {
	case !h.Genuine():
		return v.broken(h.Seq, "the head of row %d is not signed by its key", h.Seq)
	case hex.EncodeToString(h.Key) != v.out.Key:
		return v.broken(h.Seq, "the head of row %d is signed with another key", h.Seq)
	case v.out.Rows == 0:
		v.begin = &h
		return v.old(h)
	case h.Seq > v.last.Seq:
		v.against[h.Seq] = append(v.against[h.Seq], h) // its row should come
		return nil
	}
	return v.fits(h)
}

// old compares a head of rows that were dropped with those that are known.
func (v *verifier) old(h cay.AuditHead) error {
	for _, known := range v.against[h.Seq] {
		if known.Hash != h.Hash {
			return v.broken(h.Seq, "row %d is not the one that a head of %s names: the log was written anew", h.Seq, stamp(known))
		}
		v.out.Heads++
	}
	delete(v.against, h.Seq)
	return nil
}

// fits compares a head with the row that was read last.
func (v *verifier) fits(h cay.AuditHead) error {
	switch {
	case !h.Genuine():
		return v.broken(h.Seq, "the head of row %d is not signed by its key", h.Seq)
	case hex.EncodeToString(h.Key) != v.out.Key:
		return v.broken(h.Seq, "the head of row %d is signed with another key", h.Seq)
	case h.Seq != v.last.Seq:
		return nil
	case h.Hash != v.last.Hash:
		return v.broken(h.Seq, "row %d is not the one that a head of %s names: the log was written anew%s", h.Seq, stamp(h), v.why())
	}
	v.out.Heads++
	v.out.Signed = max(v.out.Signed, h.Seq)
	return nil
}

func stamp(h cay.AuditHead) string { return h.At.UTC().Format(cay.AuditTime) }

// why names the restore that may explain a break.
func (v *verifier) why() string {
	if v.restored.Seq == 0 {
		return ""
	}
	return fmt.Sprintf("; row %d says that a backup was restored at %s, and what was recorded after the backup is gone",
		v.restored.Seq, v.restored.At.UTC().Format(cay.AuditTime))
}

// finish looks for what only shows at the end.
func (v *verifier) finish() {
	if v.out.First > 1 && v.dropped < v.out.First-1 {
		_ = v.broken(v.out.First, "rows before row %d are missing, and the log does not say that they were dropped", v.out.First)
		return
	}
	var late *cay.AuditHead // the first of a row that is not there
	for seq, heads := range v.against {
		if seq > v.last.Seq && (late == nil || seq < late.Seq) {
			late = &heads[0]
		}
		if v.out.First > 0 && seq < v.out.First {
			v.out.Unproven += len(heads)
		}
	}
	if late != nil {
		_ = v.broken(v.last.Seq+1, "row %d is missing: the log ends before row %d, which a head of %s names; the end was cut off%s",
			v.last.Seq+1, late.Seq, stamp(*late), v.why())
	}
}

// ActionRestored is the action of the row that a restored backup goes on with.
const ActionRestored = "backup.restored"
