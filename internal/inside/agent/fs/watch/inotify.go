package watch

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// drain reads the kernel's queue until it is empty.
func (w *Watcher) drain(fd int) {
	for {
		n, err := unix.Read(fd, w.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 { // EAGAIN: empty
			break
		}
		w.parse(fd, w.buf[:n])
	}
	clear(w.found)
}

// parse handles the events of one read, which are whole.
func (w *Watcher) parse(fd int, b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(b))
		bits := binary.NativeEndian.Uint32(b[4:])
		cookie := binary.NativeEndian.Uint32(b[8:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			return
		}
		name := strings.TrimRight(string(b[:size]), "\x00")
		b = b[size:]
		w.handle(fd, wd, bits, cookie, name)
	}
}

// handle takes one event of the kernel.
func (w *Watcher) handle(fd int, wd int32, bits, cookie uint32, name string) {
	if bits&unix.IN_Q_OVERFLOW != 0 {
		w.lose()
		for wd := range w.leaving { // the rest of their renames may be lost
			w.left(fd, wd)
		}
		if w.recursive { // directories may have come unseen
			w.scan(fd, "", false)
		}
		return
	}
	if bits&unix.IN_IGNORED != 0 {
		w.tree.forget(wd)
		delete(w.leaving, wd)
		return
	}
	dir, ok := w.tree.path(wd)
	if !ok {
		return
	}
	if name == "" {
		switch _, leaves := w.leaving[wd]; {
		case dir == "": // others are reported by their parents
			w.self(bits)
		case leaves && bits&unix.IN_MOVE_SELF != 0:
			w.left(fd, wd)
		}
		return
	}
	child := filepath.Join(dir, name)
	isDir := w.recursive && bits&unix.IN_ISDIR != 0
	switch {
	case bits&unix.IN_CREATE != 0:
		if w.emit(child, Create) && isDir {
			w.scan(fd, child, true)
		}
	case bits&unix.IN_MOVED_TO != 0:
		w.arrive(fd, child, cookie, isDir)
	case bits&unix.IN_MOVED_FROM != 0:
		w.emit(child, Rename)
		if moved, watched := w.tree.wds[child]; watched && isDir {
			w.leaving[moved] = cookie
		}
	case bits&unix.IN_ATTRIB != 0:
		w.emit(child, Chmod)
	case bits&unix.IN_MODIFY != 0:
		w.emit(child, Write)
	case bits&unix.IN_DELETE != 0:
		w.emit(child, Remove)
	}
}

// self reports what happened to the watched directory itself.
func (w *Watcher) self(bits uint32) {
	switch {
	case bits&unix.IN_ATTRIB != 0:
		w.emit(".", Chmod)
	case bits&unix.IN_DELETE_SELF != 0:
		w.emit(".", Remove)
	case bits&unix.IN_MOVE_SELF != 0:
		w.emit(".", Rename)
	}
}

// arrive handles the second half of a rename. A directory that moved inside
// the tree keeps its watches, so it has no gap; one from outside is as good
// as new.
func (w *Watcher) arrive(fd int, name string, cookie uint32, isDir bool) {
	fresh := w.emit(name, Create)
	if !isDir {
		return
	}
	for wd, of := range w.leaving {
		from, ok := w.tree.path(wd)
		if of != cookie || !ok {
			continue
		}
		w.tree.rebase(from, name)
		delete(w.leaving, wd)
		return
	}
	if fresh {
		w.scan(fd, name, true)
	}
}

// left drops the watches of a directory that left the tree. The kernel tells
// the directory itself last that it moved, so an arrival would be known by now.
func (w *Watcher) left(fd int, wd int32) {
	delete(w.leaving, wd)
	path, ok := w.tree.path(wd)
	if !ok {
		return
	}
	for _, below := range w.tree.drop(path) {
		delete(w.leaving, below)
		_, _ = unix.InotifyRmWatch(fd, uint32(below)) // may be gone already
	}
}

// scan watches the directories at and below dir, and reports what is in them
// if asked. Each directory is watched before it is read, so a file that
// appears later makes an event; one that appears in between makes both, and found lets
// only one through.
func (w *Watcher) scan(fd int, dir string, report bool) {
	if dir != "" {
		if err := w.add(fd, dir); err != nil {
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
				w.lose()
			}
			return
		}
	}
	entries, err := os.ReadDir(filepath.Join(w.root, dir))
	if err != nil {
		return // gone again
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if report {
			w.report(name, e)
		}
		if e.IsDir() {
			w.scan(fd, name, report)
		}
	}
}

// report queues what a scan found.
func (w *Watcher) report(name string, e fs.DirEntry) {
	if w.found[name]&Create != 0 {
		return
	}
	w.emit(name, Create)
	w.found[name] |= Create
	if st, err := e.Info(); err == nil && st.Mode().IsRegular() && st.Size() > 0 {
		w.emit(name, Write)
		w.found[name] |= Write
	}
}

// add puts a watch on a directory of the tree.
func (w *Watcher) add(fd int, dir string) error {
	flags := uint32(mask)
	if dir != "" {
		flags |= unix.IN_DONT_FOLLOW
	}
	if w.tree.len() >= maxDirs {
		return ErrLost
	}
	path := filepath.Join(w.root, dir)
	wd, err := unix.InotifyAddWatch(fd, path, flags)
	if err != nil {
		return &fs.PathError{Op: "watch", Path: path, Err: err}
	}
	w.tree.set(int32(wd), dir)
	return nil
}
