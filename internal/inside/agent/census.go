package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// census is the processes that the guard may end, by PID.
type census map[int]member

type member struct {
	stat
	pid int
	rss uint64
}

// victim is the biggest process, those it descends from (itself first), and
// its process group.
type victim struct {
	pid, pgrp int
	comm      string
	rss       uint64
	line      []int
	group     []int
	groupRSS  uint64
}

// takeCensus counts all processes but PID 1 and self.
func takeCensus(proc string, self int) census {
	all := make(census)
	for _, pid := range pids(proc) {
		if pid == self || pid == 1 {
			continue
		}
		text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
		if err != nil {
			continue // it is gone
		}
		if rss, ok := resident(proc, pid); ok {
			all[pid] = member{parseStat(text), pid, rss}
		}
	}
	return all
}

// biggest finds the process with the most memory.
func (c census) biggest() (victim, bool) {
	var v victim
	for pid, m := range c {
		if m.rss > v.rss {
			v = victim{pid: pid, pgrp: m.pgrp, comm: m.comm, rss: m.rss}
		}
	}
	if v.pid == 0 {
		return victim{}, false
	}
	v.line = c.line(v.pid)
	for pid, m := range c {
		if m.pgrp == v.pgrp {
			v.group = append(v.group, pid)
			v.groupRSS += m.rss
		}
	}
	return v, true
}

// line is a process and those it descends from, itself first.
func (c census) line(pid int) []int {
	var line []int
	for m, ok := c[pid]; ok && len(line) < 64; m, ok = c[m.ppid] {
		line = append(line, m.pid)
	}
	return line
}

// head is the oldest process that one descends from. A bomb's can be hundreds
// of forks away.
func (c census) head(pid int) int {
	for range c { // no line is longer, whatever was read
		parent, ok := c[c[pid].ppid]
		if !ok {
			break
		}
		pid = parent.pid
	}
	return pid
}

// crowd finds the most processes that belong together: a process group, or,
// where none is many, what descends from one child of PID 1, or what has one
// name and descends from no child that PID 1 has started, for a bomb may leave
// its group and its parents may be gone. Commands that clients start have one
// name often, and each is a family of its own. It is empty where none of those
// are many.
func (c census) crowd(started map[int]bool) []int {
	groups, families, names := map[int][]int{}, map[int][]int{}, map[string][]int{}
	for pid, m := range c {
		head := c.head(pid)
		groups[m.pgrp] = append(groups[m.pgrp], pid)
		families[head] = append(families[head], pid)
		if !started[head] {
			names[m.comm] = append(names[m.comm], pid)
		}
	}
	for _, most := range [][]int{longest(groups), longest(families), longest(names)} {
		if len(most) >= guardStorm {
			return most
		}
	}
	return nil
}

func longest[K comparable](sets map[K][]int) []int {
	var most []int
	for _, set := range sets {
		if len(set) > len(most) {
			most = set
		}
	}
	return most
}

// cost is what processes take of the sandbox's memory, with the engine's part.
func (c census) cost(set []int) uint64 {
	n := uint64(len(set)) * guardPerTask
	for _, pid := range set {
		n += c[pid].rss
	}
	return n
}

// resident returns the memory that a process occupies.
func resident(proc string, pid int) (uint64, bool) {
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0, false
	}
	f := bytes.Fields(text)
	if len(f) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseUint(string(f[1]), 10, 40)
	if err != nil {
		return 0, false
	}
	return pages * uint64(os.Getpagesize()), true
}
