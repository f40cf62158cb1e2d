package reap_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cay-run/cay/internal/inside/agent/reap"
)

// TestMain also is what TestSpawn starts: the tests run inside a sandbox too,
// where there is no shell (internal/machine/engine/enginetest).
func TestMain(m *testing.M) {
	switch end := os.Getenv("REAP_END"); end {
	case "":
		goleak.VerifyTestMain(m)
	case "hello":
		fmt.Println(end)
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	default:
		os.Exit(3)
	}
}

// both runs a test as PID 1 collects, and as others do. Tests of this package
// run one after the other, so no other test has children here.
func both(t *testing.T, test func(*testing.T, *reap.Reaper)) {
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprintf("all=%t", all), func(t *testing.T) {
			r := reap.New(all)
			defer r.Close()
			test(t, r)
		})
	}
}

func start(t *testing.T, r *reap.Reaper, script string) *reap.Child {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c, err := r.Start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestStatus(t *testing.T) {
	both(t, func(t *testing.T, r *reap.Reaper) {
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				c := start(t, r, "exit "+string(rune('0'+i%10)))
				if got := c.Status().ExitStatus(); got != i%10 {
					t.Errorf("exit status %d, want %d", got, i%10)
				}
				if err := c.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
					t.Errorf("signal after the end: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

func TestSignalReachesGroup(t *testing.T) {
	both(t, func(t *testing.T, r *reap.Reaper) {
		// The shell waits for a child that ignores nothing: both must die.
		c := start(t, r, "sleep 1000 & wait")
		if err := c.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if got := c.Status(); got.Signal() != syscall.SIGKILL {
			t.Errorf("ended by %v", got)
		}
		if err := syscall.Kill(c.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the pid is still there: %v", err)
		}
	})
}

func TestStartFails(t *testing.T) {
	both(t, func(t *testing.T, r *reap.Reaper) {
		if _, err := r.Start("/nowhere/at/all", []string{"x"}, &syscall.ProcAttr{}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("start: %v", err)
		}
	})
}

func TestSpawn(t *testing.T) {
	both(t, func(t *testing.T, r *reap.Reaper) {
		for end, want := range map[string]string{
			"hello":  "",
			"3":      "exit status 3",
			"killed": "signal: killed",
		} {
			var out strings.Builder
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "REAP_END="+end)
			cmd.Stdout = &out
			wait, err := r.Spawn(cmd)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := wait(); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: %q, want %q", end, got, want)
			}
			if end == "hello" && out.String() != "hello\n" {
				t.Errorf("it wrote %q", out.String())
			}
		}
	})
}

// Exits that come while other processes start must not be lost.
func TestExitsBesideStarts(t *testing.T) {
	both(t, func(t *testing.T, r *reap.Reaper) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 25 {
					if got := start(t, r, "exit 5").Status().ExitStatus(); got != 5 {
						t.Errorf("exit status %d", got)
					}
				}
			})
		}
		wg.Wait()
	})
}

// With all, children that another process started are buried too, and so is the
// exit that comes after a time without any child.
func TestStrangersAreBuried(t *testing.T) {
	r := reap.New(true)
	defer r.Close()
	for range 3 {
		pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 0"}, &syscall.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		start(t, r, "exit 0").Status()
		for syscall.Kill(pid, 0) == nil {
			time.Sleep(time.Millisecond)
		}
	}
}
