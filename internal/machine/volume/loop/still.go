package loop

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	// stillTime is how long the one that copies a volume waits for its writes to
	// stop, and for another that copies it.
	stillTime = 30 * time.Second

	// stillRoom is how many bytes the disk must have free before: XFS stops once it
	// has written all its metadata, of which its log holds so much, and waits where
	// the disk has no room. The writes of guests would wait with it.
	stillRoom = 64 << 20
)

// still calls do while the file system of a volume takes no writes. It writes most
// of the dirty pages before. above is a directory on the disk that has
// the volume.
func (v *vol) still(ctx context.Context, root, above string, do func() error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, stillTime)
	defer cancel()
	if err := v.frozen.lock(ctx); err != nil {
		return cay.Wrap(cay.Unavailable, err, "another copy of the volume waits for the disk")
	}
	d, err := os.Open(root)
	if err != nil {
		v.frozen.unlock()
		return disk.Error(err, "open a volume")
	}
	goOn := func(stopped error) error {
		defer v.frozen.unlock()
		defer d.Close()
		if stopped == nil {
			return thaw(d)
		}
		return nil
	}
	// The kernel waits for the disk as long as it takes; the caller waits no longer
	// than its context.
	result := make(chan error, 1)
	go func() { result <- stop(d, above) }()
	select {
	case err = <-result:
	case <-ctx.Done():
		go func() { _ = goOn(<-result) }()
		return cay.Wrap(cay.Unavailable, ctx.Err(), "the disk does not take what a volume has to write before it is copied")
	}
	stopped := err
	defer func() {
		if e := goOn(stopped); e != nil {
			err = errors.Join(err, cay.Wrap(cay.Internal, e, "let the writes of a volume go on"))
		}
	}()
	if stopped != nil {
		return stopped
	}
	return do()
}

// stop has a file system write what it has to, and take no more.
func stop(d *os.File, above string) error {
	err := unix.Syncfs(int(d.Fd()))
	if err != nil { // which may be of a write that a full disk refused before, and is told once
		err = unix.Syncfs(int(d.Fd()))
	}
	if err != nil {
		return disk.Error(&fs.PathError{Op: "sync", Path: above, Err: err}, "sync a volume")
	}
	if err := disk.Room(above, "the log of a volume, which is written before a copy,", stillRoom); err != nil {
		return err
	}
	if err := freeze(d); err != nil {
		return cay.Wrap(cay.Internal, err, "hold the writes of a volume")
	}
	return nil
}

// turn is a lock whose next holder need not wait for ever.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) unlock() { <-t }
