package enginetest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// contents restores memory that takes many reads: every page is as it was, also
// in a snapshot of what was restored.
func (s *suite) contents(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "", "/eat", "mb", "60")
	want, _ := at.ask(t, "/sum")
	snap, dir := s.snapshot(t, id, false)
	for range 2 {
		again := s.resume(t, snap, dir, at)
		at.expect(t, want, "/sum")
		snap, dir = s.snapshot(t, again, false)
	}
}

// watched fills the guest's memory in parts: PID 1 is told before it is gone, in
// what was booted, in what goes on after a snapshot, and in what was restored.
func (s *suite) watched(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	wakes := func() int {
		text, _ := at.ask(t, "/woken")
		n, err := strconv.Atoi(text)
		must(t, err)
		return n
	}
	told := func(before int) {
		t.Helper()
		for deadline := time.Now().Add(patience); wakes() <= before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("PID 1 was told %d times, as before", before)
			}
		}
	}
	at.expect(t, "", "/eat", "mb", "85") // of 128
	told(0)
	kept, dir := s.snapshot(t, id, true)
	before := wakes()
	at.expect(t, "", "/eat", "mb", "8")
	told(before)
	must(t, s.Kill(t.Context(), id))
	s.resume(t, kept, dir, at)
	before = wakes()
	at.expect(t, "", "/eat", "mb", "8")
	told(before)
}

// crowds fills the guest's memory beside processes that sleep, while PID 1 begins
// one program after the other: many stand still until it lets them go on, and it
// is not kept from that. A few are left alone.
func (s *suite) crowds(t *testing.T) {
	const many, few = 30, 8
	at := s.slots[0]
	for processes, state := range map[int]string{many: "T", few: "S"} {
		id := s.start(t, at)
		not := func(path, was string) {
			t.Helper()
			soon(t, path+" is not "+was, func() bool { text, _ := at.ask(t, path); return text != was })
		}
		states := func(letter string) {
			t.Helper()
			want := strings.Repeat(letter, processes)
			soon(t, "the crowd is "+want, func() bool { text, _ := at.ask(t, "/crowd-states"); return text == want })
		}
		at.expect(t, "", "/crowd", "processes", strconv.Itoa(processes), "begins", "1")
		at.expect(t, "", "/eat", "mb", "85") // of 128
		if processes == many {
			not("/crowd-stood", "0")
		} else {
			not("/woken", "0")
		}
		states(state)
		if processes == many { // a snapshot has it as it stands
			snap, dir := s.snapshot(t, id, false)
			id = s.resume(t, snap, dir, at)
			states(state)
		}
		at.expect(t, "", "/crowd-goes")
		states("S")
		began, _ := at.ask(t, "/crowd-began")
		not("/crowd-began", began)
		must(t, s.Kill(t.Context(), id))
	}
}

// manyNames has more files made, looked up, renamed and removed than an engine
// may keep in mind: nothing of them is stale, also after a snapshot, and what is
// removed gives its space back.
func (s *suite) manyNames(t *testing.T) {
	a, b := s.slots[0], s.slots[1]
	id := s.start(t, a)
	a.expect(t, "", "/churn", "path", "/tmp/first")
	a.expect(t, "", "/fill", "path", "/tmp/big", "mb", "16")
	a.expect(t, "", "/left", "path", "/tmp/first")
	snap, dir := s.snapshot(t, id, true)
	s.resume(t, snap, dir, b)
	for _, at := range []*slot{a, b} {
		free := func() int {
			text, _ := at.ask(t, "/room", "path", "/")
			n, err := strconv.Atoi(text)
			must(t, err)
			return n
		}
		before := free()
		at.expect(t, "", "/left", "path", "/tmp/first")
		at.expect(t, "", "/remove", "path", "/tmp/big")
		if got := free(); got < before+16<<20 {
			t.Errorf("%d bytes are free after 16 MB were removed, %d before", got, before)
		}
		at.expect(t, "", "/churn", "path", "/tmp/second")
		at.expect(t, "", "/remove", "path", "/tmp/first")
		at.expect(t, "", "/left", "path", "/tmp/second")
	}
}

// filtered looks whether the host's kernel filters the system calls of all
// processes of an instance, be it booted or restored, and whether those without
// privileges on the host, the guest's code among them, have no capabilities in their
// user namespace either.
func (s *suite) filtered(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	look := func(id cay.InstanceID) {
		pids := beside(id, 0)
		if len(pids) == 0 {
			t.Fatal("it has no process")
		}
		unprivileged := 0
		for _, pid := range pids {
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
			if os.IsNotExist(err) {
				continue // it has ended since
			}
			must(t, err)
			if !bytes.Contains(text, []byte("\nSeccomp:\t2\n")) {
				t.Errorf("process %d runs without a filter:\n%s", pid, text)
			}
			if !bytes.Contains(text, []byte("\nUid:\t65534\t65534\t65534\t65534\n")) {
				continue
			}
			unprivileged++
			for _, set := range []string{"Inh", "Prm", "Eff", "Bnd", "Amb"} {
				if !bytes.Contains(text, []byte("\nCap"+set+":\t0000000000000000\n")) {
					t.Errorf("process %d has capabilities:\n%s", pid, text)
				}
			}
		}
		if unprivileged == 0 {
			t.Error("none of its processes is without privileges")
		}
	}
	look(id)
	snap, dir := s.snapshot(t, id, false)
	again := s.resume(t, snap, dir, at)
	at.expect(t, "ok", "/health")
	look(again)
}

// inCgroups expects each process of an instance in the instance's cgroup of every
// controller, however it is started.
func (s *suite) inCgroups(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	snap, dir := s.snapshot(t, id, true)
	must(t, s.Kill(t.Context(), id))
	s.allInside(t, s.resume(t, snap, dir, at))
	s.allInside(t, s.start(t, s.slots[1]))
}

func (s *suite) allInside(t *testing.T, id cay.InstanceID) {
	t.Helper()
	pids := beside(id, 0)
	if len(pids) < 2 {
		t.Fatalf("processes %v bear the instance's name", pids)
	}
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
		must(t, err)
		inside := 0
		for line := range strings.Lines(string(text)) {
			_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			controllers, path, _ := strings.Cut(rest, ":")
			switch {
			case strings.HasSuffix(path, "/"+string(id)):
				inside++
			case slices.Contains([]string{"cpu", "cpuacct", "cpu,cpuacct", "cpuset", "memory", "pids", "freezer", "devices", "blkio"}, controllers):
				t.Errorf("process %d is in %s of %s", pid, path, controllers)
			}
		}
		if inside == 0 {
			t.Errorf("process %d is in no cgroup of its instance: %s", pid, text)
		}
	}
}
