package operator

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/store"
)

// kept are the files and directories of a data directory that a backup has
// beside the records: all keys. Snapshots and images never change once they
// have their name, so any copy of files does for them.
var kept = []string{"seal.key", "secret.key", "ssh_host.key", "audit.key", "admin.token", "authority", "tls", "identity"}

const (
	recordsName = "cay.db"
	// lastName is the name of the last entry: an archive without it was cut off.
	lastName = "complete"
)

func (d *Desk) backupRoutes(routes *http.ServeMux) {
	routes.HandleFunc("POST /backup", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-tar")
		if err := d.record(r.Context(), "backup.made", "", d.backup(r.Context(), w)); err != nil {
			// The archive has no last entry; the log says why.
			d.cfg.Log.ErrorContext(r.Context(), "a backup failed", "err", err)
		}
	})
}

// backup writes an archive of records and keys.
func (d *Desk) backup(ctx context.Context, w io.Writer) error {
	dir := d.cfg.Host.Data
	if st, err := os.Stat(d.cfg.Host.Database()); err == nil {
		if err := d.cfg.Disk.RoomToSave("a backup", st.Size()); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(dir, ".backup-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	records := filepath.Join(tmp, recordsName)
	if err := d.cfg.Store.Backup(ctx, records); err != nil {
		return err
	}
	out := tar.NewWriter(w)
	if err := addFile(out, recordsName, records); err != nil {
		return err
	}
	for _, name := range kept {
		err := filepath.WalkDir(filepath.Join(dir, name), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			inside, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			return addFile(out, inside, path)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(out.WriteHeader(&tar.Header{Name: lastName, Mode: 0o600, Format: tar.FormatPAX}), out.Close())
}

func addFile(out *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Name: name, Mode: int64(st.Mode().Perm()), Size: st.Size(), ModTime: st.ModTime(), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.CopyN(out, f, st.Size())
	return err
}

// Backup has the server write an archive of its records and keys into a new
// file, which only its owner may read: it opens everything.
func (c Client) Backup(ctx context.Context, path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return cay.Errorf(cay.Conflict, "%s exists", path).WithHint("choose another name")
	}
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot write %s", path)
	}
	defer func() {
		if err != nil {
			os.Remove(path)
		}
	}()
	err = c.stream(ctx, http.MethodPost, "/backup", func(body io.Reader) error {
		_, err := io.Copy(f, body)
		return err
	})
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "cay-backup-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	return unpack(ctx, path, tmp)
}

// Restore puts records and keys of a backup into a data directory that has
// none. No server may run there.
func Restore(ctx context.Context, cfg config.Config, path string) error {
	at := Host(cfg)
	lock, err := host.Take(ctx, at)
	if err != nil {
		return err
	}
	defer lock.Close()
	for _, name := range append([]string{recordsName}, kept...) {
		if _, err := os.Lstat(filepath.Join(at.Data, name)); err == nil {
			return cay.Errorf(cay.Conflict, "%s has records or keys already: %s", at.Data, name).
				WithHint("move %s, %s and what belongs to them away first, or set CAY_DATA_DIR to another directory", recordsName, strings.Join(kept, ", "))
		}
	}
	tmp, err := os.MkdirTemp(at.Data, ".restore-")
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot write into %s", at.Data)
	}
	defer os.RemoveAll(tmp)
	if err := unpack(ctx, path, tmp); err != nil {
		return err
	}
	if err := recordRestored(ctx, tmp, filepath.Base(path)); err != nil {
		return err
	}
	// The records last: with them it is a data directory that a server starts on.
	for _, name := range append(slices.Clone(kept), recordsName) {
		err := os.Rename(filepath.Join(tmp, name), filepath.Join(at.Data, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return cay.Wrap(cay.Unavailable, err, "cannot put %s into place", name)
		}
	}
	return nil
}

// recordRestored has the audit log of a backup say that it goes on from there.
func recordRestored(ctx context.Context, dir, archive string) error {
	key, err := seal.Open(dir)
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, filepath.Join(dir, recordsName), key)
	if err != nil {
		return err
	}
	who := cay.Caller{Name: "operator", From: &cay.Origin{}}
	err = db.AddAudit(ctx, audit.Row(who, audit.ActionRestored, archive, cay.OutcomeOK))
	return errors.Join(err, db.Close())
}

// unpack writes the files of a backup into an empty directory, and opens the
// records there with their key.
func unpack(ctx context.Context, path, dir string) error {
	f, err := os.Open(path)
	if err != nil {
		return cay.Wrap(cay.NotFound, err, "cannot read the backup %s", path)
	}
	defer f.Close()
	in := tar.NewReader(f)
	for {
		h, err := in.Next()
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "%s is no backup, or was cut off; the server's log says why a backup failed", path)
		}
		if h.Name == lastName {
			break
		}
		top, _, _ := strings.Cut(h.Name, "/")
		if !filepath.IsLocal(h.Name) || h.Typeflag != tar.TypeReg || top != recordsName && !slices.Contains(kept, top) {
			return cay.Errorf(cay.Invalid, "%s is no backup: it holds %.80q", path, h.Name)
		}
		if err := writeEntry(filepath.Join(dir, h.Name), h, in); err != nil {
			return cay.Wrap(cay.Unavailable, err, "cannot write %s", h.Name)
		}
	}
	for _, name := range []string{recordsName, "seal.key"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return cay.Errorf(cay.Invalid, "%s is no whole backup: it lacks %s", path, name)
		}
	}
	key, err := seal.Open(dir)
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, filepath.Join(dir, recordsName), key)
	if err != nil {
		return err
	}
	_, err = db.LiveSandboxes(ctx) // which the key opens
	return errors.Join(err, db.Close())
}

func writeEntry(path string, h *tar.Header, in io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(h.Mode)&0o777)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Sync(), f.Close())
}
