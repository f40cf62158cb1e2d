package agent

import (
	"bytes"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cay-run/cay/internal/guest"
)

const (
	mib = 1 << 20
	// clockTick is the unit of CPU times in /proc: USER_HZ, which is 100 for
	// user space on every architecture we run on.
	clockTick = 10 * time.Millisecond
)

// limits are what the host says this sandbox has; zero where it said nothing.
type limits struct {
	cpus   int
	memory uint64
	disk   uint64
}

func (l *limits) merge(in guest.Init) {
	if in.CPUs > 0 {
		l.cpus = in.CPUs
	}
	if in.MemoryMB > 0 {
		l.memory = uint64(in.MemoryMB) * mib
	}
	if in.DiskMB > 0 {
		l.disk = uint64(in.DiskMB) * mib
	}
}

// figures is the answer of /metrics, in bytes.
type figures struct {
	Timestamp  int64   `json:"ts"`
	CPUCount   int     `json:"cpu_count"`
	CPUUsedPct float64 `json:"cpu_used_pct"`
	MemTotal   uint64  `json:"mem_total"`
	MemUsed    uint64  `json:"mem_used"`
	MemCache   uint64  `json:"mem_cache"`
	MemTotalMB uint64  `json:"mem_total_mib"`
	MemUsedMB  uint64  `json:"mem_used_mib"`
	DiskUsed   uint64  `json:"disk_used"`
	DiskTotal  uint64  `json:"disk_total"`
}

func (a *Agent) procRoot() string { return a.path("/proc") }

// metrics answers with what the sandbox has and uses.
func (a *Agent) metrics(w http.ResponseWriter, _ *http.Request) {
	a.mu.RLock()
	l := a.limits
	a.mu.RUnlock()
	now := time.Now()
	f := figures{Timestamp: now.Unix(), CPUCount: l.cpus}
	if f.CPUCount == 0 {
		f.CPUCount = runtime.NumCPU()
	}
	f.CPUUsedPct = a.cpu.percent(a.procRoot(), now, f.CPUCount)

	mem, err := readMemory(a.procRoot())
	if err != nil {
		a.log.Warn("metrics: read memory", "err", err)
	}
	f.MemTotal, f.MemUsed, f.MemCache = mem.total, mem.used(), mem.cache
	if l.memory > 0 {
		f.MemTotal = l.memory
	}
	f.MemTotalMB, f.MemUsedMB = f.MemTotal/mib, f.MemUsed/mib

	var st syscall.Statfs_t
	if err := syscall.Statfs(a.path("/"), &st); err != nil {
		a.log.Warn("metrics: read disk", "err", err)
	} else {
		unit := uint64(st.Bsize)
		f.DiskTotal = st.Blocks * unit
		f.DiskUsed = (st.Blocks - min(st.Bfree, st.Blocks)) * unit
	}
	if l.disk > 0 {
		f.DiskTotal = l.disk
	}
	writeJSON(w, f)
}

// memory is what /proc/meminfo says, in bytes.
type memory struct{ total, free, available, cache uint64 }

func (m memory) used() uint64 { return m.total - min(m.total, m.free+m.cache) }

// readMemory reads the figures of the machine that procRoot shows.
func readMemory(procRoot string) (memory, error) {
	text, err := os.ReadFile(filepath.Join(procRoot, "meminfo"))
	if err != nil {
		return memory{}, err
	}
	return parseMemory(text), nil
}

// parseMemory reads lines like "MemFree:  123 kB". A figure that it does not
// know, or cannot read, is zero.
func parseMemory(text []byte) memory {
	var m memory
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, err := strconv.ParseUint(string(f[1]), 10, 53)
		if err != nil {
			continue
		}
		switch string(f[0]) {
		case "MemTotal:":
			m.total = kb << 10
		case "MemFree:":
			m.free = kb << 10
		case "MemAvailable:":
			m.available = kb << 10
		case "Buffers:", "Cached:", "SReclaimable:":
			m.cache += kb << 10
		}
	}
	return m
}

// cpuMeter tells how busy the sandbox was between two questions.
type cpuMeter struct {
	mu   sync.Mutex
	at   time.Time
	used time.Duration
	pct  float64
}

func (c *cpuMeter) start(procRoot string, now time.Time) {
	c.at, c.used = now, cpuUsed(procRoot)
}

// percent returns the busy share of all CPUs since it was last asked. Questions
// in quick succession get the same answer: the times come in coarse ticks.
func (c *cpuMeter) percent(procRoot string, now time.Time, cpus int) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	span := now.Sub(c.at)
	if span < 10*clockTick {
		return c.pct
	}
	used := cpuUsed(procRoot)
	share := 100 * float64(used-c.used) / float64(span) / float64(max(cpus, 1))
	c.at, c.used = now, used
	c.pct = math.Round(100*min(max(share, 0), 100)) / 100
	return c.pct
}

// cpuUsed returns the CPU time of everything that runs, with what its waited-for
// children used. gVisor leaves the totals of /proc/stat empty.
func cpuUsed(procRoot string) time.Duration {
	var ticks uint64
	for _, pid := range pids(procRoot) {
		text, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "stat"))
		if err != nil {
			continue // it is gone
		}
		for _, n := range parseStat(text).cpu {
			ticks += n
		}
	}
	return time.Duration(ticks) * clockTick
}

// stat is what the agent wants of /proc/<pid>/stat.
type stat struct {
	comm string
	ppid int
	pgrp int
	cpu  [4]uint64 // user and system time, its own and its waited-for children's
}

// parseStat reads a line like "1 (name) S 0 1 …". The name may hold anything,
// so the last parenthesis ends it.
func parseStat(text []byte) stat {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return stat{}
	}
	s := stat{comm: string(text[open+1 : end])}
	f := bytes.Fields(text[end+1:])
	if len(f) < 15 {
		return s
	}
	s.ppid, _ = strconv.Atoi(string(f[1])) // zero where it is no number
	s.pgrp, _ = strconv.Atoi(string(f[2]))
	for i := range s.cpu {
		s.cpu[i], _ = strconv.ParseUint(string(f[11+i]), 10, 48)
	}
	return s
}

// pids lists the processes that procRoot shows.
func pids(procRoot string) []int {
	entries, err := os.ReadDir(procRoot)
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid > 0 {
			out = append(out, pid)
		}
	}
	return out
}
