package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent/user"
)

// mounter is an agent in a directory that stands for the sandbox, whose
// reserved mount has two volumes.
func mounter(t *testing.T) (a *Agent, root string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	root = t.TempDir()
	for _, dir := range []string{".cay/volumes/0", ".cay/volumes/1", "etc", "proc/deep", "mnt/full"} {
		ok(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for name, text := range map[string]string{
		".cay/volumes/0/name": "zero", ".cay/volumes/1/name": "one", "mnt/full/below": "below", "mnt/file": "file",
		"etc/passwd": "user:x:1000:1000::/home/user:/bin/sh\n",
	} {
		ok(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	a = &Agent{cfg: Config{Root: root}, users: user.Open(root), defaultUser: guest.User}
	t.Cleanup(func() { ok(t, a.remount(nil)) })
	return a, root
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func shows(t *testing.T, root, name, want string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if string(text) != want {
		t.Errorf("%s holds %q, want %q (%v)", name, text, want, err)
	}
}

func volumeAt(n, path string, readOnly bool) guest.Mount {
	return guest.Mount{Source: "/.cay/volumes/" + n, Path: path, ReadOnly: readOnly}
}

func TestRemount(t *testing.T) {
	a, root := mounter(t)
	first := []guest.Mount{volumeAt("0", "/mnt/full", false), volumeAt("1", "/data/deep", true)}
	for range 2 { // a resume tells the same again
		ok(t, a.remount(first))
		shows(t, root, "mnt/full/name", "zero")
		shows(t, root, "data/deep/name", "one")
	}
	shows(t, root, "mnt/full/below", "") // it is hidden
	if err := os.WriteFile(filepath.Join(root, "data/deep/x"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write to a read-only mount: %v", err)
	}
	ok(t, os.WriteFile(filepath.Join(root, "mnt/full/x"), nil, 0o644))
	info, err := os.Stat(filepath.Join(root, "data"))
	ok(t, err)
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 1000 || owner.Gid != 1000 {
		t.Errorf("what was made is of %d:%d", owner.Uid, owner.Gid)
	}

	ok(t, a.remount([]guest.Mount{volumeAt("0", "/mnt/full", false), volumeAt("1", "/mnt/other", false)}))
	shows(t, root, "mnt/full/name", "zero")
	shows(t, root, "mnt/other/name", "one")
	shows(t, root, "data/deep/name", "")
	ok(t, a.remount(nil))
	shows(t, root, "mnt/full/below", "below")
	shows(t, root, "mnt/full/name", "")
	shows(t, root, ".cay/volumes/0/name", "zero")
}

// A refusal names the path, and nothing of the call is left.
func TestRemountRefuses(t *testing.T) {
	a, root := mounter(t)
	ok(t, os.Symlink("../proc/deep", filepath.Join(root, "mnt/link")))
	ok(t, os.Symlink("full", filepath.Join(root, "mnt/fine")))
	ok(t, a.remount([]guest.Mount{volumeAt("0", "/mnt/fine", false)})) // a link is followed
	shows(t, root, "mnt/full/name", "zero")
	before := []guest.Mount{volumeAt("0", "/mnt/fine", false)}
	for _, path := range []string{"/mnt/file", "/mnt/file/below", "/mnt/link"} {
		err := a.remount(append(before[:1:1], volumeAt("1", "/mnt/good", false), volumeAt("1", path, false)))
		var refused *mountError
		if !errors.As(err, &refused) || refused.path != path {
			t.Errorf("%s: %v", path, err)
		}
		shows(t, root, "mnt/good/name", "")
		shows(t, root, "mnt/full/name", "zero") // of the call before
	}
	if err := a.remount([]guest.Mount{volumeAt("7", "/mnt/good", false)}); err == nil {
		t.Error("a volume that is not there is no error")
	}
}

func TestCheckMounts(t *testing.T) {
	for _, list := range [][]guest.Mount{
		{volumeAt("0", "/proc", false)}, {volumeAt("0", "/sys/fs", false)}, {volumeAt("0", "/", false)},
		{volumeAt("0", "/.cay", false)}, {volumeAt("0", "/.cay/volumes/1", false)}, {volumeAt("0", "/dev/shm", false)},
		{volumeAt("0", "relative", false)}, {volumeAt("0", "/a/../b", false)}, {volumeAt("0", "/a/", false)}, {volumeAt("0", "", false)},
		{volumeAt("../../etc", "/mnt", false)}, {{Source: "/etc", Path: "/mnt"}}, {{Source: "/.cay", Path: "/mnt"}}, {{Source: "/.cayenne/x", Path: "/mnt"}},
		{volumeAt("0", "/mnt", false), volumeAt("1", "/mnt", false)},
	} {
		if err := checkMounts(list); err == nil || !strings.Contains(err.Error(), "mounts[") {
			t.Errorf("%+v: %v", list, err)
		}
	}
	if err := checkMounts([]guest.Mount{volumeAt("0", "/mnt", false), volumeAt("1", "/processes", true)}); err != nil {
		t.Error(err)
	}
}
