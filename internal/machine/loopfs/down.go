package loopfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/loopdev"
)

// Down returns an error where the file system of a data directory has shut
// itself down, as XFS does when the disk below loses what it wrote: whatever
// reads or writes there then fails, with nothing that says why. It costs the
// directory's being opened.
func Down(dir string) error {
	d, err := os.Open(dir)
	if err == nil {
		defer d.Close()
		_, err = d.Readdirnames(1)
	}
	if err == nil || err == io.EOF || !errors.Is(err, unix.EIO) {
		return nil
	}
	down := cay.Wrap(cay.Internal, err, "the file system of the data directory %s is down: the disk below it failed, or is full", dir).
		WithCode(cay.CodeStorageDown)
	const look = "see what the kernel says of the disk (dmesg); "
	if _, mounted := device(dir); mounted {
		return down.WithHint(look+"then `cay down` and `cay up`, which mounts it anew. Where that fails: xfs_repair %s/%s", dir, fileName)
	}
	return down.WithHint(look + "then `cay down`, unmount it, repair it (xfs_repair, fsck), mount it again, and `cay up`")
}

// attachNew is attach that does not take a file system that is down for a good
// one: as long as any namespace has it mounted, mounting the file again only
// shows the same.
func attachNew(ctx context.Context, file, dir string) error {
	for begun := time.Now(); ; {
		if err := attach(file, dir); err != nil {
			return err
		}
		down := Down(dir)
		if down == nil {
			return nil
		}
		name, _ := device(dir)
		if err := unmount(ctx, dir); err != nil {
			return errors.Join(down, err)
		}
		if time.Since(begun) > busyTime || ctx.Err() != nil {
			return cay.Wrap(cay.Conflict, down, "the file system of the data directory %s is down, and others have it mounted yet: %s", dir, keepers(name)).
				WithCode(cay.CodeStorageDown).WithHint("end them, or start the machine anew")
		}
		time.Sleep(pollEvery)
	}
}

// keepersMost is how many are named.
const keepersMost = 5

// keepers names processes that have a block device mounted.
func keepers(name string) string {
	number, err := os.ReadFile(filepath.Join(loopdev.SysBlock, name, "dev"))
	if err != nil {
		return "none that can be seen"
	}
	column := " " + strings.TrimSpace(string(number)) + " "
	all, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	var found []string
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), column) {
			continue
		}
		if len(found) == keepersMost {
			return strings.Join(append(found, "more"), ", ")
		}
		comm, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "comm"))
		found = append(found, fmt.Sprintf("process %s (%s)", filepath.Base(filepath.Dir(path)), strings.TrimSpace(string(comm))))
	}
	if len(found) == 0 {
		return "none that can be seen"
	}
	return strings.Join(found, ", ")
}
