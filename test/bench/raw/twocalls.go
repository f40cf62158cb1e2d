package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
)

// runsc runs one command of the snapshot's engine, on what this program's
// engine has started.
func (b *bench) runsc(ctx context.Context, image *os.File, args ...string) error {
	all := append([]string{"--root=" + filepath.Join(b.run, "runsc")}, b.snap.EngineFlags...)
	cmd := exec.CommandContext(ctx, filepath.Join(b.engines, b.snap.EngineHash, "cay-runsc"), append(all, args...)...)
	if image != nil {
		// It leaves a sandbox behind, whose standard files are /dev/null.
		cmd.ExtraFiles = []*os.File{image}
		return cmd.Run()
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("cay-runsc %s: %w: %s", args[0], err, out)
	}
	return nil
}

// twoCalls is a create and a restore by hand, as gVisor's documentation has it,
// until the agent answers.
func twoCalls(ctx context.Context, b *bench) (out any, err error) { return b.inTwo(ctx, false) }

// waiting is twoCalls with an engine that waits already: only the second call
// counts. It tells besides how long the first took, and what an engine takes that
// waits.
func waiting(ctx context.Context, b *bench) (out any, err error) { return b.inTwo(ctx, true) }

// waited is a start in an engine that waited.
type waited struct {
	took
	CreateMS float64 `json:"createMS"`
	MemoryMB float64 `json:"memoryMB"` // of the engine that waits, by its cgroup
}

func (b *bench) inTwo(ctx context.Context, beforehand bool) (out any, err error) {
	slot, err := b.net.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	id := cay.NewInstanceID()
	bundle, overlay := filepath.Join(b.dir, "bundle"), filepath.Join(b.dir, "overlay")
	reserved := filepath.Join(b.dir, "reserved")
	for _, dir := range []string{filepath.Join(bundle, "root"), overlay, reserved} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := b.writeBundle(bundle, reserved, slot.Namespace, id); err != nil {
		return nil, err
	}
	image, err := os.Open(b.root)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	defer func() {
		err = errors.Join(err, b.runsc(ctx, nil, "delete", "--force", string(id)), b.net.Release(ctx, slot))
	}()
	flag := fmt.Sprintf("--overlay2=root:dir=%s,size=%dm", overlay, b.snap.Limits.DiskMB)
	begun := time.Now()
	if err := b.runsc(ctx, image, flag, "create", "--bundle="+bundle, string(id)); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	created, memory := since(begun), 0.0
	if beforehand {
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/memory/cayraw", string(id), "memory.usage_in_bytes"))
		if err == nil { // else the cgroups are of version 2, and the figure is left out
			_, _ = fmt.Sscan(string(text), &memory)
		}
		begun = time.Now()
	}
	if err := b.runsc(ctx, image, flag, "restore", "--detach", "--bundle="+bundle, "--image-path="+b.from, string(id)); err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	if err := ready(ctx, slot.Addr); err != nil {
		return nil, err
	}
	if beforehand {
		return waited{since(begun), created.MS, memory / 1e6}, nil
	}
	return since(begun), nil
}

// writeBundle writes the snapshot's bundle with the places of this instance.
func (b *bench) writeBundle(dir, reserved, namespace string, id cay.InstanceID) error {
	f, err := os.Open(filepath.Join(b.from, "bundle.json"))
	if err != nil {
		return err
	}
	defer f.Close()
	var doc map[string]any
	in := json.NewDecoder(f)
	in.UseNumber() // limits need all 64 bits
	if err := in.Decode(&doc); err != nil {
		return err
	}
	doc["root"].(map[string]any)["path"] = filepath.Join(dir, "root")
	linux := doc["linux"].(map[string]any)
	linux["cgroupsPath"] = "/cayraw/" + string(id)
	for _, n := range linux["namespaces"].([]any) {
		if n := n.(map[string]any); n["type"] == "network" {
			n["path"] = namespace
		}
	}
	for _, m := range doc["mounts"].([]any) {
		if m := m.(map[string]any); m["type"] == "bind" {
			m["source"] = reserved
		}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600)
}
