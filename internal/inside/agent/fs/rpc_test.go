package fs

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/cay-run/cay/api/proto/filesystem"
	"github.com/cay-run/cay/api/proto/filesystem/filesystemconnect"
)

func code(t *testing.T, err error, want connect.Code) {
	t.Helper()
	if got := connect.CodeOf(err); err == nil || got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

func stat(t *testing.T, c filesystemconnect.FilesystemClient, path string) *pb.EntryInfo {
	t.Helper()
	resp, err := c.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: path}))
	must(t, err)
	return resp.Msg.GetEntry()
}

func TestStat(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		file := w.write("d/f.txt", "hello")
		must(t, os.Chown(file, uid(), gid()))
		must(t, os.Symlink("d/f.txt", w.path("link")))
		must(t, os.Symlink("d", w.path("dirlink")))
		must(t, os.Symlink("none", w.path("dangling")))
		must(t, unix.Setxattr(file, "user.e2b.k", []byte("v"), 0))
		must(t, unix.Setxattr(file, "user.other", []byte("v"), 0))

		e := stat(t, c, "d/f.txt")
		if e.GetName() != "f.txt" || e.GetPath() != file || e.GetSize() != 5 || e.GetMode() != 0o644 ||
			e.GetPermissions() != "-rw-r--r--" || e.GetType() != pb.FileType_FILE_TYPE_FILE ||
			e.GetOwner() != "user" || e.GetGroup() != "users" || e.SymlinkTarget != nil {
			t.Errorf("file: %v", e)
		}
		if m := e.GetMetadata(); len(m) != 1 || m["k"] != "v" {
			t.Errorf("metadata: %v", m)
		}
		if st, _ := os.Stat(file); !e.GetModifiedTime().AsTime().Equal(st.ModTime()) {
			t.Errorf("time: %v", e.GetModifiedTime())
		}
		e = stat(t, c, "~/d")
		if e.GetType() != pb.FileType_FILE_TYPE_DIRECTORY || e.GetPermissions() != "drwxr-xr-x" || e.GetSize() <= 0 || e.GetMode() != 0o755 {
			t.Errorf("directory: %v", e)
		}
		for name, want := range map[string]struct {
			kind   pb.FileType
			target string
		}{
			"link":     {pb.FileType_FILE_TYPE_FILE, file},
			"dirlink":  {pb.FileType_FILE_TYPE_DIRECTORY, w.path("d")},
			"dangling": {pb.FileType_FILE_TYPE_SYMLINK, w.path("none")},
		} {
			e = stat(t, c, name)
			if e.GetType() != want.kind || !e.GetIsSymlink() || e.GetSymlinkTarget() != want.target || e.GetPermissions() != "Lrwxrwxrwx" {
				t.Errorf("%s: %v", name, e)
			}
		}
		if e = stat(t, c, ""); e.GetPath() != w.home {
			t.Errorf("empty path: %v", e)
		}
	})
}

func TestStatFails(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		w.write("f", "")
		must(t, os.Symlink("loop", w.path("loop")))
		for path, want := range map[string]connect.Code{
			"none":                     connect.CodeNotFound,
			"f/below":                  connect.CodeNotFound,
			"loop/x":                   connect.CodeInvalidArgument,
			strings.Repeat("x", 300):   connect.CodeInvalidArgument,
			"a\x00b":                   connect.CodeInvalidArgument,
			strings.Repeat("x/", 3000): connect.CodeInvalidArgument,
		} {
			_, err := c.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: path}))
			code(t, err, want)
		}
		_, err := c.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: "none"}))
		if err == nil || !strings.Contains(err.Error(), "not found") || !strings.Contains(err.Error(), "'"+w.path("none")+"' does not exist") {
			t.Errorf("text: %v", err)
		}
	})
}

func TestUsers(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		for name, want := range map[string]error{
			"user":  nil,
			"nobod": connect.NewError(connect.CodeUnauthenticated, errors.New("invalid username: 'nobod'")),
		} {
			req := connect.NewRequest(&pb.StatRequest{Path: "."})
			req.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(name+":")))
			_, err := c.Stat(t.Context(), req)
			if (err == nil) != (want == nil) || err != nil && err.Error() != want.Error() {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		req := connect.NewRequest(&pb.StatRequest{Path: "tmp"})
		req.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("other:")))
		resp, err := c.Stat(t.Context(), req)
		must(t, err)
		if got := resp.Msg.GetEntry().GetPath(); got != "/tmp" {
			t.Errorf("relative to another home: %s", got)
		}
	})
}

func TestMakeDir(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		mk := func(path string) error {
			_, err := c.MakeDir(t.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: path}))
			return err
		}
		must(t, mk("a/b/c"))
		for _, d := range []string{"a", "a/b", "a/b/c"} {
			if got := owner(t, w.path(d)); got != uid() {
				t.Errorf("%s belongs to %d", d, got)
			}
		}
		must(t, os.Symlink("a", w.path("link")))
		w.write("f", "")
		code(t, mk("a/b"), connect.CodeAlreadyExists)
		code(t, mk("link"), connect.CodeAlreadyExists)
		code(t, mk("f"), connect.CodeInvalidArgument)
		code(t, mk("f/sub"), connect.CodeInvalidArgument)
		code(t, mk(strings.Repeat("n", 300)), connect.CodeInvalidArgument)
	})
}

