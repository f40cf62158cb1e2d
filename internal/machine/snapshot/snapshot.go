// Package snapshot keeps snapshots and root images on a local disk.
//
//	<data>/snapshots/<id>/snapshot.json   the record, written last
//	<data>/snapshots/<id>/snapshot.sum    its checksum; older snapshots have none
//	<data>/snapshots/<id>/<file>          what the engine wrote, some in a directory
//	<data>/snapshots/<id>/attached.json   what was added later
//	<data>/snapshots/<id>/checked.json    large files that were compared with their checksums, since which boot
//	<data>/snapshots/.mapped-<id>         one that is removed and whose files an instance still reads
//	<data>/snapshots/.evicted-<id>        the record of one whose files the bucket alone has
//	<data>/images/<digest>.erofs          root images, named by their SHA-256
//
// Everything is immutable once it has its name. Work in progress lies under a
// name that begins with tempPrefix, locked by its writer; a crash drops the
// lock, and the next Open removes the rest. A reader therefore sees
// a whole snapshot or none.
package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	recordName = "snapshot.json"
	sumName    = "snapshot.sum" // the checksum of the record's text
	tempPrefix = ".tmp-"
	maxRecord  = 1 << 20
)

// Dir is the snapshots and images of one data directory. Its methods may be
// called at the same time, also by several processes.
type Dir struct {
	snapshots string
	images    string

	mu    sync.Mutex
	locks map[string]*os.File // of unfinished snapshots, by path

	checks checks
	saved  saved
	mapped mappings

	attaching sync.Mutex // one Attach at a time

	removals removals   // of snapshots that have no name any more
	removing sync.Mutex // one at a time
}

// Open makes the directories where they lack and removes what a crash left.
func Open(dataDir string) (*Dir, error) {
	d := &Dir{
		snapshots: filepath.Join(dataDir, "snapshots"),
		images:    filepath.Join(dataDir, "images"),
		locks:     map[string]*os.File{},
	}
	for _, dir := range []string{d.snapshots, d.images} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, diskError(err, "make %s", dir)
		}
		if err := removeLeftovers(dir); err != nil {
			return nil, diskError(err, "remove what a crash left in %s", dir)
		}
	}
	if err := d.finishEvictions(); err != nil {
		return nil, diskError(err, "remove files of evicted snapshots")
	}
	return d, nil
}

// Begin makes an empty directory to write a snapshot into. It ends with
// Commit or Abort.
func (d *Dir) Begin() (tmp string, err error) {
	tmp, lock, err := lockedTemp(d.snapshots)
	if err != nil {
		return "", diskError(err, "begin a snapshot")
	}
	d.mu.Lock()
	d.locks[tmp] = lock
	d.mu.Unlock()
	return tmp, nil
}

// Abort drops what Begin began. After Commit it does nothing, so it may be
// deferred.
func (d *Dir) Abort(tmp string) error {
	if !d.unlock(tmp) {
		return nil
	}
	return os.RemoveAll(tmp)
}

// Commit gives the snapshot in tmp its name. The record must list every file
// there, with its size. On an error tmp stays the caller's to Abort.
func (d *Dir) Commit(tmp string, s cay.Snapshot) error {
	if !cay.ValidID(string(s.ID)) {
		return cay.Errorf(cay.Invalid, "snapshot id %q is not valid", s.ID)
	}
	if err := checkFiles(tmp, s); err != nil {
		return err
	}
	if err := checkNothingElse(tmp, s); err != nil {
		return err
	}
	final := d.path(s.ID)
	if _, err := os.Lstat(final); err == nil {
		return cay.Errorf(cay.Conflict, "snapshot %s exists", s.ID)
	}
	whole := kept{Boot: boot(), Files: map[string]stamp{}}
	for _, f := range s.Files {
		path := filepath.Join(tmp, f.Name)
		if err := disk.Sync(path); err != nil {
			return diskError(err, "sync %s", f.Name)
		}
		now, err := d.checks.passed(filepath.Join(final, f.Name), path) // it was just measured
		if err == nil && f.Size >= largeFile {
			whole.Files[f.Name] = now
		}
	}
	if len(whole.Files) > 0 {
		writeKept(tmp, whole)
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return cay.Wrap(cay.Internal, err, "encode the record of snapshot %s", s.ID)
	}
	text = append(text, '\n')
	err = writeSynced(filepath.Join(tmp, sumName), []byte(sumOf(text)+"\n"))
	if err == nil {
		err = writeSynced(filepath.Join(tmp, recordName), text)
	}
	if err != nil {
		return diskError(err, "write the record of snapshot %s", s.ID)
	}
	for dir := range directories(s) {
		if err := disk.Sync(filepath.Join(tmp, dir)); err != nil {
			return diskError(err, "sync snapshot %s", s.ID)
		}
	}
	if err := d.name(tmp, s); err != nil {
		return err
	}
	d.unlock(tmp)
	if err := disk.Sync(d.snapshots); err != nil {
		return diskError(err, "sync %s", d.snapshots)
	}
	return nil
}

