package services

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/inside/agent/reap"
	"github.com/cay-run/cay/internal/inside/agent/user"
)

// servicePath is the PATH of services.
const servicePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// account is as whom a service runs.
type account struct {
	user.User
	set bool // it is another than root, or named
}

// account resolves User, Group and SupplementaryGroups.
func (m *Manager) account(c *settings) (account, error) {
	a := account{User: user.User{Name: "root", Home: "/root", Shell: "/bin/sh"}}
	db := user.DB{Root: m.cfg.Root}
	if c.user != "" {
		u, err := db.Lookup(db.Names().User(number(c.user)))
		if _, numeric := strconv.ParseUint(c.user, 10, 32); numeric != nil {
			u, err = db.Lookup(c.user)
		}
		if err != nil {
			return a, fmt.Errorf("User=%s: %w", c.user, err)
		}
		a.User, a.set = u, true
	}
	if c.group != "" {
		gid, ok := db.Group(c.group)
		if !ok {
			return a, fmt.Errorf("Group=%s: there is no such group", c.group)
		}
		a.GID = gid
	}
	for _, name := range c.groups {
		gid, ok := db.Group(name)
		if !ok {
			return a, fmt.Errorf("SupplementaryGroups: there is no group %s", name)
		}
		a.Groups = append(slices.Clone(a.Groups), gid)
	}
	return a, nil
}

// number is an id, or one that no account has.
func number(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 1<<32 - 1
	}
	return uint32(n)
}

// environment is what a program of a service sees.
func (m *Manager) environment(c *settings, a account, extra map[string]string) (map[string]string, error) {
	env := map[string]string{"PATH": servicePath, "LANG": "C.UTF-8"}
	if a.set {
		maps.Copy(env, map[string]string{"HOME": a.Home, "USER": a.Name, "LOGNAME": a.Name, "SHELL": a.Shell})
	}
	maps.Copy(env, c.env)
	for _, path := range c.envFiles {
		path, optional := strings.CutPrefix(path, "-")
		_, text, err := m.lib.readUnit(path)
		if errors.Is(err, errMasked) || optional && err != nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("EnvironmentFile: %w", err)
		}
		readEnv(text, env)
	}
	for _, d := range c.dirs {
		if old := env[d.variable]; old != "" {
			env[d.variable] = old + ":" + d.path
		} else {
			env[d.variable] = d.path
		}
	}
	maps.Copy(env, extra)
	return env, nil
}

