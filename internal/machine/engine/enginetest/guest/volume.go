package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// bind has a directory appear at another path too, as the agent does it with
// volumes; with flags it then sets those of the mount.
func bind(r *http.Request) (string, error) {
	fd, err := unix.Open(r.FormValue("path"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := unix.Mount(r.FormValue("source"), "/proc/self/fd/"+strconv.Itoa(fd), "", unix.MS_BIND, ""); err != nil {
		return "", err
	}
	if r.FormValue("readonly") == "" {
		return "", nil
	}
	return "", unix.Mount("", r.FormValue("path"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, "")
}

func unbind(r *http.Request) (string, error) {
	return "", unix.Unmount(r.FormValue("path"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// held are files that stay open, through what is saved and restored too.
var held = struct {
	sync.Mutex
	files map[string]*os.File
}{files: map[string]*os.File{}}

// keep opens a file, or a directory, and leaves it open.
func keep(r *http.Request) (string, error) {
	held.Lock()
	defer held.Unlock()
	path, mode := r.FormValue("path"), os.O_RDWR|os.O_CREATE
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		mode = os.O_RDONLY
	}
	f, err := os.OpenFile(path, mode, 0o644)
	if err != nil {
		return "", err
	}
	held.files[path] = f
	return "", nil
}

// kept uses such a file: it appends a text, if there is one, and returns all that
// the file holds, or the names in a directory.
func kept(r *http.Request) (string, error) {
	held.Lock()
	defer held.Unlock()
	f := held.files[r.FormValue("path")]
	if f == nil {
		return "", errors.New("it is not kept")
	}
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
		names, err := f.Readdirnames(-1)
		return fmt.Sprint(len(names)), err
	}
	if text := r.FormValue("text"); text != "" {
		if _, err := f.WriteAt([]byte(text), info.Size()); err != nil {
			return "", err
		}
	}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
	return string(text), err
}

// lock takes a lock of a file that is kept, without waiting: with flock, or with
// fcntl.
func lock(r *http.Request) (string, error) {
	held.Lock()
	defer held.Unlock()
	f := held.files[r.FormValue("path")]
	if f == nil {
		return "", errors.New("it is not kept")
	}
	if r.FormValue("with") == "flock" {
		return "", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return "", unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 1})
}

// alone makes a file that must not be there.
func alone(r *http.Request) (string, error) {
	f, err := os.OpenFile(r.FormValue("path"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	return "", f.Close()
}
