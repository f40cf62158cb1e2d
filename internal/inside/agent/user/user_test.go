package user_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay/internal/inside/agent/user"
)

const passwd = `root:x:0:0:root:/root:/bin/bash
# a comment:x:1:1::/:
broken
alsobroken:x:minus:0::/:
user:x:1000:1000:,,,:/home/user:/bin/zsh
plain:x:1001:1001::/home/plain
user:x:7:7::/second:/bin/sh
wide:x:4294967296:1::/:
`

const group = `root:x:0:
sudo:x:27:user
docker:x:999:other,user
user:x:1000:user
docker:x:999:user
odd
`

func db(t *testing.T, passwd, group string) user.DB {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return user.DB{Root: root}
}

func TestLookup(t *testing.T) {
	d := db(t, passwd, group)
	for name, want := range map[string]user.User{
		"root":  {Name: "root", Home: "/root", Shell: "/bin/bash"},
		"user":  {Name: "user", UID: 1000, GID: 1000, Groups: []uint32{27, 999}, Home: "/home/user", Shell: "/bin/zsh"},
		"plain": {Name: "plain", UID: 1001, GID: 1001, Home: "/home/plain", Shell: "/bin/sh"},
	} {
		got, err := d.Lookup(name)
		if err != nil {
			t.Errorf("Lookup(%q): %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Lookup(%q) (-want +got):\n%s", name, diff)
		}
	}
}

func TestLookupUnknown(t *testing.T) {
	d := db(t, passwd, group)
	for _, name := range []string{"nobody", "", "broken", "wide", "# a comment", "root123"} {
		_, err := d.Lookup(name)
		var unknown *user.UnknownError
		if !errors.As(err, &unknown) || err.Error() != "invalid username: '"+name+"'" {
			t.Errorf("Lookup(%q): %v", name, err)
		}
	}
}

func TestLookupWithoutFiles(t *testing.T) {
	_, err := user.DB{Root: t.TempDir()}.Lookup("root")
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Lookup without files: %v", err)
	}
}

func TestNames(t *testing.T) {
	n := db(t, passwd, group).Names()
	got := []string{n.User(0), n.User(1000), n.User(5), n.Group(27), n.Group(6)}
	if diff := cmp.Diff([]string{"root", "user", "5", "sudo", "6"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestPath(t *testing.T) {
	u := user.User{Home: "/home/user"}
	for _, c := range []struct{ path, dir, want string }{
		{"", "", "/home/user"},
		{"", "/code", "/code"},
		{"", "code", "/home/user/code"},
		{"~", "/code", "/home/user"},
		{"~/a/../b", "", "/home/user/b"},
		{"~other", "", "/home/user/~other"},
		{"a/b", "/code", "/home/user/a/b"},
		{"/a/./b/", "/code", "/a/b"},
		{"../../..", "", "/"},
	} {
		if got := u.Path(c.path, c.dir); got != c.want {
			t.Errorf("Path(%q, %q) = %q, want %q", c.path, c.dir, got, c.want)
		}
	}
	if got := (user.User{}).Path("a", ""); got != "/a" {
		t.Errorf("Path without a home = %q", got)
	}
}

func FuzzLookup(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\n", "root:x:0:\n", "root")
	f.Add("a:::", "b:x:1:a,b", "a")
	f.Add("u:x:1:1::h:s\r\n\x00", "g:x:2:u\n:::", "u")
	f.Fuzz(func(t *testing.T, passwd, group, name string) {
		d := db(t, passwd, group)
		u, err := d.Lookup(name)
		if err == nil && u.Name != name {
			t.Errorf("asked for %q, got %q", name, u.Name)
		}
		if err == nil && !filepath.IsAbs(u.Path("x", "")) {
			t.Errorf("relative path for home %q", u.Home)
		}
		d.Names().User(u.UID)
	})
}

// A DB that keeps files sees every change of theirs, in place or by rename.
func TestChangesAreSeen(t *testing.T) {
	d := user.Open(db(t, passwd, group).Root)
	file := filepath.Join(d.Root, "etc", "passwd")
	lookup := func(name string, want uint32) {
		t.Helper()
		for range 2 { // read, then kept
			u, err := d.Lookup(name)
			if err != nil || u.UID != want {
				t.Errorf("Lookup(%q): %d, %v, want %d", name, u.UID, err, want)
			}
			time.Sleep(60 * time.Millisecond) // longer than what is too fresh to be kept
		}
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lookup("user", 1000)
	write(file, "user:x:1001:1000::/home/user:/bin/sh\n")
	lookup("user", 1001)
	write(file, "user:x:1002:1000::/home/user:/bin/sh\n") // of the same length
	lookup("user", 1002)
	write(file+"+", "user:x:1003:1000::/home/user:/bin/sh\n")
	if err := os.Rename(file+"+", file); err != nil {
		t.Fatal(err)
	}
	lookup("user", 1003)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lookup("user"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

func TestStartDir(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	passwd := "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"
	if err := os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(passwd), 0o644); err != nil {
		t.Fatal(err)
	}
	db := user.Open(root)
	for _, c := range []struct{ who, account, dir, path, want string }{
		{"user", "user", "/home/user", "", "/home/user"},
		{"root", "user", "/home/user", "", "/root"},
		{"root", "user", "/home/user/", "", "/root"},
		{"root", "user", "/home/user", "a", "/root/a"},
		{"root", "user", "/app", "", "/app"},
		{"root", "user", "", "", "/root"},
		{"root", "root", "/home/user", "", "/home/user"},
		{"user", "root", "/root", "", "/home/user"},
		{"root", "gone", "/home/user", "", "/home/user"},
	} {
		u, err := db.Lookup(c.who)
		if err != nil {
			t.Fatal(err)
		}
		if got := u.Path(c.path, db.StartDir(u, c.account, c.dir)); got != c.want {
			t.Errorf("%+v: starts in %s", c, got)
		}
	}
}
