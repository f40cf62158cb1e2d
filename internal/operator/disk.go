package operator

import (
	"context"
	"strconv"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/ticks"
)

// diskEvery is how often the disk is looked at.
const diskEvery = 5 * time.Second

// fullness is how far a disk has come.
type fullness string

// The disk, as events tell it.
const (
	diskRoomy fullness = cay.ReasonDiskFreed
	diskNear  fullness = cay.ReasonDiskNear
	diskLow   fullness = cay.ReasonDiskLow
)

// fullnessOf judges a disk. One that is near or low leaves that state when it
// has a quarter more than it entered it with, so that a disk at the limit is
// not told again and again.
func fullnessOf(l disk.Level, before fullness) fullness {
	margin := l.Reserve / 4
	switch {
	case l.Low() || before == diskLow && l.Free < l.Reserve+margin:
		return diskLow
	case l.Near() || before != diskRoomy && l.Free < 2*l.Reserve+margin:
		return diskNear
	}
	return diskRoomy
}

// WatchDisk tells the log and every team when the disk of the data directory
// nears its reserve, reaches it, and has room again, until ctx ends.
func (d *Desk) WatchDisk(ctx context.Context) {
	state := diskRoomy
	for range ticks.AtOnce(ctx, diskEvery) {
		if l, err := d.cfg.Disk.Level(); err == nil {
			if now := fullnessOf(l, state); now != state {
				state = now
				d.tellDisk(ctx, l, now)
			}
		}
	}
}

func (d *Desk) tellDisk(ctx context.Context, l disk.Level, now fullness) {
	what := cay.MachineDiskLow
	switch now {
	case diskRoomy:
		what = cay.MachineDiskFreed
		d.cfg.Log.InfoContext(ctx, "the disk has room again", "disk", d.cfg.Disk.Dir, "free", l.Free, "reserve", l.Reserve)
	case diskNear:
		d.cfg.Log.WarnContext(ctx, "the disk nears its reserve, before which new work is refused",
			"disk", d.cfg.Disk.Dir, "free", l.Free, "reserve", l.Reserve, "hint", disk.Cure)
	case diskLow:
		d.cfg.Log.ErrorContext(ctx, "the disk has come to its reserve: new work is refused",
			"disk", d.cfg.Disk.Dir, "free", l.Free, "reserve", l.Reserve, "hint", disk.Cure)
	}
	err := d.cfg.Control.Announce(ctx, what, string(now),
		"freeMB", strconv.FormatInt(l.Free>>20, 10), "reserveMB", strconv.FormatInt(l.Reserve>>20, 10))
	if err != nil && ctx.Err() == nil {
		d.cfg.Log.WarnContext(ctx, "the event of a low disk could not be recorded", "err", err)
	}
}
