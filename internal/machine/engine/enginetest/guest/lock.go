package main

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// lock changes the locks of a file that is kept: with flock, fcntl or ofd, of type ex,
// sh or un, from a byte on and so many. It waits only if it is to.
func lock(r *http.Request) (string, error) {
	held.Lock()
	f := held.files[r.FormValue("path")]
	held.Unlock()
	if f == nil {
		return "", errors.New("it is not kept")
	}
	return "", lockFile(f, r.FormValue("with"), requestedLock(r), r.FormValue("wait") != "")
}

// requestedLock is the range and the type that a request names: by default the first
// byte, for writing.
func requestedLock(r *http.Request) unix.Flock_t {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	switch r.FormValue("type") {
	case "sh":
		lock.Type = unix.F_RDLCK
	case "un":
		lock.Type = unix.F_UNLCK
	}
	if text := r.FormValue("len"); text != "" {
		lock.Len, _ = strconv.ParseInt(text, 10, 64)
	}
	lock.Start, _ = strconv.ParseInt(r.FormValue("start"), 10, 64)
	return lock
}

func lockFile(f *os.File, with string, lock unix.Flock_t, wait bool) error {
	if with == "flock" {
		how := map[int16]int{unix.F_WRLCK: unix.LOCK_EX, unix.F_RDLCK: unix.LOCK_SH, unix.F_UNLCK: unix.LOCK_UN}[lock.Type]
		if !wait {
			how |= unix.LOCK_NB
		}
		return restarted(func() error { return unix.Flock(int(f.Fd()), how) })
	}
	command := map[string]map[bool]int{
		"fcntl": {false: unix.F_SETLK, true: unix.F_SETLKW},
		"ofd":   {false: unix.F_OFD_SETLK, true: unix.F_OFD_SETLKW},
	}[with][wait]
	return restarted(func() error { return unix.FcntlFlock(f.Fd(), command, &lock) })
}

// restarted does a call again that a signal of Go's own has interrupted.
func restarted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// holder returns the lock of another that a lock with fcntl would meet.
func holder(r *http.Request) (string, error) {
	held.Lock()
	f := held.files[r.FormValue("path")]
	held.Unlock()
	if f == nil {
		return "", errors.New("it is not kept")
	}
	lock := requestedLock(r)
	err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock)
	return fmt.Sprintf("%s %d+%d", map[int16]string{unix.F_WRLCK: "ex", unix.F_RDLCK: "sh", unix.F_UNLCK: "un"}[lock.Type], lock.Start, lock.Len), err
}

// manyRanges locks every other byte of a file that is kept until it may not, and returns
// how many it has.
func manyRanges(r *http.Request) (string, error) {
	held.Lock()
	defer held.Unlock()
	f := held.files[r.FormValue("path")]
	if f == nil {
		return "", errors.New("it is not kept")
	}
	for n := range 1 << 20 {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 * n), Len: 1}
		if err := lockFile(f, "fcntl", lock, false); err != nil {
			return fmt.Sprintf("%d, then %v", n, err), nil
		}
	}
	return "", errors.New("there is no bound")
}

// killedWaiter kills a process that waits for a lock.
func killedWaiter(r *http.Request) (string, error) {
	cmd := exec.Command("/proc/self/exe", "waiter", r.FormValue("path"), r.FormValue("with"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "waits\n" {
		return "", fmt.Errorf("the waiter says %q", line)
	}
	if err := cmd.Process.Kill(); err != nil {
		return "", err
	}
	return fmt.Sprint(cmd.Wait()), nil
}

func waitLock() error {
	f, err := os.OpenFile(os.Args[2], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fmt.Println("waits")
	return lockFile(f, os.Args[3], unix.Flock_t{Type: unix.F_WRLCK, Len: 1}, true)
}
