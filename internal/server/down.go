package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/node"
	"github.com/cay-run/cay/internal/storage"
	"github.com/cay-run/cay/internal/store"
)

// killsAtOnce bounds how many sandboxes Down ends at the same time.
const killsAtOnce = 4

// Down stops the running server, if there is one, ends all sandboxes and
// removes what Cay made on this host: containers, network, mounts, run
// directory. Data stays: templates, keys, records. It may be called again.
func Down(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	if log == nil {
		log = slog.Default()
	}
	if _, err := os.Stat(cfg.Data); errors.Is(err, os.ErrNotExist) {
		return nil // nothing was ever started here
	}
	if down := storage.Down(cfg.Data); down != nil {
		log.Error(down.Error())
		if err := letGo(ctx, cfg); err != nil {
			return err
		}
	}
	if err := errors.Join(storage.Mount(ctx, cfg.Data), stopHolder(ctx, cfg.Data)); err != nil {
		return err
	}
	if err := end(ctx, cfg, log); err != nil {
		return err
	}
	return storage.Unmount(ctx, cfg.Data)
}

// end is Down of a machine whose server has ended.
func end(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	lock, err := takeData(ctx, cfg)
	if err != nil {
		return err
	}
	defer lock.Close()
	m, err := openMachine(ctx, cfg, log)
	if err != nil {
		return err
	}
	if err := recordDown(ctx, cfg, m); err != nil {
		return errors.Join(err, m.net.Close())
	}
	if err := endAll(ctx, m); err != nil {
		return errors.Join(err, m.net.Close())
	}
	if err := m.net.Teardown(ctx); err != nil {
		return cay.Wrap(cay.KindOf(err), err, "the sandboxes' network was not removed as a whole")
	}
	err = errors.Join(
		m.engine.Teardown(),
		node.UnshareMount(reservedDir(cfg)),
		emptyDir(instancesDir(cfg)),
	)
	// What is empty goes too; the run directory may be a mount of the user's.
	for _, name := range []string{operatorSocket, "engine", "runsc", "."} {
		os.Remove(filepath.Join(cfg.Run, name))
	}
	if err != nil {
		return cay.Wrap(cay.Internal, err, "something of the sandboxes is left below %s or %s", cfg.Run, cfg.Data)
	}
	return nil
}

// recordDown has the records say why the sandboxes end.
func recordDown(ctx context.Context, cfg config.Config, m *machine) error {
	path := databasePath(cfg)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	db, err := store.Open(ctx, path)
	if err != nil {
		return err
	}
	saved := func(id cay.SnapshotID) bool {
		_, _, err := m.snapshots.Get(id)
		return err == nil
	}
	return errors.Join(control.RecordDown(ctx, db, saved), db.Close())
}

func endAll(ctx context.Context, m *machine) error {
	all, err := m.engine.List(ctx)
	if err != nil {
		return err
	}
	var kills errgroup.Group
	kills.SetLimit(killsAtOnce)
	for _, id := range all {
		kills.Go(func() error { return m.engine.Kill(ctx, id) })
	}
	return kills.Wait()
}

// emptyDir removes what is in a directory.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}
