package reap_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cay-run/cay/internal/agent/reap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	r := reap.New(false)
	defer r.Close()
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
}

func TestSignalReachesGroup(t *testing.T) {
	r := reap.New(false)
	defer r.Close()
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
}

func TestStartFails(t *testing.T) {
	r := reap.New(false)
	defer r.Close()
	if _, err := r.Start("/nowhere/at/all", []string{"x"}, &syscall.ProcAttr{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("start: %v", err)
	}
}

func TestSpawn(t *testing.T) {
	r := reap.New(false)
	defer r.Close()
	for script, want := range map[string]string{
		"echo hello":    "",
		"exit 3":        "exit status 3",
		"kill -TERM $$": "signal: terminated",
	} {
		var out strings.Builder
		cmd := exec.Command("/bin/sh", "-c", script)
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
			t.Errorf("%s: %q, want %q", script, got, want)
		}
		if want == "" && out.String() != "hello\n" {
			t.Errorf("%s wrote %q", script, out.String())
		}
	}
}

// Exits that come while other processes start must not be lost.
func TestExitsBesideStarts(t *testing.T) {
	r := reap.New(false)
	defer r.Close()
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
}
