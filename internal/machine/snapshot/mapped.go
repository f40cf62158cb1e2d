package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cay-run/cay"
)

// mappedPrefix begins the name of a removed snapshot whose files an instance
// still reads.
const mappedPrefix = ".mapped-"

// mappings counts who reads the files of snapshots while they run, and who uses
// snapshots at all. The zero value is ready.
type mappings struct {
	mu    sync.Mutex
	by    map[cay.SnapshotID]int
	users map[cay.SnapshotID]int // which keep them from being evicted
}

// Mapped is a removed snapshot whose files are still read.
type Mapped struct {
	Snapshot cay.Snapshot
	By       int // instances
}

// Hold keeps the files of a snapshot on the disk until LetGo was called as
// often as Hold, whether it is removed meanwhile or was before.
func (d *Dir) Hold(id cay.SnapshotID) {
	d.mapped.mu.Lock()
	defer d.mapped.mu.Unlock()
	if d.mapped.by == nil {
		d.mapped.by = map[cay.SnapshotID]int{}
	}
	d.mapped.by[id]++
}

// LetGo takes one Hold back. The last one of a removed snapshot removes its
// files, which keeps no caller waiting.
func (d *Dir) LetGo(id cay.SnapshotID) error {
	d.mapped.mu.Lock()
	defer d.mapped.mu.Unlock()
	if d.mapped.by[id]--; d.mapped.by[id] > 0 {
		return nil
	}
	delete(d.mapped.by, id)
	if _, err := os.Lstat(d.mappedPath(id)); errors.Is(err, fs.ErrNotExist) { // it is not removed
		return nil
	}
	return d.drop(d.mappedPath(id), id)
}

// Mapped lists the removed snapshots whose files instances still read. One
// without a readable record is left out.
func (d *Dir) Mapped() ([]Mapped, error) {
	all, err := d.recordsAfter(mappedPrefix)
	var out []Mapped
	for _, s := range all {
		d.mapped.mu.Lock()
		by := d.mapped.by[s.ID]
		d.mapped.mu.Unlock()
		out = append(out, Mapped{s, by})
	}
	return out, err
}

// Sweep removes the files of removed snapshots that no instance reads any more:
// a crash between the end of an instance and LetGo leaves them. It is called
// once every instance that lives has its Hold.
func (d *Dir) Sweep() error {
	ids, err := d.idsAfter(mappedPrefix)
	errs := []error{err}
	for _, id := range ids {
		d.mapped.mu.Lock()
		if d.mapped.by[id] == 0 {
			errs = append(errs, d.drop(d.mappedPath(id), id))
		}
		d.mapped.mu.Unlock()
	}
	return errors.Join(errs...)
}

// setAside takes the name of a snapshot away from which instances still read.
// It stays counted.
func (d *Dir) setAside(id cay.SnapshotID) error {
	err := os.Rename(d.path(id), d.mappedPath(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // then it was removed before
		return diskError(err, "remove snapshot %s", id)
	}
	d.move(id, aside)
	return nil
}

func (d *Dir) mappedPath(id cay.SnapshotID) string {
	return filepath.Join(d.snapshots, mappedPrefix+string(id))
}
