package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// load says how a restore gets its memory.
func (b *bench) load(spec *engine.RestoreSpec) error {
	switch b.loading {
	case "eager":
		return nil
	case "demand", "shared":
		spec.Loading, spec.Share, spec.WorkingSet = engine.Demand, b.loading == "shared", b.set
		if b.set == "" {
			spec.WorkingSet = filepath.Join(b.from, "load", "working-set")
		}
		return nil
	case "arriving":
		spec.Arriving = true
		return nil
	}
	return fmt.Errorf("no such loading: %q", b.loading)
}

// here is a snapshot of this machine, as one that has arrived.
type here struct {
	dir string
	s   cay.Snapshot
}

func (h here) Snapshot() cay.Snapshot { return h.s }

func (h here) Open(name string) (*os.File, error) { return os.Open(filepath.Join(h.dir, name)) }

func (here) Await(context.Context, string, int64, int64) (bool, error) { return true, nil }

func (h here) Whole(context.Context) (string, error) { return h.dir, nil }

// rest is longer than a restored sandbox has something to do by itself.
const rest = 1500 * time.Millisecond

// firstResult is what one took of the clock and of the processors, and the memory
// of the instance after it.
type firstResult struct {
	took
	ProcessorMS float64 `json:"processorMs"`
	MemoryMB    float64 `json:"memoryMb"`
}

// rested is the first result of a sandbox that has been there for a while, like one
// of the pool.
func rested(ctx context.Context, b *bench) (any, error) {
	return b.with(ctx, func(it box) (any, error) {
		time.Sleep(rest)
		before, err := b.eng.Usage(ctx, it.id)
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		err = runOne(ctx, it.slot.Addr)
		out := firstResult{took: since(begun)}
		after, usageErr := b.eng.Usage(ctx, it.id)
		out.ProcessorMS = float64((after.CPUTime - before.CPUTime).Microseconds()) / 1000
		out.MemoryMB = float64(after.MemoryUsed-b.activeFiles(string(it.id))) / 1e6
		return out, errors.Join(err, usageErr)
	})
}
