package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Room that the database and its log have on the disk beyond what is in them:
// with it the ends, timeouts and events of sandboxes are recorded on a disk
// that is full. The log needs the most of it; it is copied back and begun anew
// when it is longLog pages long, and more while many commits come at once.
const (
	spareDatabase = 16 << 20
	spareLog      = 32 << 20
	spareIndex    = 512 << 10 // of the log: 32 KB for every 4096 pages
)

// space keeps room on the disk for the database.
type space struct {
	path string
	// main and index are open as long as the database is: closing a file drops
	// the locks that this process holds on it, SQLite's as well.
	main, index *os.File
}

func openSpace(path string) (*space, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &space{path: path, main: f}, nil
}

// keep allocates the room that lacks. One goroutine at a time calls it. On a disk
// that is full, or cannot allocate, it asks again the next time.
func (s *space) keep() {
	if st, err := s.main.Stat(); err == nil {
		_ = allocate(s.main, st.Size()+spareDatabase)
	}
	if s.index == nil {
		s.index, _ = os.OpenFile(s.path+"-shm", os.O_RDWR, 0)
	}
	if s.index != nil {
		_ = allocate(s.index, spareIndex)
	}
	log, err := os.OpenFile(s.path+"-wal", os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer log.Close() // SQLite locks the other files, not the log
	_ = allocate(log, spareLog)
}

// allocate gives a file all the blocks of its first bytes, and leaves its size
// as it is.
func allocate(f *os.File, bytes int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, bytes)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (s *space) close() error {
	err := s.main.Close()
	if s.index != nil {
		err = errors.Join(err, s.index.Close())
	}
	return err
}
