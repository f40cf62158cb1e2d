package runsc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/engine"
)

const (
	reservedMount = guest.ReservedMount
	bundleName    = engine.BundleFile
	// memoryFuse is what the cgroup's limit holds above the guest's memory, for
	// the sentry and as a fuse: beyond it the kernel ends the whole sandbox. The
	// agent's guard keeps the guest within its promise, but a fork bomb takes
	// 400 MB a second while the guard waits for its turn. cmd/cay-runsc/sentry
	// takes the same figure off what the guest is told.
	memoryFuse = 512
	// maxTasks is a fuse for the host: reaching it ends the sandbox, so the
	// guest's own process limit is meant to bite first.
	maxTasks = 20000
)

type rlimit struct {
	Type string `json:"type"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

type mount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options,omitempty"`
}

// document is an OCI bundle's config.json. It is kept as a tree, because a
// restore must give back whatever an older build wrote and patch only what is
// free to change.
type document map[string]any

// place is what differs between two instances with the same bundle.
type place struct {
	root      string // an empty directory
	cgroup    string
	namespace string
	reserved  string
	store     string // an empty directory, for Docker's store
	limits    cay.Limits
	low       bool // the least share of the processors, until it is thawed
}

func newDocument(args []string, diskMB int, docker bool, p place) document {
	allowed := capabilitiesOf(docker)
	d := document{
		"ociVersion":  "1.2.0",
		"hostname":    engine.Hostname,
		"root":        map[string]any{"path": p.root},
		"mounts":      mounts(p, docker),
		"annotations": annotations(diskMB, p, docker),
		"process": map[string]any{
			"user": map[string]any{"uid": 0, "gid": 0},
			"args": args,
			"cwd":  "/",
			"env": []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				"HOME=/root",
				guest.WatchedVariable + "=1",
			},
			"rlimits": rlimits,
			"capabilities": map[string]any{
				"bounding": allowed, "effective": allowed, "permitted": allowed,
			},
		},
		"linux": map[string]any{
			"namespaces": []map[string]any{
				{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"},
			},
		},
	}
	d = d.clone()
	if err := d.put(p); err != nil {
		panic(err) // the document above is whole
	}
	return d
}

// clone passes the document through JSON, so that a new one and one that was
// read look alike.
func (d document) clone() document {
	text, err := json.Marshal(d)
	if err != nil {
		panic(err) // plain data
	}
	out, err := decode(text)
	if err != nil {
		panic(err)
	}
	return out
}

// decode keeps numbers as they are written: limits need all 64 bits.
func decode(text []byte) (document, error) {
	var d document
	in := json.NewDecoder(bytes.NewReader(text))
	in.UseNumber()
	err := in.Decode(&d)
	return d, err
}

// put fills in the parts that are free to change at restore.
func (d document) put(p place) error {
	root, ok1 := d["root"].(map[string]any)
	linux, ok2 := d["linux"].(map[string]any)
	mounts, ok3 := d["mounts"].([]any)
	if !ok1 || !ok2 || !ok3 {
		return fmt.Errorf("bundle lacks root, linux or mounts")
	}
	root["path"] = p.root
	linux["cgroupsPath"] = p.cgroup
	linux["resources"] = resources(p.limits, p.low)
	namespaces, _ := linux["namespaces"].([]any)
	for _, n := range namespaces {
		if n, ok := n.(map[string]any); ok && n["type"] == "network" {
			n["path"] = p.namespace
		}
	}
	for _, m := range mounts {
		m, _ := m.(map[string]any)
		switch m["destination"] {
		case reservedMount:
			m["source"] = p.reserved
		case guest.DockerStore:
			m["source"] = p.store
		}
	}
	if notes, _ := d["annotations"].(map[string]any); notes[storePrefix+"source"] != nil {
		notes[storePrefix+"source"] = p.store
	}
	d["hostname"] = engine.Hostname
	return nil
}

func resources(l cay.Limits, low bool) map[string]any {
	share := fullShare(l)
	if low {
		share = lowShare
	}
	return map[string]any{
		"memory": map[string]any{"limit": int64(l.MemoryMB+memoryFuse) << 20},
		"cpu":    map[string]any{"quota": share.quota, "period": share.period, "shares": share.weight},
		"pids":   map[string]any{"limit": maxTasks},
	}
}

// writeBundle lays a bundle down: config.json and the empty root directory.
func writeBundle(dir string, d document) error {
	if err := os.MkdirAll(filepath.Join(dir, "root"), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600)
}

func readDocument(path string) (document, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return decodeDocument(f)
}

func decodeDocument(f *os.File) (document, error) {
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	d, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return d, nil
}
