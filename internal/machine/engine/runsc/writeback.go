package runsc

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// pagesName is the file of a checkpoint that is large.
const pagesName = "pages.img"

// writebackPause is how often the disk is given what came meanwhile.
const writebackPause = 10 * time.Millisecond

// writeBack has the disk begin with a checkpoint's pages while the engine is
// still writing them, so that little is left to wait for when they are synced.
// It ends with the returned function. It is a hint only: that they are on disk
// is for seal to say, and errors are for seal to find.
func writeBack(dir string) (stop func()) {
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(writebackPause)
		defer tick.Stop()
		var f *os.File
		for {
			select {
			case <-over:
				if f != nil {
					f.Close()
				}
				return
			case <-tick.C:
			}
			if f == nil {
				f, _ = os.Open(filepath.Join(dir, pagesName)) // soon, if not yet
				continue
			}
			_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
		}
	}()
	return func() { close(over); <-gone }
}
