package audit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

var testKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))

func open(t *testing.T) (*Log, store.Store) {
	t.Helper()
	s := storetest.Open(t, filepath.Join(t.TempDir(), "cay.db"))
	return New(Config{Store: s, Key: testKey, Heads: filepath.Join(t.TempDir(), "heads.jsonl"), Keep: 400 * 24 * time.Hour}), s
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func someone() cay.Caller {
	return cay.Caller{Team: "t", Key: "k1", Name: "ci", From: &cay.Origin{Request: "r1", Address: "192.0.2.1", Agent: "a:1,\"ü\n"}}
}

// fill records n rows and signs a head after each third.
func fill(t *testing.T, l *Log, n int) {
	t.Helper()
	for i := range n {
		noError(t, l.Record(t.Context(), someone(), "secret.created", fmt.Sprintf("s%d", i), cay.OutcomeOK, "name", "ä:1", "bytes", "12"))
		if i%3 == 2 {
			noError(t, l.Checkpoint(t.Context()))
		}
	}
}

func export(t *testing.T, l *Log) []Line {
	t.Helper()
	var b bytes.Buffer
	noError(t, l.Export(t.Context(), &b))
	var out []Line
	noError(t, lines(&b, func(line Line) error { out = append(out, line); return nil }))
	return out
}

func verify(t *testing.T, all []Line, with Against) Verified {
	t.Helper()
	var b bytes.Buffer
	for _, line := range all {
		noError(t, write(&b, line))
	}
	v, err := Verify(&b, with)
	noError(t, err)
	return v
}

func heads(t *testing.T, l *Log) []cay.AuditHead {
	t.Helper()
	f, err := os.Open(l.cfg.Heads)
	noError(t, err)
	defer f.Close()
	out, err := ReadHeads(f)
	noError(t, err)
	return out
}

// rows and only: the rows of an export, or those of them that are left.
func rowAt(all []Line, seq int64) int {
	return slices.IndexFunc(all, func(l Line) bool { return l.Row != nil && l.Row.Seq == seq })
}

// chained gives rows the hashes that fit them, as one who rewrites a log would.
func chained(all []Line) []Line {
	var prev cay.Hash
	var out []Line
	seq := int64(0)
	for _, line := range all {
		if line.Row != nil {
			r := line.Row.row()
			seq++
			r.Seq, r.Prev = seq, prev
			r.Hash = r.Sum()
			prev = r.Hash
			w := WireRow(r)
			line = Line{Row: &w}
		}
		out = append(out, line)
	}
	return out
}

func without(all []Line, drop func(Line) bool) []Line {
	return slices.DeleteFunc(slices.Clone(all), drop)
}

// edited has one row say something else.
func edited(all []Line, seq int64, edit func(*Wire)) []Line {
	out := slices.Clone(all)
	i := rowAt(out, seq)
	w := *out[i].Row
	edit(&w)
	out[i] = Line{Row: &w}
	return out
}

func isHead(l Line) bool { return l.Head != nil }

func TestTampering(t *testing.T) {
	l, _ := open(t)
	fill(t, l, 10)
	noError(t, l.Checkpoint(t.Context()))
	all, kept := export(t, l), Against{Heads: heads(t, l)}
	if v := verify(t, all, kept); v.Broken != nil || v.Rows != 10 || v.Signed != 10 || v.Heads != 8 {
		t.Fatalf("a whole log: %+v", v)
	}
	another := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{8}, ed25519.SeedSize))
	resign := func(all []Line) []Line {
		out := without(all, isHead)
		out[0] = Line{Export: &Begin{Version: 1, Key: fmt.Sprintf("%x", another.Public())}}
		h := cay.AuditHead{Seq: 10, Hash: out[rowAt(out, 10)].Row.row().Hash, At: time.Now()}
		h.Sign(another)
		return slices.Insert(out, len(out)-1, Line{Head: wireHead(h)})
	}
	for _, tt := range []struct {
		name    string
		log     []Line
		against Against
		row     int64
		why     string
	}{
		{"a changed target", edited(all, 5, func(w *Wire) { w.Target = "x" }), Against{}, 5, "was changed"},
		{"a changed time", edited(all, 5, func(w *Wire) { w.At = "2026-01-01T00:00:00.000Z" }), Against{}, 5, "was changed"},
		{"a changed actor", edited(all, 1, func(w *Wire) { w.Actor.ID = "k2" }), Against{}, 1, "was changed"},
		{"a changed detail", edited(all, 10, func(w *Wire) { w.Details = map[string]string{"name": "ä:1"} }), Against{}, 10, "was changed"},
		{"a text moved to the next field", edited(all, 5, func(w *Wire) { w.Action, w.Target = "secret.createds", "4" }), Against{}, 5, "was changed"},
		{"a changed row with its hash", edited(all, 5, func(w *Wire) {
			r := w.row()
			r.Target = "x"
			r.Hash = r.Sum()
			*w = WireRow(r)
		}), Against{}, 6, "does not follow"},
		{"a removed row", without(all, func(l Line) bool { return l.Row != nil && l.Row.Seq == 5 }), Against{}, 5, "missing"},
		{"a row put in", slices.Insert(slices.Clone(all), rowAt(all, 5), all[rowAt(all, 4)]), Against{}, 4, "comes after"},
		{"two rows exchanged", func() []Line {
			out := slices.Clone(all)
			a, b := rowAt(out, 4), rowAt(out, 5)
			out[a], out[b] = out[b], out[a]
			return out
		}(), Against{}, 4, "missing"},
		{"the first rows removed", without(all, func(l Line) bool { return l.Row != nil && l.Row.Seq < 4 }), Against{}, 4, "not say that they were dropped"},
		{"the end cut off, its heads left", without(all, func(l Line) bool { return l.Row != nil && l.Row.Seq > 8 }), Against{}, 9, "cut off"},
		{"the end cut off with its heads", without(all, func(l Line) bool {
			return l.Row != nil && l.Row.Seq > 8 || l.Head != nil && l.Head.Seq > 8
		}), kept, 9, "cut off"},
		{"all rows removed", without(all, func(l Line) bool { return l.Row != nil || l.Head != nil }), kept, 1, "cut off"},
		{"a row removed and all numbered anew", chained(without(all, func(l Line) bool { return l.Row != nil && l.Row.Seq == 2 })), Against{}, 3, "written anew"},
		{"the same without heads", chained(without(all, func(l Line) bool { return l.Row != nil && l.Row.Seq == 2 || l.Head != nil })), kept, 3, "written anew"},
		{"written anew from the start with another key", resign(chained(edited(all, 1, func(w *Wire) { w.Target = "x" }))), kept, 0, "signed with the key"},
		{"the same against a key", resign(all), Against{Key: fmt.Sprintf("%x", l.Key())}, 0, "signed with the key"},
		{"a head with another signature", func() []Line {
			out := slices.Clone(all)
			i := slices.IndexFunc(out, isHead)
			h := *out[i].Head
			h.At = "2026-01-01T00:00:00.000Z"
			out[i] = Line{Head: &h}
			return out
		}(), Against{}, 3, "not signed by its key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := verify(t, tt.log, tt.against)
			if v.Broken == nil || v.Broken.Seq != tt.row || !strings.Contains(v.Broken.Why, tt.why) {
				t.Errorf("found %+v, %+v", v, v.Broken)
			}
		})
	}
	var b bytes.Buffer
	for _, line := range all[:len(all)-1] {
		noError(t, write(&b, line))
	}
	if _, err := Verify(&b, Against{}); cay.KindOf(err) != cay.Invalid {
		t.Errorf("an export without its end: %v", err)
	}
	for _, bad := range []string{"{", "{\"row\":{\"seq\":1,\"more\":2}}", strings.Repeat("x", maxLine+1)} {
		if _, err := Verify(strings.NewReader(bad), Against{}); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

// python is in docs/operate/audit.md as well.
func python(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/operate/audit.md")
	noError(t, err)
	_, rest, _ := strings.Cut(string(page), "```python\n")
	code, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the page has no program")
	}
	return code
}

