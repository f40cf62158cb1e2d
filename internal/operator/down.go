package operator

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/control/lifecycle"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/loopfs"
)

// Down stops the running server, if there is one, ends all sandboxes and
// removes what Cay made on this host: containers, network, mounts, run
// directory. Data stays: templates, keys, records. It may be called again. open
// opens the machine, host.Open.
func Down(ctx context.Context, cfg config.Config, open host.Opener, log *slog.Logger) error {
	if log == nil {
		log = slog.Default()
	}
	at := Host(cfg)
	if _, err := os.Stat(at.Data); errors.Is(err, os.ErrNotExist) {
		return nil // nothing was ever started here
	}
	if down := loopfs.Down(at.Data); down != nil {
		log.ErrorContext(ctx, down.Error())
		if err := host.LetGo(ctx, at); err != nil {
			return err
		}
	}
	if err := errors.Join(loopfs.Mount(ctx, at.Data), host.Stop(ctx, at.Data)); err != nil {
		return err
	}
	if err := end(ctx, cfg, open, log); err != nil {
		return err
	}
	return loopfs.Unmount(ctx, at.Data)
}

// end is Down of a machine whose server has ended.
func end(ctx context.Context, cfg config.Config, open host.Opener, log *slog.Logger) error {
	at := Host(cfg)
	lock, err := host.Take(ctx, at)
	if err != nil {
		return err
	}
	defer lock.Close()
	m, err := open(ctx, at, log)
	if err != nil {
		return err
	}
	// Records that cannot be written keep no sandbox alive: the next server
	// finds that its instance is gone, and records that.
	unrecorded := recordDown(ctx, cfg, m)
	if err := m.Remove(ctx, at); err != nil {
		return errors.Join(err, unrecorded)
	}
	if unrecorded != nil {
		return cay.Wrap(cay.KindOf(unrecorded), unrecorded, "all sandboxes have ended; why they did could not be recorded").
			WithHint("the next start records them as lost with the host; paused sandboxes are kept")
	}
	return nil
}

// recordDown records why the sandboxes end.
func recordDown(ctx context.Context, cfg config.Config, m *host.Machine) error {
	if !HasRecords(cfg) {
		return nil
	}
	key, err := seal.Open(cfg.Data)
	if err != nil {
		return err
	}
	db, err := OpenRecords(ctx, cfg, key)
	if err != nil {
		return err
	}
	lease, err := TakeLease(ctx, cfg, db)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	saved := func(id cay.SnapshotID) bool {
		_, err := m.Snapshots.Record(id)
		return err == nil
	}
	return errors.Join(lifecycle.RecordDown(ctx, db, lease.clustered(), saved), lease.Leave(ctx), db.Close())
}
