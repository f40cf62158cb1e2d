package node

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// hostRoom reads what this host has left.
func hostRoom() (Room, error) {
	var r Room
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return r, err
	}
	for line := range bytes.Lines(text) {
		name, rest, _ := strings.Cut(string(line), ":")
		kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch name {
		case "MemTotal":
			r.Memory = kb << 10
		case "MemAvailable":
			r.MemoryFree = kb << 10
		}
	}
	text, err = os.ReadFile("/proc/loadavg")
	if err != nil {
		return r, err
	}
	var load float64
	var running, tasks int
	if _, err := fmt.Sscanf(string(text), "%f %f %f %d/%d", &load, &load, &load, &running, &tasks); err != nil {
		return r, fmt.Errorf("/proc/loadavg holds %.40q: %w", text, err)
	}
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		if most := number(file); most > 0 && (r.Tasks == 0 || most < r.Tasks) {
			r.Tasks, r.TasksFree = most, most-tasks
		}
	}
	// In a container the root of what is seen of the cgroups has a limit.
	for _, dir := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/pids/"} {
		most, now := number(dir+"pids.max"), number(dir+"pids.current")
		if most > 0 && most-now < r.TasksFree {
			r.Tasks, r.TasksFree = most, most-now
		}
	}
	return r, nil
}

// number reads a file that holds one; 0 when there is none.
func number(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}