// The program of the page verifies a chain by the page's words alone.
func TestPython(t *testing.T) {
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is missing, which runs the page's program")
	}
	l, _ := open(t)
	fill(t, l, 10)
	run := func(all []Line) (string, error) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		f, err := os.Create(path)
		noError(t, err)
		for _, line := range all {
			noError(t, write(f, line))
		}
		noError(t, f.Close())
		out, err := exec.CommandContext(t.Context(), interpreter, "-c", python(t), path).CombinedOutput()
		return string(out), err
	}
	all := export(t, l)
	if out, err := run(all); err != nil || !strings.Contains(out, "10 rows") {
		t.Errorf("a whole log: %v %s", err, out)
	}
	if out, err := run(edited(all, 4, func(w *Wire) { w.Details["name"] = "x" })); err == nil || !strings.Contains(out, "row 4") {
		t.Errorf("a changed row: %v %s", err, out)
	}
}

// Rows of several writers are one chain, in the order of their commits.
func TestWriters(t *testing.T) {
	l, s := open(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 20 {
				err := s.Tx(t.Context(), func(tx store.Store) error {
					if err := tx.AddAudit(t.Context(), Row(someone(), "a", fmt.Sprint(i, j), cay.OutcomeOK)); err != nil {
						return err
					}
					if j%4 == 3 {
						return cay.Errorf(cay.Conflict, "undone")
					}
					return nil
				})
				if (err != nil) != (j%4 == 3) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if v := verify(t, export(t, l), Against{}); v.Broken != nil || v.Rows != 8*15 {
		t.Errorf("%+v %+v", v, v.Broken)
	}
}

// A guest that does things without end has a bounded number of rows, and their
// number is known.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := open(t)
		const minutes, each = 10, 5000
		for range minutes {
			for i := range each {
				l.Count(Seen{Who: cay.ForTeam("t"), Sandbox: "i1", Action: "process.started", Target: fmt.Sprint("rm ", i)})
			}
			l.Count(Seen{Who: cay.ForTeam("t"), Sandbox: "i2", Action: "process.started", Target: "ls"})
			l.Count(Seen{Who: cay.ForTeam("t"), Sandbox: "i2", Action: "process.started", Target: "ls"})
			time.Sleep(time.Minute)
			noError(t, l.Checkpoint(t.Context()))
		}
		rows, err := s.Audit(t.Context(), store.AuditQuery{Actor: "i1"})
		noError(t, err)
		if most := seenBurst + minutes*(seenEach+1); len(rows) > most {
			t.Errorf("a flood has %d rows, more than %d", len(rows), most)
		}
		sum := 0
		for _, r := range rows {
			n := 1
			if more := r.Details["more"]; more != "" {
				_, err := fmt.Sscan(more, &n)
				noError(t, err)
			}
			sum += n
		}
		if sum != minutes*each {
			t.Errorf("%d are counted of %d", sum, minutes*each)
		}
		rows, err = s.Audit(t.Context(), store.AuditQuery{Actor: "i2"})
		noError(t, err)
		if len(rows) != minutes || rows[0].Details["times"] != "2" || rows[0].Actor != (cay.Actor{Kind: cay.ActorSandbox, ID: "i2"}) {
			t.Errorf("the other sandbox has %d rows: %+v", len(rows), rows[0])
		}
	})
}