// readEnv reads lines of NAME=value, with the quotes of a shell.
func readEnv(text string, env map[string]string) {
	for _, line := range logicalLines(text) {
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !ok || !isName(name) {
			continue
		}
		value = strings.TrimSpace(value)
		if strings.ContainsAny(value, `"'\`) {
			if words, err := split(value); err == nil {
				var texts []string
				for _, w := range words {
					texts = append(texts, w.text)
				}
				value = strings.Join(texts, " ")
			}
		}
		env[name] = value
	}
}

// makeDirs makes the directories of a service, with it as their owner.
func (m *Manager) makeDirs(c *settings, a account) error {
	for _, d := range c.dirs {
		path := m.lib.at(d.path)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(path, d.mode), os.Lchown(path, int(a.UID), int(a.GID))); err != nil && os.Geteuid() == 0 {
			return err
		}
	}
	return nil
}

// dropDirs removes what a service had for as long as it ran.
func (m *Manager) dropDirs(c *settings) {
	for _, d := range c.dirs {
		if d.runtime && !c.preserve {
			_ = os.RemoveAll(m.lib.at(d.path)) // it is made anew at the next start
		}
	}
}

// begin starts a program of a service, in a session of its own.
func (s *state) begin(r *activation, c command, extra map[string]string) (*reap.Child, error) {
	m := s.m
	env, err := m.environment(&r.set, r.account, extra)
	if err != nil {
		return nil, err
	}
	env["INVOCATION_ID"] = r.id
	if r.notify != nil {
		env["NOTIFY_SOCKET"] = r.notify.address
	}
	path, args := c.path, c.with(env)
	if !strings.Contains(path, "/") {
		path = lookPath(path, env["PATH"])
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("%s: it has no arguments", c.path)
	}
	if len(r.set.wrap) > 0 {
		args = append([]string{"cay-agent", WrapFlag, strings.Join(r.set.wrap, ","), "--", path}, args...)
		path = m.cfg.Self
	}
	dir := r.set.dir
	switch dir {
	case "":
		dir = "/"
	case "~":
		dir = r.account.Home
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		if !r.set.dirOptional {
			return nil, fmt.Errorf("WorkingDirectory: %s is no directory", dir)
		}
		dir = "/"
	}
	var said []*os.File // what it writes for the journal
	in, out, errs, err := s.streams(r, &said)
	if err != nil {
		closeFiles(said)
		return nil, err
	}
	defer closeFiles([]*os.File{in, out, errs})
	attr := &syscall.ProcAttr{Dir: dir, Files: []uintptr{in.Fd(), out.Fd(), errs.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}}
	for k, v := range env {
		attr.Env = append(attr.Env, k+"="+v)
	}
	if !c.root && (r.account.set || r.set.group != "" || len(r.account.Groups) > 0) {
		attr.Sys.Credential = &syscall.Credential{Uid: r.account.UID, Gid: r.account.GID, Groups: r.account.Groups}
	}
	child, err := m.cfg.Reaper.Start(path, args, attr)
	if err != nil {
		closeFiles(said)
		return nil, err
	}
	m.mu.Lock()
	r.sessions = append(r.sessions, child.Pid)
	m.mu.Unlock()
	program := r.set.name
	if program == "" {
		program = filepath.Base(c.path)
	}
	for _, f := range said {
		go m.journal.copy(f, s.name, program, child.Pid)
	}
	return child, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// streams opens the standard input, output and error of a program.
func (s *state) streams(r *activation, said *[]*os.File) (in, out, errs *os.File, err error) {
	if in, err = s.input(r.set.stdin); err != nil {
		return nil, nil, nil, err
	}
	if out, err = s.output(r.set.stdout, said); err != nil {
		in.Close()
		return nil, nil, nil, err
	}
	switch r.set.stderr {
	case "", "inherit", r.set.stdout:
		errs, err = dup(out)
	default:
		errs, err = s.output(r.set.stderr, said)
	}
	if err != nil {
		in.Close()
		out.Close()
	}
	return in, out, errs, err
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (s *state) input(how string) (*os.File, error) {
	if path, ok := strings.CutPrefix(how, "file:"); ok {
		return os.Open(s.m.lib.at(path))
	}
	return os.Open(os.DevNull)
}

// output opens what a program writes to: a pipe to the journal, whose other end
// joins said, where the unit names nothing else.
func (s *state) output(how string, said *[]*os.File) (*os.File, error) {
	for prefix, flags := range map[string]int{"file:": 0, "append:": os.O_APPEND, "truncate:": os.O_TRUNC} {
		if path, ok := strings.CutPrefix(how, prefix); ok {
			return os.OpenFile(s.m.lib.at(path), os.O_WRONLY|os.O_CREATE|flags, 0o644)
		}
	}
	if how == "null" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	// A pipe of the runtime would not block; a service expects one that does.
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	*said = append(*said, os.NewFile(uintptr(fds[0]), "pipe"))
	return os.NewFile(uintptr(fds[1]), "pipe"), nil
}

func lookPath(name, path string) string {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file
		}
	}
	return name
}

// members are the processes of an activation, without PID 1 and the agent: those
// of the sessions that were begun for it, those with its mark in their
// environment, and what descends from any.
func (m *Manager) members(r *activation) []int {
	m.mu.Lock()
	sessions := slices.Clone(r.sessions)
	m.mu.Unlock()
	mark := []byte("INVOCATION_ID=" + r.id + "\x00")
	parents, in := map[int]int{}, map[int]bool{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it is gone
		}
		ppid, session, dead := parseStat(stat)
		if dead {
			continue
		}
		parents[pid] = ppid
		if slices.Contains(sessions, session) || slices.Contains(sessions, pid) {
			in[pid] = true
			continue
		}
		if env, err := os.ReadFile("/proc/" + e.Name() + "/environ"); err == nil && bytes.Contains(env, mark) {
			in[pid] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for pid, ppid := range parents {
			if in[ppid] && !in[pid] {
				in[pid], changed = true, true
			}
		}
	}
	return slices.Sorted(mapKeys(in))
}

// parseStat reads /proc/PID/stat.
func parseStat(text []byte) (ppid, session int, dead bool) {
	i := bytes.LastIndexByte(text, ')')
	f := bytes.Fields(text[i+1:])
	if i < 0 || len(f) < 4 {
		return 0, 0, true
	}
	ppid, _ = strconv.Atoi(string(f[1]))
	session, _ = strconv.Atoi(string(f[3]))
	return ppid, session, f[0][0] == 'Z' || f[0][0] == 'X'
}

// WrapFlag has the agent's program change itself as a service asks, then become
// another program: WrapFlag NAME=VALUE,… -- PATH ARG0 ARG….
const WrapFlag = "-become"

// Become carries WrapFlag out. It returns only after an error.
func Become(changes string, args []string) error {
	if len(args) < 2 {
		return errors.New("a program and its name are missing")
	}
	for change := range strings.SplitSeq(changes, ",") {
		name, value, _ := strings.Cut(change, "=")
		switch name {
		case "umask":
			n, err := strconv.ParseUint(value, 8, 12)
			if err != nil {
				return fmt.Errorf("umask %q: %w", value, err)
			}
			syscall.Umask(int(n))
		case "no-new-privileges":
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				return fmt.Errorf("give up new privileges: %w", err)
			}
		default:
			limit(name, value)
		}
	}
	return &os.PathError{Op: "exec", Path: args[0], Err: syscall.Exec(args[0], args[1:], os.Environ())}
}

// limit sets a soft limit, as high as the sandbox's own allows.
func limit(name, value string) {
	which, ok := limits[name]
	if !ok {
		return
	}
	var now syscall.Rlimit
	if syscall.Getrlimit(which, &now) != nil {
		return
	}
	soft, _, _ := strings.Cut(value, ":")
	want, err := strconv.ParseUint(soft, 10, 64)
	if soft == "infinity" {
		want, err = now.Max, nil
	}
	if err != nil {
		return
	}
	now.Cur = min(want, now.Max)
	_ = syscall.Setrlimit(which, &now) // the program asks itself what it has
}