// name gives a snapshot its name. One that was evicted is back then.
func (d *Dir) name(tmp string, s cay.Snapshot) error {
	d.mapped.mu.Lock()
	defer d.mapped.mu.Unlock()
	if err := os.Rename(tmp, d.path(s.ID)); err != nil {
		return diskError(err, "name snapshot %s", s.ID)
	}
	d.note(s)
	_ = os.RemoveAll(d.evictedPath(s.ID)) // the next Open removes what a failing disk leaves
	return nil
}

// Get finds a snapshot and checks that its files are there with their sizes.
// It does not read them; Verify does. NotFound when there is none, Conflict
// when this Cay is too old for it, Internal when it is damaged.
func (d *Dir) Get(id cay.SnapshotID) (dir string, s cay.Snapshot, err error) {
	if !cay.ValidID(string(id)) {
		return "", s, cay.Errorf(cay.NotFound, "no snapshot %q", id)
	}
	dir = d.path(id)
	s, err = readRecord(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", s, cay.Errorf(cay.NotFound, "no snapshot %q", id)
	case err != nil:
		return "", s, damagedRecord(id, err)
	case s.ID != id:
		return "", s, cay.Errorf(cay.Internal, "the record in %s is that of snapshot %q", dir, s.ID)
	case s.Format > cay.DockerFormat || s.Format < 1:
		return "", s, cay.Errorf(cay.Conflict, "snapshot %s has format %d; this Cay reads up to %d", id, s.Format, cay.DockerFormat)
	}
	if err := checkFiles(dir, s); err != nil {
		if _, gone := os.Lstat(dir); errors.Is(gone, fs.ErrNotExist) { // while we looked
			return "", s, cay.Errorf(cay.NotFound, "no snapshot %q", id)
		}
		return "", s, err
	}
	return dir, s, nil
}

func damagedRecord(id cay.SnapshotID, err error) error {
	if err == nil {
		return nil
	}
	return cay.Wrap(cay.Internal, err, "the record of snapshot %s is damaged", id).WithCode(cay.CodeDamaged)
}

// IDs names every snapshot there is, damaged ones too, and those that are
// removed and whose files instances still read.
func (d *Dir) IDs() ([]string, error) {
	entries, err := os.ReadDir(d.snapshots)
	if err != nil {
		return nil, diskError(err, "list snapshots")
	}
	var out []string
	for _, e := range entries {
		if id := strings.TrimPrefix(e.Name(), mappedPrefix); cay.ValidID(id) { // else it is a temporary name
			out = append(out, id)
		}
	}
	return out, nil
}

// List returns every whole snapshot, oldest first. One that cannot be read is
// left out and named in the error; the rest is still good.
func (d *Dir) List() ([]cay.Snapshot, error) {
	ids, err := d.IDs()
	if err != nil {
		return nil, err
	}
	var out []cay.Snapshot
	var bad []error
	for _, id := range ids {
		_, s, err := d.Get(cay.SnapshotID(id))
		switch {
		case err == nil:
			out = append(out, s)
		case cay.KindOf(err) != cay.NotFound: // removed while we looked
			bad = append(bad, err)
		}
	}
	slices.SortFunc(out, func(a, b cay.Snapshot) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out, errors.Join(bad...)
}

// Verify reads every file of a snapshot and compares its checksum with the
// record: also of a removed one whose files instances still read. It takes as
// long as the disk does.
func (d *Dir) Verify(ctx context.Context, id cay.SnapshotID) error {
	defer d.Keep(id)()
	dir, s, err := d.Get(id)
	if cay.KindOf(err) == cay.NotFound && cay.ValidID(string(id)) {
		if mapped, there := readRecord(d.mappedPath(id)); !errors.Is(there, fs.ErrNotExist) {
			dir, s, err = d.mappedPath(id), mapped, damagedRecord(id, there)
		}
	}
	if cay.KindOf(err) == cay.NotFound {
		if _, there := d.evictedRecord(id); there == nil {
			return cay.Errorf(cay.NotFound, "snapshot %s is in the bucket alone: there are no files of it here", id)
		}
	}
	if err != nil {
		return err
	}
	for _, f := range s.Files {
		if err := checkFile(ctx, filepath.Join(dir, f.Name), id, f); err != nil {
			return err
		}
	}
	return nil
}

// Remove deletes a snapshot; that it is gone already is no error. The caller
// knows that nothing will use it. After Remove no caller finds it; its space
// follows, which takes the disk a while and keeps no caller waiting. The files
// of one that is held (Hold) stay until it is let go.
func (d *Dir) Remove(id cay.SnapshotID) error {
	if !cay.ValidID(string(id)) {
		return cay.Errorf(cay.NotFound, "no snapshot %q", id)
	}
	d.checks.forget(d.path(id))
	d.mapped.mu.Lock()
	defer d.mapped.mu.Unlock()
	if err := d.dropEvicted(id); err != nil {
		return err
	}
	if d.mapped.by[id] > 0 {
		return d.setAside(id)
	}
	return d.drop(d.path(id), id)
}

// drop removes the directory of a snapshot, wherever it is, and counts it no
// more. A missing directory is no error.
func (d *Dir) drop(path string, id cay.SnapshotID) error {
	// A temporary name first: a crash half way leaves no torn snapshot.
	aside, lock, err := lockedTemp(d.snapshots)
	if err != nil {
		return diskError(err, "remove snapshot %s", id)
	}
	err = os.Rename(path, filepath.Join(aside, "gone"))
	if err != nil {
		defer lock.Close()
		if errors.Is(err, fs.ErrNotExist) {
			d.unnote(id)
			return os.Remove(aside)
		}
		return errors.Join(diskError(err, "remove snapshot %s", id), os.Remove(aside))
	}
	d.unnote(id)
	d.removals.begin(func() {
		defer lock.Close()
		d.removing.Lock()
		defer d.removing.Unlock()
		_ = os.RemoveAll(aside) // the next Open removes the rest that a failing disk leaves
	})
	return nil
}

// Settle waits until the space of everything that was removed is free.
func (d *Dir) Settle() { d.removals.wait() }

// removals are those under way. Unlike in a sync.WaitGroup, one may begin while a
// caller waits for all.
type removals struct {
	mu   sync.Mutex
	last chan struct{} // closed when none is left; nil while there is none
	left int
}

func (r *removals) begin(remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		r.last = make(chan struct{})
	}
	r.left++
	go func() {
		defer r.end()
		remove()
	}()
}

