package runsc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/spawn"
)

// statusName is the file of an instance's record in which its sentry says how
// far it has loaded its memory.
const statusName = "loading"

// demand fills in how an instance loads its memory, and returns the flags for
// that. A build from before loading by demand loads eagerly.
func (e *Engine) demand(r *record, s engine.RestoreSpec) []string {
	if s.Loading != engine.Demand || !e.knowsDemand(r.EngineHash) {
		return nil
	}
	info, err := os.Stat(filepath.Join(s.From, pagesName))
	if err != nil {
		return nil // the restore finds out what is wrong
	}
	r.Pages = info.Size()
	flags := []string{"--demand", "--load-status=" + e.recordFile(r.ID, statusName)}
	if s.Share {
		flags = append(flags, "--share")
	}
	if s.WorkingSet != "" {
		flags = append(flags, "--working-set="+s.WorkingSet)
	}
	if s.Trace && r.EngineHash == e.cfg.Hash { // builds of before may not know it
		flags = append(flags, "--trace")
	}
	return flags
}

// knowsDemand reports whether a build can load by demand, which it is asked
// once.
func (e *Engine) knowsDemand(hash string) bool {
	e.mu.Lock()
	known, asked := e.demands[hash]
	e.mu.Unlock()
	if asked {
		return known
	}
	err := spawn.Command(context.Background(), e.binary(hash), "help", "loading").Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false // it did not run
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.demands[hash] = err == nil
	return err == nil
}

// loadStatus is what a sentry says of its loading, which it may say wrongly.
type loadStatus struct {
	left   int64 // bytes of the snapshot that are not loaded
	failed bool
}

func (e *Engine) loadStatus(r *record) loadStatus {
	if r.Pages == 0 {
		return loadStatus{}
	}
	f, err := os.Open(e.recordFile(r.ID, statusName))
	if err != nil {
		return loadStatus{}
	}
	defer f.Close()
	var words [4]uint64 // as pgalloc.LoadStatus in the engine
	const magic = 0x6361796c6f616431
	if err := binary.Read(f, binary.NativeEndian, &words); err != nil || words[0] != magic {
		return loadStatus{left: r.Pages} // it has not begun
	}
	return loadStatus{left: int64(min(words[2], uint64(r.Pages))), failed: words[3] != 0}
}

// LoadAll implements engine.Engine.
func (e *Engine) LoadAll(ctx context.Context, id cay.InstanceID) error {
	in, err := e.get(id)
	if err != nil || in.Pages == 0 {
		return err
	}
	if _, err := e.call(ctx, in.record, "loading", "--rest", string(id)); err != nil {
		return cay.Wrap(cay.Unavailable, err, "the memory of instance %s is not loaded", id)
	}
	return nil
}

// RecordWorkingSet implements engine.Engine.
func (e *Engine) RecordWorkingSet(ctx context.Context, id cay.InstanceID, w io.Writer) error {
	in, err := e.get(id)
	if err != nil {
		return err
	}
	if in.Pages == 0 || in.Arriving != "" {
		return cay.Errorf(cay.Conflict, "instance %s was not restored by demand", id)
	}
	set, err := e.call(ctx, in.record, "loading", string(id))
	if err == nil && len(set) > engine.MaxWorkingSet {
		err = cay.Errorf(cay.Internal, "it has %d bytes", len(set))
	}
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "the working set of instance %s cannot be read", id)
	}
	_, err = w.Write(widened(set, nearPages))
	return err
}