func TestMove(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		mv := func(from, to string) (*pb.EntryInfo, error) {
			resp, err := c.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: from, Destination: to}))
			if err != nil {
				return nil, err
			}
			return resp.Msg.GetEntry(), nil
		}
		file := w.write("f", "text")
		must(t, unix.Setxattr(file, "user.e2b.k", []byte("v"), 0))
		e, err := mv("f", "new/place/g")
		must(t, err)
		if e.GetPath() != w.path("new/place/g") || e.GetMetadata()["k"] != "v" || w.read("new/place/g") != "text" {
			t.Errorf("got %v", e)
		}
		if owner(t, w.path("new/place")) != uid() {
			t.Error("the new parent does not belong to the user")
		}
		_, err = mv("f", "h")
		code(t, err, connect.CodeNotFound)
		w.write("full/x", "")
		w.write("full2/x", "")
		_, err = mv("full", "full2")
		code(t, err, connect.CodeInvalidArgument)
		_, err = mv("full", "full/in/itself")
		code(t, err, connect.CodeInvalidArgument)
		_, err = mv("", "x")
		code(t, err, connect.CodeInvalidArgument)
	})
}

func TestRemove(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		rm := func(path string) error {
			_, err := c.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: path}))
			return err
		}
		w.write("d/e/f", "x")
		w.write("keep", "x")
		must(t, os.Symlink("keep", w.path("link")))
		must(t, rm("d"))
		must(t, rm("link"))
		must(t, rm("none"))
		must(t, rm("keep/none"))
		if items, _ := os.ReadDir(w.home); len(items) != 1 || w.read("keep") != "x" {
			t.Errorf("left: %v", items)
		}
		code(t, rm(""), connect.CodeInvalidArgument)
		code(t, rm("/"), connect.CodeInvalidArgument)
		code(t, rm("/.."), connect.CodeInvalidArgument)
	})
}

func TestListDir(t *testing.T) {
	both(t, func(t *testing.T, w *world, c filesystemconnect.FilesystemClient) {
		w.write("root/b/2/y", "")
		w.write("root/b/1", "")
		w.write("root/a", "")
		must(t, os.Symlink("b", w.path("root/c")))
		must(t, os.Symlink("root", w.path("link")))
		ls := func(path string, depth uint32) ([]string, error) {
			resp, err := c.ListDir(t.Context(), connect.NewRequest(&pb.ListDirRequest{Path: path, Depth: depth}))
			if err != nil {
				return nil, err
			}
			var names []string
			for _, e := range resp.Msg.GetEntries() {
				rel, err := filepath.Rel(w.home, e.GetPath())
				must(t, err)
				names = append(names, rel)
			}
			return names, nil
		}
		one := []string{"root/a", "root/b", "root/c"}
		for depth, want := range map[uint32][]string{
			0: one,
			1: one,
			2: {"root/a", "root/b", "root/b/1", "root/b/2", "root/c"},
			9: {"root/a", "root/b", "root/b/1", "root/b/2", "root/b/2/y", "root/c"},
		} {
			got, err := ls("root", depth)
			must(t, err)
			if !slices.Equal(got, want) {
				t.Errorf("depth %d: got %v, want %v", depth, got, want)
			}
		}
		got, err := ls("link", 1)
		must(t, err)
		if want := []string{"link/a", "link/b", "link/c"}; !slices.Equal(got, want) {
			t.Errorf("link: got %v, want %v", got, want)
		}
		_, err = ls("none", 1)
		code(t, err, connect.CodeNotFound)
		_, err = ls("root/a", 1)
		code(t, err, connect.CodeInvalidArgument)
	})
}

// smallDisk mounts a file system of a megabyte.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("cay-test", dir, "tmpfs", 0, "size=1m,mode=755"); err != nil {
		t.Skipf("no right to mount: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestMoveAcrossFileSystems(t *testing.T) {
	w := newWorld(t)
	c := filesystemconnect.NewFilesystemClient(http.DefaultClient, w.url)
	disk := smallDisk(t)
	w.write("d/sub/f", "text")
	must(t, os.Chmod(w.path("d/sub/f"), os.ModeSetuid|0o750))
	must(t, os.Symlink("sub/f", w.path("d/link")))
	_, err := c.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: "d", Destination: disk + "/new/d2"}))
	must(t, err)
	st, err := os.Stat(disk + "/new/d2/link")
	must(t, err)
	if st.Size() != 4 || st.Mode()&os.ModeSetuid == 0 || st.Mode().Perm() != 0o750 {
		t.Errorf("got %v", st.Mode())
	}
	if _, err := os.Lstat(w.path("d")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the source is still there: %v", err)
	}
	// A copy that fails leaves the source, and nothing behind.
	w.write("big", strings.Repeat("x", 2<<20))
	_, err = c.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: "big", Destination: disk + "/big"}))
	code(t, err, connect.CodeResourceExhausted)
	if items, _ := os.ReadDir(disk); len(items) != 1 || len(w.read("big")) != 2<<20 {
		t.Errorf("left: %v", items)
	}
	must(t, syscall.Mkfifo(w.path("fifo"), 0o600))
	_, err = c.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: "fifo", Destination: disk + "/fifo"}))
	code(t, err, connect.CodeInvalidArgument)
}

func TestListingIsBounded(t *testing.T) {
	w := newWorld(t)
	w.write("a/b", "")
	l := listing{ctx: context.Background(), entries: make([]*pb.EntryInfo, maxEntries)}
	err := rpcError(l.walk(w.home, 2))
	code(t, err, connect.CodeResourceExhausted)
	if !strings.Contains(fmt.Sprint(err), "depth") {
		t.Errorf("text: %v", err)
	}
}
