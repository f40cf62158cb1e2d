// Package user looks accounts up in /etc/passwd and /etc/group. It has a
// parser of its own because the agent is built without cgo, reads the files
// whenever they change (a guest adds users while it runs) and is tested on made-up
// files.
package user

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// maxFile bounds what is read of an account file.
const maxFile = 16 << 20

// User is one account.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary; GID is not among them
	Home   string
	Shell  string
}

// UnknownError says that no account has the name. Its text is part of the
// wire.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string { return fmt.Sprintf("invalid username: '%s'", e.Name) }

// DB reads the account files below Root; the zero DB reads those of this
// machine.
type DB struct {
	Root  string
	cache *cache
}

// Open returns a DB that reads a file again only when it has changed: every
// command and every listing looks an account up.
func Open(root string) DB { return DB{Root: root, cache: &cache{files: map[string]content{}}} }

// Lookup finds an account of this machine by its name.
func Lookup(name string) (User, error) { return DB{}.Lookup(name) }

// Lookup finds an account by its name. The error is *UnknownError where the
// files do not name it.
func (d DB) Lookup(name string) (User, error) {
	if name == "" {
		return User{}, &UnknownError{Name: name}
	}
	passwd, err := d.read("passwd")
	if err != nil {
		return User{}, err
	}
	for line := range bytes.Lines(passwd) {
		u, ok := parseUser(string(bytes.TrimRight(line, "\r\n")))
		if !ok || u.Name != name {
			continue
		}
		group, err := d.read("group")
		if err != nil && !os.IsNotExist(err) {
			return User{}, err
		}
		u.Groups = groupsOf(group, u)
		return u, nil
	}
	return User{}, &UnknownError{Name: name}
}

// Path resolves a path as a client means it: "~" and relative paths start at
// the home directory, an empty one is dir, or the home directory where dir is
// empty. The result is absolute and clean.
func (u User) Path(path, dir string) string {
	home := u.Home
	if !filepath.IsAbs(home) {
		home = "/"
	}
	switch {
	case path == "" && dir != "":
		return u.Path(dir, "")
	case path == "" || path == "~":
		return filepath.Clean(home)
	case strings.HasPrefix(path, "~/"):
		return filepath.Join(home, path[2:])
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	default:
		return filepath.Join(home, path)
	}
}

// StartDir is where a call for u starts and an empty path leads: dir, which the
// template set for its account, or the home of u, as which an empty result is
// read. A dir that is but the home of the template's account holds for that
// account alone.
func (d DB) StartDir(u User, account, dir string) string {
	if dir == "" || u.Name == account {
		return dir
	}
	if other, err := d.Lookup(account); err == nil && filepath.Clean(dir) == other.Path("", "") {
		return ""
	}
	return dir
}

// Names maps ids to names, as the files had them when it was made.
type Names struct{ users, groups map[uint32]string }

// Names reads both files once, for calls that name many owners.
func (d DB) Names() Names {
	n := Names{users: map[uint32]string{}, groups: map[uint32]string{}}
	passwd, _ := d.read("passwd") // an unreadable file leaves numbers
	for line := range bytes.Lines(passwd) {
		if u, ok := parseUser(string(bytes.TrimRight(line, "\r\n"))); ok {
			if _, seen := n.users[u.UID]; !seen {
				n.users[u.UID] = u.Name
			}
		}
	}
	group, _ := d.read("group")
	for line := range bytes.Lines(group) {
		if name, gid, _, ok := parseGroup(string(bytes.TrimRight(line, "\r\n"))); ok {
			if _, seen := n.groups[gid]; !seen {
				n.groups[gid] = name
			}
		}
	}
	return n
}

// User returns the name of uid, or its number where it has none.
func (n Names) User(uid uint32) string { return nameOf(n.users, uid) }

// Group returns the name of gid, or its number where it has none.
func (n Names) Group(gid uint32) string { return nameOf(n.groups, gid) }

func nameOf(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// read returns a file of /etc, which the caller must not change.
func (d DB) read(name string) ([]byte, error) {
	path := filepath.Join("/", d.Root, "etc", name)
	if d.cache == nil {
		return readFile(path)
	}
	return d.cache.read(path)
}

// readFile never blocks on what is not a regular file.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// parseUser reads one line of passwd: name:password:uid:gid:gecos:home:shell.
func parseUser(line string) (User, bool) {
	f := strings.Split(line, ":")
	if len(f) < 6 || f[0] == "" || strings.HasPrefix(f[0], "#") {
		return User{}, false
	}
	uid, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil {
		return User{}, false
	}
	gid, err := strconv.ParseUint(f[3], 10, 32)
	if err != nil {
		return User{}, false
	}
	u := User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5], Shell: "/bin/sh"}
	if len(f) > 6 && f[6] != "" {
		u.Shell = f[6]
	}
	return u, true
}

// parseGroup reads one line of group: name:password:gid:member,member.
func parseGroup(line string) (name string, gid uint32, members []string, ok bool) {
	f := strings.Split(line, ":")
	if len(f) < 3 || f[0] == "" || strings.HasPrefix(f[0], "#") {
		return "", 0, nil, false
	}
	id, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil {
		return "", 0, nil, false
	}
	if len(f) > 3 && f[3] != "" {
		members = strings.Split(f[3], ",")
	}
	return f[0], uint32(id), members, true
}

// groupsOf lists the groups that name u as a member.
func groupsOf(file []byte, u User) []uint32 {
	var ids []uint32
	for line := range bytes.Lines(file) {
		_, gid, members, ok := parseGroup(string(bytes.TrimRight(line, "\r\n")))
		if ok && gid != u.GID && slices.Contains(members, u.Name) && !slices.Contains(ids, gid) {
			ids = append(ids, gid)
		}
	}
	return ids
}

// Group finds a group by its name, or by its number where no group has that name.
func (d DB) Group(name string) (gid uint32, ok bool) {
	file, _ := d.read("group") // an unreadable file leaves numbers
	for line := range bytes.Lines(file) {
		if n, id, _, valid := parseGroup(string(bytes.TrimRight(line, "\r\n"))); valid && n == name {
			return id, true
		}
	}
	n, err := strconv.ParseUint(name, 10, 32)
	return uint32(n), err == nil
}
