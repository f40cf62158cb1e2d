package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// acts are what the guest's children do, by the name they are started with.
var acts = map[string]func() error{
	"who":      func() error { _, err := fmt.Print(os.Geteuid()); return err }, // started by elevate
	"renames":  renames,
	"loopback": loopback,
	"network":  network,
	"bridge":   bridge,
	"waiter":   waitLock,
	"bind":     func() error { return unix.Mount("/.cay/volumes/0", "/srv", "", unix.MS_BIND, "") },
}

// act is what this process is to do, nil for PID 1.
func act(args []string) func() error {
	if len(args) < 2 {
		return nil
	}
	if do, ok := acts[args[1]]; ok {
		return do
	}
	return func() error { return fmt.Errorf("no act %q", args[1]) }
}

// user is an account without privileges.
var user = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}

// child starts this program again as a user without privileges, in namespaces
// of its own if asked, as unshare -Urn does.
func child(act string, namespaces uintptr) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", act)
	attr := *user
	if namespaces != 0 {
		attr.Credential = &syscall.Credential{NoSetGroups: true} // root there, 1000 outside
		attr.Cloneflags = namespaces
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}}
	}
	cmd.SysProcAttr = &attr
	return cmd
}

const unshared = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET

// perform runs an act to its end and returns what it says.
func perform(r *http.Request) (string, error) {
	var namespaces uintptr
	if r.FormValue("unshared") != "" {
		namespaces = unshared
	}
	text, err := child(r.FormValue("act"), namespaces).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return string(text), err
}

// run runs a program as root, with a variable of the environment.
func run(r *http.Request) (string, error) {
	cmd := exec.Command(r.FormValue("path"), strings.Fields(r.FormValue("args"))...)
	cmd.Dir = "/tmp"
	text, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return string(text), err
}

// companion is a child that goes on: it is told a line and answers with one.
var companion struct {
	sync.Mutex
	in  io.Writer
	out *bufio.Reader
}

// begin starts the companion; tell has it answer.
func begin(r *http.Request) (string, error) {
	companion.Lock()
	defer companion.Unlock()
	cmd := child(r.FormValue("act"), unshared)
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return "", err
	}
	companion.in, companion.out = in, bufio.NewReader(out)
	return companion.out.ReadString('\n')
}

func tell(*http.Request) (string, error) {
	companion.Lock()
	defer companion.Unlock()
	if companion.in == nil {
		return "", errors.New("there is no companion")
	}
	if _, err := io.WriteString(companion.in, "\n"); err != nil {
		return "", err
	}
	return companion.out.ReadString('\n')
}

// room is what statfs says of a directory, in bytes.
func room(r *http.Request) (string, error) {
	var st unix.Statfs_t
	err := unix.Statfs(r.FormValue("path"), &st)
	return fmt.Sprint(st.Bavail * uint64(st.Bsize)), err
}

// renames renames over names that were renamed away before, in a directory
// that is another's and sticky. It says what went wrong.
func renames() error {
	const dir = "/tmp/"
	put := func(name string) error { return os.WriteFile(dir+name, []byte(name), 0o600) }
	holds := func(name, text string) error {
		got, err := os.ReadFile(dir + name)
		if err == nil && string(got) != text {
			err = fmt.Errorf("%s holds %q, want %q", name, got, text)
		}
		return err
	}
	rename := func(from, to string, flags uint) error {
		if err := unix.Renameat2(unix.AT_FDCWD, dir+from, unix.AT_FDCWD, dir+to, flags); err != nil {
			return fmt.Errorf("rename %s to %s, flags %d: %w", from, to, flags, err)
		}
		return nil
	}
	refuses := func(err, want error) error {
		if !errors.Is(err, want) {
			return fmt.Errorf("got %v, want %v", err, want)
		}
		return nil
	}
	for _, step := range []func() error{
		func() error { return errors.Join(put("n1"), put("n2")) },
		func() error { return rename("n1", "n3", 0) },
		func() error { return rename("n2", "n1", 0) },
		func() error { return errors.Join(holds("n1", "n2"), holds("n3", "n1")) },
		// onto the place that n2 has left
		func() error { return rename("n3", "n2", unix.RENAME_NOREPLACE) },
		func() error { return refuses(rename("n2", "n1", unix.RENAME_NOREPLACE), unix.EEXIST) },
		func() error { return os.MkdirAll(dir+"d/e", 0o700) },
		func() error { return rename("d", "n3", 0) }, // a directory, onto what was a file's place
		func() error { _, err := os.Stat(dir + "n3/e"); return err },
		func() error { return rename("n2", "d", 0) }, // a file, onto what was a directory's
		func() error { return holds("d", "n1") },
		// Other accounts' files are theirs, as ever.
		func() error { return refuses(rename("d", "theirs", 0), unix.EPERM) },
		func() error { return refuses(rename("theirs", "n4", 0), unix.EPERM) },
		func() error { return refuses(rename("n3", "theirs-dir", 0), unix.EPERM) },
		func() error { return holds("d", "n1") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
