package snapshot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// keptName is the list of a snapshot's large files that were compared with their
// checksums, beside them. It spares the next server the reading and is of no
// use after a reboot: what a disk did meanwhile is not known.
const keptName = "checked.json"

// kept is what keptName holds.
type kept struct {
	Boot  string           `json:"boot"` // of the host's kernel
	Files map[string]stamp `json:"files"`
}

// boot names this run of the host's kernel; empty when that is not known, and
// then nothing is kept.
var boot = sync.OnceValue(func() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
})

// readKept reads the list of a snapshot. One that cannot be read, or is of an
// earlier boot, is empty.
func readKept(dir string) kept {
	out := kept{Boot: boot(), Files: map[string]stamp{}}
	text, err := readBounded(filepath.Join(dir, keptName))
	var k kept
	if err == nil && out.Boot != "" && json.Unmarshal(text, &k) == nil && k.Boot == out.Boot && k.Files != nil {
		return k
	}
	return out
}

// recall has a file that this process has not checked count as whole if an
// earlier one found it so and it is the same since.
func (c *checks) recall(dir, name string) {
	f := c.get(filepath.Join(dir, name))
	select {
	case f.busy <- struct{}{}:
		defer func() { <-f.busy }()
	default: // it is being checked
		return
	}
	if !f.at.IsZero() {
		return
	}
	if s, known := readKept(dir).Files[name]; known {
		f.stamp, f.at = s, time.Unix(0, 0) // some time ago
	}
}

// keep writes down that a file is whole. A failure costs the next server a
// reading.
func (c *checks) keep(dir, name string) {
	f := c.get(filepath.Join(dir, name))
	f.busy <- struct{}{}
	s := f.stamp
	<-f.busy
	c.keeping.Lock()
	defer c.keeping.Unlock()
	k := readKept(dir)
	k.Files[name] = s
	writeKept(dir, k)
}

func writeKept(dir string, k kept) {
	text, err := json.Marshal(k)
	if err != nil || k.Boot == "" {
		return
	}
	aside := filepath.Join(dir, keptName+".new")
	if os.WriteFile(aside, text, 0o600) != nil || os.Rename(aside, filepath.Join(dir, keptName)) != nil {
		_ = os.Remove(aside)
	}
}
