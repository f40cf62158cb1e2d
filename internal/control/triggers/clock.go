package triggers

import (
	"context"
	"encoding/json"
	"strings"
	"time"
	_ "time/tzdata" // a server may have no database of time zones

	"github.com/robfig/cron/v3"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// fields are what a time of a schedule has: minute, hour, day of the month, month,
// day of the week.
var fields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// nextAfter tells when a schedule is due after a time.
func nextAfter(x cay.Trigger, after time.Time) (time.Time, error) {
	if strings.ContainsAny(x.Cron, "@=") || len(x.Cron) > nameMost { // the library's own words, for other zones among them
		return time.Time{}, cronError(x.Cron)
	}
	times, err := fields.Parse(x.Cron)
	if err != nil {
		return time.Time{}, cronError(x.Cron)
	}
	zone, err := time.LoadLocation(x.Zone)
	if err != nil || x.Zone == "Local" {
		return time.Time{}, cay.Errorf(cay.Invalid, "zone: %.80q is no name of the time zone database", x.Zone).WithHint("use a name such as Europe/Berlin; without one it is UTC")
	}
	next := times.Next(after.In(zone))
	if next.IsZero() {
		return next, cay.Errorf(cay.Invalid, "cron: %.200q is never", x.Cron)
	}
	return next.UTC(), nil
}

func cronError(text string) error {
	return cay.Errorf(cay.Invalid, "cron: %.200q is no time", text).
		WithHint("five fields: minute, hour, day of the month, month, day of the week, such as 30 6 * * mon-fri")
}

// schedule sets when a schedule is due next.
func schedule(x *cay.Trigger, now time.Time) error {
	x.Next = time.Time{}
	if x.Kind != cay.ScheduleTrigger {
		return nil
	}
	next, err := nextAfter(*x, now)
	if err == nil && x.Enabled {
		x.Next = next
	}
	return err
}

// queueDue records the runs of schedules whose time has come. Of the times that
// passed while no server ran, one is made up for.
func (t *Triggers) queueDue(ctx context.Context) error {
	now := ledger.Now()
	for {
		due, err := t.store.DueTriggers(ctx, now, dueAtOnce)
		if err != nil {
			return err
		}
		for _, x := range due {
			if err := t.queueAt(ctx, x, now); err != nil && cay.KindOf(err) != cay.Conflict { // a client has changed it meanwhile
				return err
			}
		}
		if len(due) < dueAtOnce {
			return nil
		}
	}
}

// queueAt records the run of a schedule and moves its time, together.
func (t *Triggers) queueAt(ctx context.Context, x cay.Trigger, now time.Time) error {
	next, err := nextAfter(x, now)
	if err != nil { // a name of a zone that a newer database has not
		t.log.ErrorContext(ctx, "a schedule has no next time", "trigger", x.ID, "err", err)
		return t.store.MoveTrigger(ctx, x.ID, x.Next, time.Time{})
	}
	text, err := json.Marshal(map[string]string{"schedule": x.Name, "at": ledger.Stamp(x.Next)})
	if err != nil {
		return err
	}
	body, err := json.Marshal(Body{Type: "application/json", Bytes: text})
	if err != nil {
		return err
	}
	run := cay.Run{
		ID: cay.NewRunID(), Team: x.Team, Trigger: x.ID, Delivery: "at " + ledger.Stamp(x.Next), Event: "schedule",
		State: cay.RunWaiting, QueuedAt: now, DueAt: now, Bytes: len(text),
	}
	run.Sealed = t.sealer.Seal(body, placeOfRun(run))
	queue := func(run cay.Run) error {
		return t.store.Tx(ctx, func(tx store.Store) error {
			if err := tx.MoveTrigger(ctx, x.ID, x.Next, next); err != nil {
				return err
			}
			_, _, err := tx.QueueRun(ctx, run, max(x.MaxWaiting, 1), bodiesMost)
			return err
		})
	}
	err = queue(run)
	if cay.KindOf(err) == cay.Exhausted { // told, not lost
		over(&run, cay.RunSkipped, "as many runs of the schedule waited as may")
		err = queue(run)
	}
	return err
}
