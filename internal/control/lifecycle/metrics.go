package lifecycle

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// keepMetrics is how many samples of a sandbox are kept: one hour.
const keepMetrics = int(time.Hour / sweepEvery)

// Metric is what a sandbox used at a moment.
type Metric struct {
	At         time.Time
	CPUs       int
	CPUPercent float64 // of all its CPUs, since the reading before, with two decimals
	MemoryUsed int64
	MemoryMax  int64
	DiskUsed   int64
	DiskMax    int64
}

// history is the last samples of one sandbox.
type history struct {
	mu       sync.Mutex
	instance cay.InstanceID // that last is of
	last     cay.Usage
	read     cay.Reading // samples and other looks
	samples  []Metric
}

// add records a reading. CPU time is told of the time between two readings, so
// the first one of an instance is no sample yet.
func (h *history) add(id cay.InstanceID, u cay.Usage, cpus int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.last
	first := h.instance != id
	h.instance, h.last = id, u
	h.note(id, u)
	wall, used := u.At.Sub(before.At), u.CPUTime-before.CPUTime
	if first || wall <= 0 {
		return
	}
	m := Metric{
		At: u.At.UTC(), CPUs: cpus,
		MemoryUsed: u.MemoryUsed, MemoryMax: u.MemoryMax, DiskUsed: u.DiskUsed, DiskMax: u.DiskMax,
	}
	if used > 0 && cpus > 0 {
		percent := 100 * float64(used) / float64(wall) / float64(cpus)
		m.CPUPercent = math.Round(min(100, percent)*100) / 100
	}
	if len(h.samples) == keepMetrics {
		h.samples = append(h.samples[:0], h.samples[1:]...)
	}
	h.samples = append(h.samples, m)
}

// note takes a reading down. The caller holds the lock.
func (h *history) note(id cay.InstanceID, u cay.Usage) {
	at := cay.Taken{CPU: u.CPUTime, Sent: u.Sent}
	if h.read.Instance != id {
		h.read = cay.Reading{Instance: id, First: at}
	}
	h.read.Last = at
}

// reading is what an instance took, as far as it was read.
func (h *history) reading(id cay.InstanceID) cay.Reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id == "" || h.read.Instance != id {
		return cay.Reading{}
	}
	return h.read
}

func (h *history) between(start, end time.Time) []Metric {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Metric
	for _, m := range h.samples {
		if !m.At.Before(start) && (end.IsZero() || !m.At.After(end)) {
			out = append(out, m)
		}
	}
	return out
}

// Metrics returns the samples of a sandbox from start to end, oldest first. A
// zero end means now.
func (c *Controller) Metrics(_ context.Context, who cay.Caller, id cay.SandboxID, start, end time.Time) ([]Metric, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	e, err := c.find(who.Team, id)
	if err != nil {
		return nil, err
	}
	return e.metrics.between(start, end), nil
}

// LatestMetrics returns the newest sample of each of the team's sandboxes
// that is among ids and has one.
func (c *Controller) LatestMetrics(_ context.Context, who cay.Caller, ids []cay.SandboxID) (map[cay.SandboxID]Metric, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	out := make(map[cay.SandboxID]Metric)
	for _, id := range ids {
		e, err := c.find(who.Team, id)
		if err != nil {
			continue
		}
		if list := e.metrics.between(time.Time{}, time.Time{}); len(list) > 0 {
			out[id] = list[len(list)-1]
		}
	}
	return out, nil
}
