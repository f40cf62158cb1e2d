package snapshot

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// attachedName is the record of what was added to a snapshot after it was
// committed.
const attachedName = "attached.json"

// attachment is what attachedName holds.
type attachment struct {
	Files  json.RawMessage `json:"files"`
	CRC32C string          `json:"crc32c,omitempty"` // of the text of Files; older ones have none
}

// Attach adds to a snapshot a directory of files that Begin's tmp holds: all
// of them or none, whenever the server is killed. They may lie in that one
// directory only, and it is Conflict when the snapshot has it. NotFound when there
// is no such snapshot any more. tmp stays the caller's to Abort.
func (d *Dir) Attach(tmp string, id cay.SnapshotID, files []cay.SnapFile) error {
	d.attaching.Lock()
	defer d.attaching.Unlock()
	dir, before, err := d.Get(id)
	if err != nil {
		return err
	}
	s := before
	s.Files = files
	if err := checkFiles(tmp, s); err != nil {
		return err
	}
	name := filepath.Dir(files[0].Name)
	for _, f := range files {
		if name == "." || filepath.Dir(f.Name) != name {
			return cay.Errorf(cay.Invalid, "%q cannot be added to snapshot %s", f.Name, id)
		}
		if err := disk.Sync(filepath.Join(tmp, f.Name)); err != nil {
			return diskError(err, "sync %s", f.Name)
		}
	}
	if directories(before)[name] {
		return cay.Errorf(cay.Conflict, "snapshot %s has %s already", id, name)
	}
	earlier, err := attached(dir)
	if err != nil {
		return damagedRecord(id, err)
	}
	list, err := json.Marshal(append(earlier, files...))
	if err != nil {
		return cay.Wrap(cay.Internal, err, "encode what is added to snapshot %s", id)
	}
	text, err := json.Marshal(attachment{list, sumOf(list)})
	if err != nil {
		return cay.Wrap(cay.Internal, err, "encode what is added to snapshot %s", id)
	}
	if err := writeSynced(filepath.Join(tmp, attachedName), text); err != nil {
		return diskError(err, "write what is added to snapshot %s", id)
	}
	// The record comes last: files without one have no owner, and make room.
	if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
		return diskError(err, "add %s to snapshot %s", name, id)
	}
	for _, name := range []string{name, attachedName} {
		path := filepath.Join(dir, name)
		err := os.Rename(filepath.Join(tmp, name), path)
		if errors.Is(err, fs.ErrNotExist) {
			return cay.Errorf(cay.NotFound, "no snapshot %q", id)
		}
		if err == nil {
			err = disk.Sync(dir)
		}
		if err != nil {
			return diskError(err, "add %s to snapshot %s", name, id)
		}
	}
	before.Files = slices.Concat(before.Files, files)
	d.grow(before)
	return nil
}

// attached reads what was added to a snapshot.
func attached(dir string) ([]cay.SnapFile, error) {
	text, err := readBounded(filepath.Join(dir, attachedName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var a attachment
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err == nil && a.CRC32C != "" && a.CRC32C != sumOf(a.Files) {
		err = errors.New(attachedName + ": its checksum differs from the one that was written with it")
	}
	var files []cay.SnapFile
	if err == nil {
		err = json.Unmarshal(a.Files, &files)
	}
	return files, err
}
