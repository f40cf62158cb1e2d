package runsc

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchy finds an instance's cgroup in version 1 (also hybrid) or 2. runsc
// makes and limits it from the bundle; here it is read and, at the end,
// emptied and removed.
type hierarchy struct {
	v2     bool
	parent string
}

func findHierarchy(parent string) hierarchy {
	var st unix.Statfs_t
	err := unix.Statfs(cgroupRoot, &st)
	return hierarchy{v2: err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC, parent: parent}
}

// path is what the bundle says.
func (h hierarchy) path(id cay.InstanceID) string { return "/" + h.parent + "/" + string(id) }

// dir is the directory of one controller; version 2 has one for all.
func (h hierarchy) dir(controller string, id cay.InstanceID) string {
	if h.v2 {
		controller = ""
	}
	return filepath.Join(cgroupRoot, controller, h.parent, string(id))
}

// children names the instances that have a cgroup.
func (h hierarchy) children() []cay.InstanceID {
	entries, err := os.ReadDir(h.dir("memory", ""))
	if err != nil {
		return nil // nothing was ever started
	}
	var ids []cay.InstanceID
	for _, e := range entries {
		if e.IsDir() && cay.ValidID(e.Name()) {
			ids = append(ids, cay.InstanceID(e.Name()))
		}
	}
	return ids
}

// procs lists the processes of an instance.
func (h hierarchy) procs(id cay.InstanceID) []int {
	text, err := os.ReadFile(filepath.Join(h.dir("memory", id), "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for line := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// offered is the oom_score_adj of an instance's processes: the host's kernel
// ends a sandbox before it ends the server or anything else, and the biggest
// sandbox first.
const offered = "800"

// offer has every process of an instance ended before others when the host's
// memory is short. Children inherit that, so it is done when one pass finds
// nothing to change. It is a preference: where the host does not allow it, the
// instance runs all the same.
func (h hierarchy) offer(id cay.InstanceID) {
	const passes = 10
	for range passes {
		changed := false
		for _, pid := range h.procs(id) {
			path := filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj")
			text, err := os.ReadFile(path)
			if err != nil || string(bytes.TrimSpace(text)) == offered {
				continue
			}
			changed = os.WriteFile(path, []byte(offered), 0) == nil || changed
		}
		if !changed {
			return
		}
	}
}

// killAll ends every process of an instance and waits until they are gone.
// It reads the list again each time, because a forking runtime outruns one
// reading.
func (h hierarchy) killAll(id cay.InstanceID, grace time.Duration) error {
	deadline := time.Now().Add(grace)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids := h.procs(id)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return cay.Errorf(cay.Unavailable, "%d processes of instance %s do not end", len(pids), id)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // gone already is as good
		}
		_ = h.freeze(id, false) // version 1 keeps signals from the frozen
		time.Sleep(wait)
	}
}

// remove deletes an instance's empty cgroups.
func (h hierarchy) remove(id cay.InstanceID, grace time.Duration) error {
	dirs := []string{h.dir("", id)}
	if !h.v2 {
		dirs, _ = filepath.Glob(filepath.Join(cgroupRoot, "*", h.parent, string(id)))
	}
	deadline := time.Now().Add(grace)
	for _, dir := range dirs {
		for {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			// The last process leaves the list a moment before the cgroup.
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return cay.Wrap(cay.Unavailable, err, "cannot remove the cgroup of instance %s", id)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}

// Teardown removes the cgroup above all instances' own. It fails while there
// are instances.
func (e *Engine) Teardown() error { return e.cg.remove("", 0) }

// oomKills counts how often the kernel killed in this cgroup for memory.
func (h hierarchy) oomKills(id cay.InstanceID) int64 {
	file := "memory.oom_control"
	if h.v2 {
		file = "memory.events"
	}
	return keyed(filepath.Join(h.dir("memory", id), file), "oom_kill")
}

func (h hierarchy) usage(id cay.InstanceID) cay.Usage {
	mem := h.dir("memory", id)
	u := cay.Usage{Tasks: int(number(filepath.Join(h.dir("pids", id), "pids.current")))}
	if h.v2 {
		u.CPUTime = time.Duration(keyed(filepath.Join(mem, "cpu.stat"), "usage_usec")) * time.Microsecond
		u.MemoryUsed = number(filepath.Join(mem, "memory.current")) - pageCache(mem, "")
	} else {
		u.CPUTime = time.Duration(number(filepath.Join(h.dir("cpuacct", id), "cpuacct.usage")))
		u.MemoryUsed = number(filepath.Join(mem, "memory.usage_in_bytes")) - pageCache(mem, "total_")
	}
	u.MemoryUsed = max(u.MemoryUsed, 0)
	return u
}

// pageCache is the part of a cgroup's memory that the kernel can take back:
// files that several instances read, of a root image or a snapshot, count to the
// first that reads them.
func pageCache(dir, prefix string) int64 {
	stat := filepath.Join(dir, "memory.stat")
	return keyed(stat, prefix+"inactive_file") + keyed(stat, prefix+"active_file")
}

// number reads a file that holds one number; 0 when there is none.
func number(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return n
}

// keyed reads one line "key number" of a file; 0 when there is none.
func keyed(path, key string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), " "); ok && k == key {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
