package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// shape makes, below /srv and /etc, one of everything that a file system may
// hold, and removes what the image has there.
func shape(*http.Request) (string, error) {
	link := func(old, name string) func() error { return func() error { return os.Link(old, name) } }
	steps := []func() error{
		func() error { return os.Remove("/etc/old") },
		func() error { return os.RemoveAll("/srv") }, // and made again: it hides the image's
		func() error { return os.Mkdir("/srv", 0o751) },
		func() error { return os.MkdirAll("/srv/deep/er", 0o700) },
		func() error { return os.WriteFile("/srv/empty", nil, 0o600) },
		func() error { return os.WriteFile("/srv/one", []byte("one"), 0o644) },
		link("/srv/one", "/srv/two"),
		link("/srv/one", "/srv/deep/three"),
		func() error { return os.Symlink("../nowhere", "/srv/dangling") },
		func() error { return os.WriteFile("/srv/set", []byte("#!"), 0o755) },
		func() error { return os.Chown("/srv/set", 1000, 1001) },
		func() error { return os.Chmod("/srv/set", 0o755|os.ModeSetuid|os.ModeSetgid) },
		func() error { return os.Chmod("/srv/deep", 0o777|os.ModeSticky) },
		func() error { return unix.Setxattr("/srv/one", "user.note", []byte("kept"), 0) },
		func() error { return unix.Setxattr("/srv/deep", "user.dir", []byte("kept too"), 0) },
		func() error { return unix.Mkfifo("/srv/fifo", 0o640) },
		func() error { return os.Mkdir("/srv/.wh.odd", 0o755) },
		func() error { return os.WriteFile("/srv/new\nline \xff", []byte("odd name"), 0o644) },
		func() error { return sparse("/srv/sparse", 8<<30) },
		func() error { return os.Rename("/etc/hosts", "/etc/moved") },
		func() error { return os.Chmod("/guest-suid", 0o700) }, // the image's, changed in its mode only
		func() error { return os.Chtimes("/srv/one", when, when) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return "", fmt.Errorf("step %d: %w", i, err)
		}
	}
	return "", nil
}

// sparse makes a file with a hole in it that is larger than the disk.
func sparse(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("after the hole"), size)
	if err == nil {
		_, err = f.WriteAt([]byte("before it"), 4095)
	}
	return errors.Join(err, f.Close())
}

// tree describes all files of the root, a line each: what a snapshot must
// bring back.
func tree(*http.Request) (string, error) {
	var lines []string
	first := map[uint64]string{} // the name by which a file with several was met
	err := filepath.WalkDir("/", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch path {
		case "/proc", "/sys", "/dev", "/.cay":
			return fs.SkipDir
		}
		line, err := describe(path, first)
		lines = append(lines, line)
		return err
	})
	sort.Strings(lines)
	return strings.Join(lines, "\n"), err
}

func describe(path string, first map[uint64]string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	st := info.Sys().(*syscall.Stat_t)
	line := fmt.Sprintf("%q %s %d:%d", path, info.Mode(), st.Uid, st.Gid)
	switch info.Mode().Type() {
	case 0:
		sum, err := digest(path)
		if err != nil {
			return "", err
		}
		same, met := first[st.Ino]
		if !met {
			first[st.Ino] = path
		}
		line += fmt.Sprintf(" %d bytes %s links %d %q", info.Size(), sum, st.Nlink, same)
		if info.Size() > 1<<30 && st.Blocks*512 > 1<<20 {
			line += " has no hole"
		}
		if path == "/srv/one" {
			line += info.ModTime().UTC().String()
		}
	case os.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		line += " " + target
	}
	for _, name := range []string{"user.note", "user.dir"} {
		value := make([]byte, 100)
		if n, err := unix.Lgetxattr(path, name, value); err == nil {
			line += fmt.Sprintf(" %s=%s", name, value[:n])
		}
	}
	return line, nil
}

// digest reads a file; of one with a hole only the ends.
func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, 16<<20); err == nil {
		if _, err := f.Seek(-1<<20, io.SeekEnd); err != nil {
			return "", err
		}
		_, err = io.Copy(sum, f)
		return fmt.Sprintf("%x", sum.Sum(nil)), err
	} else if err != io.EOF {
		return "", err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}