// Old days are dropped, and what is left verifies, also against heads of what
// is gone.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := open(t)
		l.cfg.Keep = 3 * 24 * time.Hour
		for range 8 {
			fill(t, l, 4)
			noError(t, l.Checkpoint(t.Context()))
			time.Sleep(24 * time.Hour)
			noError(t, l.prune(t.Context(), time.Now()))
		}
		all, kept := export(t, l), Against{Heads: heads(t, l)}
		v := verify(t, all, kept)
		if v.Broken != nil || v.First < 12 || v.Unproven == 0 || v.Rows > 20 {
			t.Errorf("%+v %+v", v, v.Broken)
		}
		n, err := s.Audit(t.Context(), store.AuditQuery{})
		noError(t, err)
		if int64(len(n)) != v.Rows {
			t.Errorf("%d rows are left, %d of them exported", len(n), v.Rows)
		}
		forged := without(all, func(l Line) bool { return l.Row != nil && l.Row.Action == ActionDropped })
		if v := verify(t, forged, kept); v.Broken == nil {
			t.Error("rows that say what was dropped can be removed")
		}
	})
}

// A log that goes on from an older backup does not fit newer heads, and says
// why.
func TestRestored(t *testing.T) {
	l, s := open(t)
	fill(t, l, 4)
	newer, err := s.Audit(t.Context(), store.AuditQuery{})
	noError(t, err)
	h := cay.AuditHead{Seq: 6, Hash: newer[0].Hash, At: time.Now()}
	h.Sign(testKey)
	noError(t, l.cfg.Store.AddAudit(t.Context(), Row(cay.Caller{}, ActionRestored, "b.tar", cay.OutcomeOK)))
	for _, more := range []int{0, 1} {
		fill(t, l, more)
		v := verify(t, export(t, l), Against{Heads: []cay.AuditHead{h}})
		if v.Broken == nil || v.Broken.Seq != 6 || !strings.Contains(v.Broken.Why, "row 5 says that a backup was restored") {
			t.Errorf("%+v", v.Broken)
		}
	}
}

