package agent

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// state reads how a process fares, as /proc says it.
func state(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]
}

func await(t *testing.T, pid int, want bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); (state(t, pid) == "T") != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d is %s", pid, state(t, pid))
		}
	}
}

// A process that its user has stopped is still stopped after the guard has
// stopped all and let them go on. The real calls would stop this machine, so
// /proc is made of links to three processes.
func TestStoppedProcessesStayStopped(t *testing.T) {
	proc := t.TempDir()
	start := func() int {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		name := strconv.Itoa(cmd.Process.Pid)
		if err := os.Symlink(filepath.Join("/proc", name), filepath.Join(proc, name)); err != nil {
			t.Fatal(err)
		}
		return cmd.Process.Pid
	}
	theirs, one, two := start(), start(), start()
	stop := func(pids ...int) {
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			await(t, pid, true)
		}
	}
	stop(theirs)
	stopped := alreadyStopped(proc)
	if got := slices.Collect(maps.Keys(stopped)); !slices.Equal(got, []int{theirs}) {
		t.Fatalf("stopped by their user: %v, want %d", got, theirs)
	}
	stop(one, two)
	letGo(proc, stopped)
	await(t, one, false)
	await(t, two, false)
	if got := state(t, theirs); got != "T" {
		t.Errorf("a process that its user stopped is %s", got)
	}
}
