package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/disk"
)

// epoch is the time of all files that a builder writes itself.
var epoch = time.Date(2020, time.January, 1, 0, 0, 0, 0, time.UTC)

// personalise puts an image's own files over its tree. Authorities are
// installed by the tree's own program, which also makes the links by which
// OpenSSL finds them; the bundle is then written again as the host has it.
func personalise(ctx context.Context, tree string, files []File) error {
	dropped, err := dropAuthorities(tree, files)
	if err != nil {
		return err
	}
	if err := quickProfile(tree); err != nil {
		return err
	}
	if err := services(tree); err != nil {
		return err
	}
	changed, err := write(tree, files)
	if err != nil {
		return err
	}
	trust := slices.ContainsFunc(changed, func(path string) bool {
		return path == bundlePath || filepath.Dir(path) == localAuthorities
	})
	if !dropped && !trust {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(tree, "usr/sbin/update-ca-certificates")); err != nil {
		return nil // nothing in this tree uses the links
	}
	if err := inTree(ctx, tree, "update-ca-certificates --fresh", nil); err != nil {
		return err
	}
	_, err = write(tree, files)
	return err
}

// quickProfile has a login shell of Debian's ask itself for the account instead
// of starting a program: each command of the SDKs is run by one, and a fork with
// an exec is the dearest thing that it does in a sandbox. Shells that know no
// EUID, as dash, start the program as before. A profile of another make is left.
func quickProfile(tree string) error {
	const debian, quick = `[ "$(id -u)" -eq 0 ]`, `[ "${EUID:-$(id -u)}" -eq 0 ]`
	path := filepath.Join(tree, "etc/profile")
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() {
		return nil // it has none of its own
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return disk.Error(err, "read %s", path)
	}
	text := bytes.Replace(old, []byte(debian), []byte(quick), 1)
	if bytes.Equal(text, old) {
		return nil
	}
	_, err = write(tree, []File{{Path: "/etc/profile", Mode: st.Mode().Perm(), Data: text}})
	return err
}

// services has systemctl and journalctl be the agent's, and init, without which
// Debian's packages start nothing (ADR 75). Packages that bring systemd find the
// names taken, by diversions as an administrator makes them, and put their own
// beside them.
func services(tree string) error {
	const diversions = "var/lib/dpkg/diversions"
	old, err := os.ReadFile(filepath.Join(tree, diversions))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no Debian
	}
	if err != nil {
		return disk.Error(err, "read the diversions of the tree")
	}
	text := string(old)
	for _, name := range []string{"bin/systemctl", "bin/journalctl", "sbin/init"} {
		for _, from := range []string{"/" + name, "/usr/" + name} { // packages name either, and the two are one
			if !strings.Contains("\n"+text, "\n"+from+"\n") {
				text += from + "\n" + from + ".systemd\n:\n"
			}
		}
		path := filepath.Join(tree, "usr", name)
		if to, err := os.Readlink(path); err == nil && to == guest.AgentPath {
			continue
		}
		if err := os.Rename(path, path+".systemd"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return disk.Error(err, "put %s aside", name)
		}
		if err := os.Symlink(guest.AgentPath, path); err != nil {
			return disk.Error(err, "link %s to the agent", name)
		}
	}
	_, err = write(tree, []File{{Path: "/" + diversions, Mode: 0o644, Data: []byte(text)}})
	return err
}

// dropAuthorities removes those that the host trusted once and no longer.
func dropAuthorities(tree string, files []File) (dropped bool, err error) {
	old, _ := filepath.Glob(filepath.Join(tree, localAuthorities, "*.crt"))
	for _, path := range old {
		rel := strings.TrimPrefix(path, filepath.Clean(tree))
		if slices.ContainsFunc(files, func(f File) bool { return f.Path == rel }) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return dropped, disk.Error(err, "remove %s", path)
		}
		dropped = true
	}
	return dropped, nil
}

// write writes files below a tree and never outside it, whatever links the
// tree holds, and returns the paths of those that were not like that before.
func write(tree string, files []File) (changed []string, err error) {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return nil, disk.Error(err, "open the tree")
	}
	defer root.Close()
	for _, f := range files {
		path := strings.TrimPrefix(filepath.Clean(f.Path), "/")
		if same(root, path, f) {
			continue
		}
		if err := replace(root, path, f); err != nil {
			return changed, disk.Error(err, "write %s into the tree", f.Path)
		}
		changed = append(changed, f.Path)
	}
	return changed, nil
}

func same(root *os.Root, path string, f File) bool {
	st, err := root.Lstat(path)
	if err != nil || st.Mode() != f.Mode || st.Size() != int64(len(f.Data)) {
		return false
	}
	data, err := root.ReadFile(path)
	return err == nil && bytes.Equal(data, f.Data)
}

func replace(root *os.Root, path string, f File) error {
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := root.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.WriteFile(path, f.Data, 0o600); err != nil {
		return err
	}
	if err := root.Chmod(path, f.Mode); err != nil { // not masked by umask
		return err
	}
	return root.Chtimes(path, epoch, epoch)
}
