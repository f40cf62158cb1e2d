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

// letGo closes such a file.
func letGo(path string) error {
	held.Lock()
	defer held.Unlock()
	f := held.files[path]
	delete(held.files, path)
	return f.Close()
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

// alone makes a file that must not be there.
func alone(r *http.Request) (string, error) {
	f, err := os.OpenFile(r.FormValue("path"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	return "", f.Close()
}

// modeAndSize is what a path is: its mode and size.
func modeAndSize(r *http.Request) (string, error) {
	info, err := os.Stat(r.FormValue("path"))
	if err != nil {
		return "", err
	}
	return fmt.Sprint(info.Mode(), " ", info.Size()), nil
}

// move renames, into a directory that is kept where one is given; unlink removes a
// name from one that is kept; chmod changes a mode, given in octal.
func move(r *http.Request) (string, error) {
	into := r.FormValue("into")
	if into == "" {
		return "", os.Rename(r.FormValue("path"), r.FormValue("to"))
	}
	return "", inKept(into, func(dir int) error {
		return unix.Renameat(unix.AT_FDCWD, r.FormValue("path"), dir, r.FormValue("to"))
	})
}

func unlink(r *http.Request) (string, error) {
	return "", inKept(r.FormValue("from"), func(dir int) error { return unix.Unlinkat(dir, r.FormValue("name"), 0) })
}

// inKept does something with the descriptor of a directory that is kept.
func inKept(path string, do func(dir int) error) error {
	held.Lock()
	defer held.Unlock()
	dir := held.files[path]
	if dir == nil {
		return errors.New("it is not kept")
	}
	return do(int(dir.Fd()))
}

func link(r *http.Request) (string, error) {
	return "", os.Link(r.FormValue("path"), r.FormValue("to"))
}

func chmod(r *http.Request) (string, error) {
	mode, err := strconv.ParseUint(r.FormValue("mode"), 8, 9)
	if err != nil {
		return "", err
	}
	return "", os.Chmod(r.FormValue("path"), os.FileMode(mode))
}

// opens tries in a directory what O_CREAT does to each kind of file that is
// there, and that what a sandbox changes itself is so at once. It says what went
// wrong.
func opens(r *http.Request) (string, error) {
	dir := r.FormValue("path") + "/"
	open := func(name string, flags int, want error) error {
		f, err := os.OpenFile(dir+name, flags, 0o644)
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, want) {
			return fmt.Errorf("%s opened with %#x: %v, want %v", name, flags, err, want)
		}
		return nil
	}
	holds := func(name, text string) error {
		got, err := os.ReadFile(dir + name)
		if err == nil && string(got) != text {
			err = fmt.Errorf("%s holds %q, want %q", name, got, text)
		}
		return err
	}
	put := func(name string) error { return os.WriteFile(dir+name, []byte(name), 0o644) }
	const create, writing = os.O_CREATE, os.O_CREATE | os.O_WRONLY
	for i, step := range []func() error{
		func() error {
			return errors.Join(os.Mkdir(dir+"d", 0o755), put("there"), os.Symlink("there", dir+"link"))
		},
		func() error { return errors.Join(os.Symlink("later", dir+"dangles"), os.Symlink("d", dir+"dir-link")) },
		func() error { return errors.Join(open("there", create, nil), holds("there", "there")) },
		func() error { return errors.Join(open("link", writing, nil), holds("there", "there")) },
		func() error { return open("there", writing|os.O_EXCL, unix.EEXIST) },
		func() error { return open("link", writing|os.O_EXCL, unix.EEXIST) },
		func() error { return open("dangles", writing|os.O_EXCL, unix.EEXIST) },
		func() error { return errors.Join(open("dangles", writing, nil), holds("later", "")) },
		func() error { return open("d", writing, unix.EISDIR) },
		func() error { return open("dir-link", writing, unix.EISDIR) },
		func() error { return open(".", writing, unix.EISDIR) },
		func() error { return open("there/x", writing, unix.ENOTDIR) },
		func() error { return open("nowhere/x", writing, unix.ENOENT) },
		func() error { return errors.Join(open("there", writing|os.O_TRUNC, nil), holds("there", "")) },
		// Directories that this sandbox itself moves, removes and makes anew.
		func() error { return errors.Join(put("d/one"), os.Rename(dir+"d", dir+"e"), holds("e/one", "d/one")) },
		func() error {
			return errors.Join(open("d/one", os.O_RDONLY, unix.ENOENT), open("d/two", writing, unix.ENOENT))
		},
		func() error {
			return errors.Join(os.Mkdir(dir+"d", 0o700), put("d/two"), open("d/one", os.O_RDONLY, unix.ENOENT))
		},
		func() error { return errors.Join(os.RemoveAll(dir+"d"), open("d/two", writing, unix.ENOENT)) },
		func() error { return errors.Join(os.Symlink("e", dir+"d"), holds("d/one", "d/one")) },
	} {
		if err := step(); err != nil {
			return "", fmt.Errorf("step %d: %w", i, err)
		}
	}
	return "", nil
}