// Counts that cannot be written wait.
func TestFlushAgain(t *testing.T) {
	l, s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Count(Seen{Who: someone(), Action: "a"})
	if err := l.Checkpoint(ctx); err == nil {
		t.Fatal("written with a context that is over")
	}
	noError(t, l.Checkpoint(t.Context()))
	rows, err := s.Audit(t.Context(), store.AuditQuery{})
	noError(t, err)
	if len(rows) != 1 {
		t.Errorf("%d rows", len(rows))
	}
}

// A process that is killed at any moment leaves a chain that verifies.
func TestKilled(t *testing.T) {
	if path := os.Getenv("AUDIT_TEST_DATABASE"); path != "" {
		writeForEver(t, path)
	}
	path := filepath.Join(t.TempDir(), "cay.db")
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "AUDIT_TEST_DATABASE="+path)
		out, err := cmd.StdoutPipe()
		noError(t, err)
		noError(t, cmd.Start())
		var b [64]byte
		for range 20 { // a dot for each row
			if _, err := out.Read(b[:]); err != nil {
				t.Fatal(err)
			}
		}
		noError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		s := storetest.Open(t, path)
		l := New(Config{Store: s, Key: testKey, Heads: path + ".heads"})
		v := verify(t, export(t, l), Against{Heads: heads(t, l)})
		if v.Broken != nil || v.Rows < 20 {
			t.Errorf("%+v %+v", v, v.Broken)
		}
		noError(t, s.Close())
	}
}

func writeForEver(t *testing.T, path string) {
	s := storetest.Open(t, path)
	l := New(Config{Store: s, Key: testKey, Heads: path + ".heads"})
	for i := 0; ; i++ {
		noError(t, l.Record(t.Context(), someone(), "a", fmt.Sprint(i), cay.OutcomeOK))
		if i%5 == 0 {
			noError(t, l.Checkpoint(t.Context()))
		}
		fmt.Print(".")
	}
}

func TestList(t *testing.T) {
	l, s := open(t)
	fill(t, l, 3)
	noError(t, s.AddAudit(t.Context(), Row(cay.Caller{Team: "other", Key: "k2"}, "a", "x", cay.OutcomeOK)))
	rows, err := l.List(t.Context(), cay.Caller{Team: "t", Scopes: cay.ReadAudit}, store.AuditQuery{Team: "other"}, false)
	noError(t, err)
	if len(rows) != 3 {
		t.Errorf("a team sees %d rows", len(rows))
	}
	rows, err = l.List(t.Context(), cay.Caller{Scopes: cay.AllScopes}, store.AuditQuery{}, true)
	noError(t, err)
	if len(rows) != 4 {
		t.Errorf("an admin sees %d rows", len(rows))
	}
	for _, all := range []bool{false, true} {
		_, err := l.List(t.Context(), cay.Caller{Team: "t", Scopes: cay.TeamScopes &^ cay.ReadAudit}, store.AuditQuery{}, all)
		if cay.KindOf(err) != cay.Denied {
			t.Errorf("without the scope: %v", err)
		}
	}
	if text, err := json.Marshal(WireRow(rows[0])); err != nil || !strings.Contains(string(text), `"details":{"bytes"`) {
		t.Errorf("%s %v", text, err)
	}
}
