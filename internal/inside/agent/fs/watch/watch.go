// Package watch reports what changes in a directory, over inotify.
//
// It reads inotify itself, not through a library, for two promises that need
// the raw queue: what happened before a call of Take is in its answer, and
// nothing that happens in a directory made under a recursive watch is missed,
// however soon it happens.
package watch

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Limits of one watcher.
const (
	// MaxQueued bounds the events that wait for Take.
	MaxQueued = 16384
	// maxDirs bounds the directories of a recursive watcher.
	maxDirs = 65536
)

// ErrLost says that events came faster than they were taken, or that there
// were more directories than can be watched: some events are lost.
var ErrLost = errors.New("too many events or directories: some events are lost")

// Op is what happened to a path.
type Op uint8

// The operations. A rename inside the watched tree is a Rename of the old
// name and a Create of the new one.
const (
	Create Op = 1 << iota
	Rename
	Chmod
	Write
	Remove
)

// Event is one change. Name is relative to the watched directory, "." for the
// directory itself.
type Event struct {
	Name string
	Op   Op
}

const (
	mask = unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE |
		unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
		unix.IN_ONLYDIR
	bufSize = 64 << 10
)

// Watcher collects the events of one directory, or of it and all below it.
type Watcher struct {
	root      string
	recursive bool
	ready     chan struct{}
	done      chan struct{}
	file      *os.File

	mu    sync.Mutex
	buf   []byte
	tree  tree
	queue []Event
	lost  bool
	// found holds what scans of new directories reported whose own events
	// may still be in the kernel's queue; it lives until that is empty.
	found map[string]Op
	// leaving holds directories that left their place and may arrive at
	// another: watch descriptors, with the cookies of their renames. The two
	// halves of a rename come one after the other, and any number of reads and
	// of other events may be between them.
	leaving map[int32]uint32
}

// Open watches the directory at root, which may be a symbolic link to one.
// Links below it are not followed.
func Open(root string, recursive bool) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &Watcher{
		root:      root,
		recursive: recursive,
		ready:     make(chan struct{}, 1),
		done:      make(chan struct{}),
		file:      os.NewFile(uintptr(fd), "inotify"),
		buf:       make([]byte, bufSize),
		tree:      newTree(),
		found:     map[string]Op{},
		leaving:   map[int32]uint32{},
	}
	if err := w.add(fd, ""); err != nil {
		_ = w.file.Close()
		return nil, err
	}
	if recursive {
		w.scan(fd, "", false)
	}
	if w.lost {
		_ = w.file.Close()
		return nil, ErrLost
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		_ = w.file.Close()
		return nil, err
	}
	go func() {
		defer close(w.done)
		// Read returns when the file is closed.
		_ = conn.Read(func(fd uintptr) bool {
			w.mu.Lock()
			w.drain(int(fd))
			some := len(w.queue) > 0 || w.lost
			w.mu.Unlock()
			if some {
				w.wake()
			}
			return false
		})
	}()
	return w, nil
}

// Ready receives when Take has something to return.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

func (w *Watcher) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// Take returns the events since the last call, all that happened before this
// call among them. The error is ErrLost once after events were lost; the
// watcher goes on.
func (w *Watcher) Take() ([]Event, error) {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := conn.Control(func(fd uintptr) { w.drain(int(fd)) }); err != nil {
		return nil, err
	}
	events := w.queue
	w.queue = nil
	if w.lost {
		w.lost = false
		return nil, ErrLost
	}
	return events, nil
}

// Close ends the watch and frees what it holds.
func (w *Watcher) Close() error {
	err := w.file.Close()
	<-w.done
	return err
}

// emit queues an event, unless a scan has reported it already. It says
// whether the event is news.
func (w *Watcher) emit(name string, op Op) bool {
	if w.found[name]&op != 0 {
		w.found[name] &^= op
		return false
	}
	e := Event{Name: name, Op: op}
	switch {
	case w.lost:
	case len(w.queue) > 0 && w.queue[len(w.queue)-1] == e:
		// The kernel merges equal neighbours in its own queue too.
	case len(w.queue) >= MaxQueued:
		w.lose()
	default:
		w.queue = append(w.queue, e)
	}
	return true
}

// lose gives up on what is queued: a list with a hole in it is worth nothing.
func (w *Watcher) lose() {
	w.lost = true
	w.queue = nil
}