func (r *removals) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left--; r.left == 0 {
		close(r.last)
		r.last = nil
	}
}

func (r *removals) wait() {
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	if last != nil {
		<-last
	}
}

func (d *Dir) path(id cay.SnapshotID) string { return filepath.Join(d.snapshots, string(id)) }

// unlock lets go of an unfinished snapshot and reports whether it was held.
func (d *Dir) unlock(tmp string) bool {
	d.mu.Lock()
	lock, held := d.locks[tmp]
	delete(d.locks, tmp)
	d.mu.Unlock()
	if held {
		lock.Close()
	}
	return held
}

func readRecord(dir string) (cay.Snapshot, error) {
	var s cay.Snapshot
	text, err := readBounded(filepath.Join(dir, recordName))
	if err != nil {
		return s, err
	}
	if err := checkSum(dir, text); err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, err
	}
	more, err := attached(dir)
	s.Files = append(s.Files, more...)
	return s, err
}

// checkSum compares the text of a record with its checksum, if it has one. A
// checksum that cannot be read is damage as well.
func checkSum(dir string, text []byte) error {
	want, err := readBounded(filepath.Join(dir, sumName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && strings.TrimSpace(string(want)) != sumOf(text) {
		err = errors.New("its checksum differs from the one that was written with it")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", recordName, err)
	}
	return nil
}

func sumOf(text []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)) }

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRecord))
}

// checkFiles compares what a directory holds with its record, by size.
func checkFiles(dir string, s cay.Snapshot) error {
	if len(s.Files) == 0 {
		return cay.Errorf(cay.Internal, "the record of snapshot %s names no files", s.ID)
	}
	for _, f := range s.Files {
		if !validName(f.Name) {
			return cay.Errorf(cay.Internal, "the record of snapshot %s names a bad file: %q", s.ID, f.Name)
		}
		st, err := os.Lstat(filepath.Join(dir, f.Name))
		if err != nil {
			return cay.Wrap(cay.Internal, err, "snapshot %s is damaged: %s cannot be read", s.ID, f.Name).WithCode(cay.CodeDamaged)
		}
		if !st.Mode().IsRegular() || st.Size() != f.Size {
			return cay.Errorf(cay.Internal, "snapshot %s is damaged: %s has %d bytes, its record says %d", s.ID, f.Name, st.Size(), f.Size).WithCode(cay.CodeDamaged)
		}
	}
	return nil
}

// validName accepts the name of a file in a snapshot, or in a directory of it.
func validName(name string) bool {
	return filepath.IsLocal(name) && name == filepath.Clean(name) && name != "." && !slices.Contains([]string{recordName, sumName, attachedName, keptName, keptName + ".new"}, name) &&
		strings.Count(name, "/") <= 1 && !strings.HasPrefix(name, tempPrefix)
}

// directories are those of a snapshot, its own included.
func directories(s cay.Snapshot) map[string]bool {
	out := map[string]bool{".": true}
	for _, f := range s.Files {
		out[filepath.Dir(f.Name)] = true
	}
	return out
}

// checkNothingElse refuses files that no record names: nothing would ever
// check or copy them.
func checkNothingElse(dir string, s cay.Snapshot) error {
	named := map[string]bool{recordName: true, sumName: true, keptName: true} // which a Commit that failed may have left
	for _, f := range s.Files {
		named[f.Name] = true
	}
	dirs := directories(s)
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return diskError(err, "read %s", dir)
		}
		name, err := filepath.Rel(dir, path)
		if err == nil && !named[name] && !(e.IsDir() && dirs[name]) {
			err = cay.Errorf(cay.Internal, "snapshot %s holds %q, which its record does not name", s.ID, name)
		}
		return err
	})
}
