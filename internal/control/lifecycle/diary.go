package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
)

const (
	// A sandbox is asked what it did when it used diaryBusy of CPU time
	// between two samples, or diaryWork since it was asked. An idle one uses
	// some 25 ms between two: its agent and its engine look around.
	diaryBusy = 100 * time.Millisecond
	diaryWork = 500 * time.Millisecond
	// diaryWithin bounds what one answer may take, diaryLast the one that a
	// pause or an end waits for.
	diaryWithin = time.Second
	diaryLast   = 250 * time.Millisecond
	// diaryPages is how many pages are read at once; the rest comes later.
	diaryPages = 8
	// diaryReaders bounds how many sandboxes are asked at the same time.
	diaryReaders = 8
	// diaryRest is how long one is left alone that did not answer, for each
	// time in a row.
	diaryRest    = 10 * time.Second
	maxDiaryRest = 5 * time.Minute
	// diaryFresh is how old the known lines may be when a client asks.
	diaryFresh = time.Second
)

// diary is how far a sandbox's diary is read.
type diary struct {
	mu       sync.Mutex
	instance cay.InstanceID
	none     bool   // its agent keeps none
	loaded   bool   // epoch and seq are those of the logbook or later
	epoch    string // of the newest entry
	seq      int64
	used     time.Duration // CPU time of the instance when it was last asked
	sampled  time.Duration // and when it was last sampled
	at       time.Time
	failures int
}

// due reports whether a sandbox did enough since it was asked last.
func (d *diary) due(id cay.InstanceID, u cay.Usage) bool {
	if !d.mu.TryLock() {
		return false // it is being asked
	}
	defer d.mu.Unlock()
	if d.instance != id {
		return true
	}
	busy := u.CPUTime-d.sampled >= diaryBusy || u.CPUTime-d.used >= diaryWork
	d.sampled = u.CPUTime
	rest := min(time.Duration(d.failures)*diaryRest, maxDiaryRest)
	if d.none || !busy || time.Since(d.at) < rest {
		return false
	}
	d.used = u.CPUTime
	return true
}

// watchDiary reads a sandbox's diary in the background, if that is due and not
// too many are being read.
func (c *Controller) watchDiary(ctx context.Context, e *entry, u cay.Usage) {
	select {
	case c.readers <- struct{}{}:
	default:
		return
	}
	if !e.diary.due(e.sandbox().Instance, u) {
		<-c.readers
		return
	}
	c.reading.Go(func() {
		defer func() { <-c.readers }()
		c.readDiary(ctx, e, diaryWithin)
	})
}

// readDiary brings a sandbox's log up to date, as far as its agent answers in
// time.
func (c *Controller) readDiary(ctx context.Context, e *entry, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	d := &e.diary
	d.mu.Lock()
	defer d.mu.Unlock()
	s := e.sandbox()
	if s.Instance == "" {
		return
	}
	if d.instance != s.Instance {
		d.instance, d.none, d.failures, d.used, d.sampled = s.Instance, false, 0, 0, 0
	}
	if d.none {
		return
	}
	err := c.readPages(ctx, d, s)
	d.at = time.Now()
	switch {
	case errors.Is(err, toagent.ErrNoDiary):
		d.none = true
	case err != nil:
		d.failures++
		c.log.DebugContext(ctx, "a diary could not be read", "sandbox", s.ID, "err", err)
	default:
		d.failures = 0
	}
}

func (c *Controller) readPages(ctx context.Context, d *diary, s cay.Sandbox) error {
	if !d.loaded {
		lines, err := c.logs.Read(s.ID)
		if err != nil {
			return err
		}
		for _, l := range slices.Backward(lines) {
			if l.Epoch != "" {
				d.epoch, d.seq = l.Epoch, l.Seq
				break
			}
		}
		d.loaded = true
	}
	for range diaryPages {
		page, err := c.node.Diary(ctx, s.Instance, d.seq)
		if err != nil {
			return err
		}
		if epoch := cay.Fit(page.Epoch, ledger.MaxKey); epoch != d.epoch {
			known := d.epoch
			d.epoch, d.seq = epoch, 0
			if known != "" {
				continue // the page may begin in the middle
			}
		}
		if err := c.keep(ctx, d, s, page.Entries); err != nil {
			return err
		}
		if !page.More {
			return nil
		}
	}
	return nil
}

// keep writes entries into the sandbox's log, and records those that are
// events. They are the guest's words: nothing of them is believed but that it
// said them.
func (c *Controller) keep(ctx context.Context, d *diary, s cay.Sandbox, entries []guest.DiaryEntry) error {
	var lines []logbook.Line
	for _, e := range entries {
		if e.Seq <= d.seq {
			continue
		}
		l := lineOf(e, d.epoch)
		if lost := e.Seq - d.seq - 1; lost > 0 {
			lines = append(lines, logbook.Line{
				At: l.At, Level: "warn", Logger: "cay", Message: strconv.FormatInt(lost, 10) + " lines were lost",
			})
		}
		d.seq = e.Seq
		lines = append(lines, l)
		c.countProcess(s, l)
		if e.Event == string(cay.ProcessKilled) {
			err := c.Report(ctx, s.ID, cay.ProcessKilled, cay.ReasonMemory,
				"pid", e.Fields["pid"], "name", e.Fields["name"], "memoryMB", e.Fields["memoryMB"], "detail", e.Message)
			if err != nil && cay.KindOf(err) != cay.NotFound { // it is over
				return err
			}
		}
	}
	return c.logs.Append(s.ID, lines...)
}

// countProcess has the audit log count a process that started or ended inside.
func (c *Controller) countProcess(s cay.Sandbox, l logbook.Line) {
	x := audit.Seen{Who: cay.ForTeam(s.Team), Sandbox: s.ID, Target: l.Fields["command"]}
	switch l.Message {
	case "process started":
		x.Action = audit.ProcessStarted
	case "process ended":
		x.Action, x.Details = audit.ProcessEnded, []string{"status", l.Fields["status"], "cause", l.Fields["cause"]}
	}
	if l.Logger == "process" && x.Action != "" {
		c.audit.Count(x)
	}
}

// lineOf makes a guest's entry fit to be kept.
func lineOf(e guest.DiaryEntry, epoch string) logbook.Line {
	out := logbook.Line{
		At: e.At.UTC().Truncate(time.Millisecond), Level: e.Level, Logger: cay.Fit(e.Logger, ledger.MaxKey), Message: cay.Fit(e.Message, ledger.MaxValue),
		Epoch: epoch, Seq: e.Seq,
	}
	if at := ledger.Now(); out.At.After(at) || at.Sub(out.At) > ledger.KeepKilled {
		out.At = at
	}
	if !slices.Contains(levels, out.Level) {
		out.Level = "info"
	}
	if out.Message == "" {
		out.Message = "?"
	}
	for k, v := range e.Fields {
		if out.Fields == nil {
			out.Fields = make(map[string]string)
		}
		if len(out.Fields) == ledger.MaxData {
			break
		}
		out.Fields[cay.Fit(k, ledger.MaxKey)] = cay.Fit(v, ledger.MaxValue)
	}
	return out
}
