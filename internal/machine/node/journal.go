package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// The files of a journal directory.
const (
	specFile  = "spec.json" // written before the engine is called
	wholeFile = "whole"     // exists once the instance has its identity
	heldFile  = "held"      // exists while the guest may be stopped in place
	engineDir = "engine"    // the engine's own

	pooledFile = "pooled" // exists, in place of whole, while the instance has no owner and is untouched
)

// record is a journal: all that adoption needs.
type record struct {
	Spec     cay.InstanceSpec `json:"spec"`
	Slot     int              `json:"slot"`
	Started  time.Time        `json:"started"`
	Protocol int              `json:"protocol"` // that its snapshot's agent speaks
	Boot     cay.Boot         `json:"boot,omitzero"`
	Notice   string           `json:"notice,omitempty"`
	Demand   bool             `json:"demand,omitempty"` // its memory is loaded by demand
}

func (n *Node) journal(id cay.InstanceID) string  { return filepath.Join(n.cfg.Dir, string(id)) }
func (n *Node) reserved(id cay.InstanceID) string { return filepath.Join(n.cfg.Reserved, string(id)) }

// writeJournal makes a journal directory. It holds tokens: only root reads
// it. It is not waited for until it is on the disk: a crash of the server, or of
// an engine, does not lose what is written, and one of the host, which could,
// ends every instance and all that a journal names but its own directory.
func writeJournal(dir string, r record) error {
	if err := os.MkdirAll(filepath.Join(dir, engineDir), 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, specFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// rewriteJournal replaces what a journal says: a crash leaves the old or the
// new, whole.
func rewriteJournal(dir string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	aside := filepath.Join(dir, specFile+".new")
	if err := os.WriteFile(aside, text, 0o600); err != nil {
		return err
	}
	return os.Rename(aside, filepath.Join(dir, specFile))
}

// replaceJournal is rewriteJournal for an instance that no mark says may be
// adopted: no half of it is ever read. It takes the old one away first, because
// a file system may write one to the disk at once that replaces another, and a
// create would wait for that.
func replaceJournal(dir string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return diskError(err)
	}
	path := filepath.Join(dir, specFile)
	if err := os.Remove(path); err != nil {
		return diskError(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return diskError(err)
	}
	return nil
}

// markAs says that an instance may be adopted, as a sandbox's or as the pool's.
func markAs(dir, mark string) error {
	f, err := os.OpenFile(filepath.Join(dir, mark), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return diskError(err)
	}
	return f.Close()
}

// readJournal returns what is in a journal, and as what its instance may be
// adopted: wholeFile, pooledFile or nothing. A journal that was cut off by a
// crash is not whole.
func readJournal(dir string) (r record, mark string) {
	text, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil || json.Unmarshal(text, &r) != nil || string(r.Spec.Instance) != filepath.Base(dir) {
		return record{}, ""
	}
	for _, mark := range []string{wholeFile, pooledFile} {
		if _, err := os.Stat(filepath.Join(dir, mark)); err == nil {
			return r, mark
		}
	}
	return r, ""
}

// removeJournal ends a journal. The mark goes first, so that half a journal is
// never adopted.
func removeJournal(dir string) error {
	if err := unmark(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// unmark says that an instance must not be adopted.
func unmark(dir string) error {
	for _, mark := range []string{wholeFile, pooledFile} {
		err := os.Remove(filepath.Join(dir, mark))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return err
		}
	}
	return nil
}

// diskError names a full disk.
func diskError(err error) error {
	return disk.Error(err, "the data directory cannot be written")
}
