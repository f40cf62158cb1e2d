// Command raw restores the newest snapshot of a given memory size with the
// engine alone and runs "1" in its kernel, and prints how long that took:
// what a create through the whole of Cay is measured against. It runs beside
// a server, in a network and a run directory of its own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/engine"
	"github.com/cay-run/cay/internal/engine/runsc"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/snapshot"
	"github.com/cay-run/cay/internal/vnet"
)

func main() {
	data := flag.String("data", "/var/lib/cay", "data directory of a server that has built its templates")
	run := flag.String("run", "/run/cay-raw", "run directory of this program")
	memory := flag.Int("memory", 2048, "memory limit of the wanted snapshot, MB")
	flag.Parse()
	took, err := measure(context.Background(), *data, *run, *memory)
	if err != nil {
		fmt.Fprintln(os.Stderr, "raw:", err)
		os.Exit(1)
	}
	fmt.Printf("{\"ms\": %.2f}\n", took.Seconds()*1000)
}

func measure(ctx context.Context, data, run string, memory int) (took time.Duration, err error) {
	snapshots, err := snapshot.Open(data)
	if err != nil {
		return 0, err
	}
	snap, err := newest(snapshots, memory)
	if err != nil {
		return 0, err
	}
	from, _, err := snapshots.Get(snap.ID)
	if err != nil {
		return 0, err
	}
	root, err := snapshots.Image(snap.Root)
	if err != nil {
		return 0, err
	}
	eng, err := runsc.Open(runsc.Config{
		Engines: filepath.Join(data, "engines"), Hash: snap.EngineHash, Run: run, Cgroup: "cayraw",
	})
	if err != nil {
		return 0, err
	}
	net, err := vnet.Open(ctx, vnet.Config{Name: "cayraw", Network: netip.MustParsePrefix("10.209.0.0/16")})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, net.Teardown(ctx), net.Close()) }()
	slot, err := net.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	id := cay.NewInstanceID()
	dir, err := os.MkdirTemp("", "cay-raw-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	defer func() { err = errors.Join(err, eng.Kill(ctx, id)) }()

	begun := time.Now()
	err = eng.Restore(ctx, engine.RestoreSpec{
		ID: id, Snapshot: snap, From: from, Root: root, Limits: snap.Limits, Dir: dir,
		Reserved: filepath.Join(run, "reserved", string(id)), Net: engine.Net{Namespace: slot.Namespace},
	})
	if err != nil {
		return 0, err
	}
	if err := execute(ctx, slot.Addr); err != nil {
		return 0, err
	}
	return time.Since(begun), nil
}

func newest(snapshots *snapshot.Dir, memory int) (cay.Snapshot, error) {
	all, err := snapshots.List()
	if err != nil {
		return cay.Snapshot{}, err
	}
	var found cay.Snapshot
	for _, s := range all {
		if s.Limits.MemoryMB == memory {
			found = s // oldest come first
		}
	}
	if found.ID == "" {
		return found, fmt.Errorf("no snapshot has %d MB of memory", memory)
	}
	return found, nil
}

// execute runs "1" and waits for its result.
func execute(ctx context.Context, addr netip.Addr) error {
	url := fmt.Sprintf("http://%s/execute", netip.AddrPortFrom(addr, guest.InterpPort))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"code":"1"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var event struct{ Type, Text string }
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return fmt.Errorf("execute answered %q: %w", lines.Text(), err)
		}
		if event.Type == "result" && event.Text == "1" {
			return nil
		}
	}
	return errors.New("execute gave no result")
}
