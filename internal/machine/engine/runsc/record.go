package runsc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// record is what the engine remembers of an instance. It is written before
// anything of the instance exists and removed last, so nothing is orphaned.
type record struct {
	ID          cay.InstanceID
	EngineHash  string   // the build that drives it, to its end
	Flags       []string // of that build, as it was started with
	Dir         string
	Reserved    string
	Root        string // digest of the root image
	Limits      cay.Limits
	DiskMB      int // of the overlay; a snapshot keeps its own for ever
	CPUFeatures []string
	Docker      bool  `json:",omitempty"` // engine.BootSpec.Docker
	Pages       int64 // bytes of the snapshot that it loads by demand; 0 when it does not
	// Arriving is the snapshot that it was restored from while that arrived, empty
	// for none.
	Arriving cay.SnapshotID `json:",omitempty"`
	Started  time.Time
	// Whole is set when the start has succeeded.
	Whole bool

	background bool // start it after everything else
}

// recordFile names a file of an instance's record.
func (e *Engine) recordFile(id cay.InstanceID, name string) string {
	return filepath.Join(e.recordDir(), string(id), name)
}

func (e *Engine) save(r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := e.recordFile(r.ID, "record.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// Renamed into place: a reader never sees half a record. It need not
	// survive a power cut, which its instance would not either.
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (e *Engine) load(id cay.InstanceID) (*record, error) {
	text, err := os.ReadFile(e.recordFile(id, "record.json"))
	if err != nil {
		return nil, err
	}
	r := new(record)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("record of instance %s: %w", id, err)
	}
	return r, nil
}

// pid reads the sentry's process id. Another process may have it by now.
func (e *Engine) pid(id cay.InstanceID) (int, error) {
	text, err := os.ReadFile(e.recordFile(id, "pid"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("pid file of instance %s holds %.20q", id, text)
	}
	return pid, nil
}

// forget removes runsc's state of a dead instance and then the record. The
// caller holds e.mu.
func (e *Engine) forget(id cay.InstanceID) error {
	name := fmt.Sprintf("%s_sandbox:%s", id, id)
	err := errors.Join(
		removeFile(filepath.Join(e.stateDir(), name+".state")),
		removeFile(filepath.Join(e.stateDir(), name+".lock")),
		removeFile(filepath.Join(e.stateDir(), fmt.Sprintf("runsc-%s.sock", id))),
	)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(e.recordDir(), string(id))); err != nil {
		return err
	}
	return e.tidy()
}

// tidy removes, after the last instance, the empty network namespace that
// runsc keeps mounted for gofers, so that a run directory can be removed. The
// caller holds e.mu, so no instance is being made meanwhile.
func (e *Engine) tidy() error {
	records, err := os.ReadDir(e.recordDir())
	if err != nil || len(records) > 0 {
		return err
	}
	path := filepath.Join(e.stateDir(), "null-netns")
	if err := unmount(path); err != nil {
		return err
	}
	return removeFile(path)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
