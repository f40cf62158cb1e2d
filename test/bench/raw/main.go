// Command raw does with the engine alone what a server does with all of Cay,
// and prints how long that took: what Cay's figures are measured against. It
// works on the newest template of a given memory size, beside a server, in a
// network and a run directory of its own.
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
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/engine/runsc"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// works are what can be measured.
var works = map[string]func(context.Context, *bench) (any, error){
	"execute":    execute,
	"rested":     rested,
	"restore":    restore,
	"twocalls":   twoCalls,
	"waiting":    waiting,
	"checkpoint": checkpoint,
	"keep":       keep,
	"files":      files,
	"many":       many,
	"sustain":    sustain,
	"cost":       cost,
}

func main() {
	var b bench
	data := flag.String("data", "/var/lib/cay", "data directory of a server that has built its templates")
	flag.StringVar(&b.run, "run", "/run/cay-raw", "run directory of this program")
	memory := flag.Int("memory", 2048, "memory limit of the wanted snapshot, MB")
	wanted := flag.String("snapshot", "", "work on this snapshot instead")
	work := flag.String("work", "execute", "execute, rested, restore, twocalls, waiting, checkpoint, keep, files, many, sustain or cost")
	flag.IntVar(&b.count, "count", 1, "how many restores, for many and cost; seconds, for sustain")
	flag.StringVar(&b.inside, "inside", "", "a file with a program of the shell to run inside, for cost")
	loading := flag.String("loading", "eager", "how restores get memory: eager, demand, shared (by demand), or arriving (by the process that reads snapshots on their way here)")
	flag.StringVar(&b.set, "set", "", "a working set for demand and shared; the snapshot's own by default")
	flag.IntVar(&b.atOnce, "parallel", 3, "how many at once, for many and sustain")
	flag.Parse()
	b.loading = *loading
	out, err := b.measure(context.Background(), *data, cay.SnapshotID(*wanted), *memory, works[*work])
	if err != nil {
		fmt.Fprintln(os.Stderr, "raw:", err)
		os.Exit(1)
	}
	text, _ := json.Marshal(out)
	fmt.Println(string(text))
}

// bench is an engine with a network and a snapshot to work on.
type bench struct {
	run           string
	count, atOnce int
	inside        string
	loading, set  string

	eng        *runsc.Engine
	net        *vnet.Manager
	snap       cay.Snapshot
	engines    string // where its builds are
	from, root string
	dir        string // for what instances write
}

// took is one measured time.
type took struct {
	MS float64 `json:"ms"`
}

func since(begun time.Time) took { return took{float64(time.Since(begun).Microseconds()) / 1000} }

func (b *bench) measure(ctx context.Context, data string, wanted cay.SnapshotID, memory int, work func(context.Context, *bench) (any, error)) (out any, err error) {
	if work == nil {
		return nil, errors.New("no such work")
	}
	snapshots, err := snapshot.Open(data)
	if err != nil {
		return nil, err
	}
	if wanted == "" {
		if wanted, err = newest(snapshots, memory); err != nil {
			return nil, err
		}
	}
	if b.from, b.snap, err = snapshots.Get(wanted); err != nil {
		return nil, err
	}
	if b.root, err = snapshots.Image(b.snap.Root); err != nil {
		return nil, err
	}
	b.engines = filepath.Join(data, "engines")
	b.eng, err = runsc.Open(runsc.Config{Engines: b.engines, Hash: b.snap.EngineHash, Run: b.run, Cgroup: "cayraw"})
	if err != nil {
		return nil, err
	}
	if b.loading == "arriving" {
		stop, err := b.eng.Stream(func(context.Context, cay.SnapshotID) (engine.Arrival, error) { return here{b.from, b.snap}, nil })
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	b.net, err = vnet.Open(ctx, vnet.Config{Name: "cayraw", Network: netip.MustParsePrefix("10.206.0.0/16")})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.net.Teardown(ctx), b.eng.Teardown()) }()
	// Beside the server's data: the same disk writes for both.
	if b.dir, err = os.MkdirTemp(data, "bench-raw-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	return work(ctx, b)
}

func newest(snapshots *snapshot.Dir, memory int) (cay.SnapshotID, error) {
	all, err := snapshots.List()
	if err != nil {
		return "", err
	}
	var found cay.SnapshotID
	for _, s := range all {
		if s.Limits.MemoryMB == memory && s.Sandbox == "" {
			found = s.ID // oldest come first
		}
	}
	if found == "" {
		return "", fmt.Errorf("no snapshot has %d MB of memory", memory)
	}
	return found, nil
}

// box is a restored instance.
type box struct {
	id   cay.InstanceID
	slot vnet.Slot
}

// restore brings one up until its agent answers. The slot is there before, as
// a server has some.
func (b *bench) restore(ctx context.Context, slot vnet.Slot) (box, error) {
	it := box{cay.NewInstanceID(), slot}
	spec := engine.RestoreSpec{
		ID: it.id, Snapshot: b.snap, From: b.from, Root: b.root, Limits: b.snap.Limits,
		Dir: filepath.Join(b.dir, string(it.id)), Reserved: filepath.Join(b.run, "reserved", string(it.id)),
		Net: engine.Net{Namespace: slot.Namespace},
	}
	if err := b.load(&spec); err != nil {
		return it, err
	}
	if err := b.eng.Restore(ctx, spec); err != nil {
		return it, err
	}
	return it, ready(ctx, slot.Addr)
}

func ready(ctx context.Context, addr netip.Addr) error {
	client := toagent.New(addr)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return client.WaitReady(ctx, guest.AgentPort)
}

// end gives everything of one back.
func (b *bench) end(ctx context.Context, it box) error {
	return errors.Join(b.eng.Kill(ctx, it.id), b.net.Release(ctx, it.slot),
		os.RemoveAll(filepath.Join(b.dir, string(it.id))), os.RemoveAll(filepath.Join(b.run, "reserved", string(it.id))))
}

// with measures something with one that is up.
func (b *bench) with(ctx context.Context, do func(box) (any, error)) (out any, err error) {
	slot, err := b.net.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	it, err := b.restore(ctx, slot)
	defer func() { err = errors.Join(err, b.end(ctx, it)) }()
	if err != nil {
		return nil, err
	}
	return do(it)
}

// execute is a restore until "1" has run in the kernel inside.
func execute(ctx context.Context, b *bench) (any, error) {
	return b.timed(ctx, func(it box) error { return runOne(ctx, it.slot.Addr) })
}

// restore is a restore until the agent answers.
func restore(ctx context.Context, b *bench) (any, error) {
	return b.timed(ctx, func(box) error { return nil })
}

func (b *bench) timed(ctx context.Context, then func(box) error) (any, error) {
	slot, err := b.net.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	it, err := b.restore(ctx, slot)
	if err == nil {
		err = then(it)
	}
	out := since(begun)
	return out, errors.Join(err, b.end(ctx, it))
}

// checkpoint is a memory snapshot that ends the instance, synced; keep one
// that lets it run on, not synced: what the instance waits for.
func checkpoint(ctx context.Context, b *bench) (any, error) {
	return b.save(ctx, true, "checkpoint", "--compression=none", "--exclude-committed-zero-pages")
}

func keep(ctx context.Context, b *bench) (any, error) {
	return b.save(ctx, false, "checkpoint", "--compression=none", "--exclude-committed-zero-pages", "--leave-running")
}

// files is a snapshot of files alone, synced, after which it runs on.
func files(ctx context.Context, b *bench) (any, error) {
	return b.save(ctx, true, "fscheckpoint", "--leave-running")
}

func (b *bench) save(ctx context.Context, sync bool, command ...string) (any, error) {
	return b.with(ctx, func(it box) (any, error) {
		dir := filepath.Join(b.dir, "saved")
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		begun := time.Now()
		if err := b.runsc(ctx, nil, append(command, "--image-path="+dir, string(it.id))...); err != nil {
			return nil, err
		}
		if sync {
			if err := syncAll(dir); err != nil {
				return nil, err
			}
		}
		return since(begun), nil
	})
}

func syncAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range append([]string{"."}, names(entries)...) {
		f, err := os.Open(filepath.Join(dir, e))
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func names(entries []os.DirEntry) (out []string) {
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// many is the time until count restores answer, some at once.
func many(ctx context.Context, b *bench) (any, error) {
	var slots []vnet.Slot
	for range b.count {
		slot, err := b.net.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		slots = append(slots, slot)
	}
	boxes, errs := make([]box, b.count), make([]error, b.count)
	turns := make(chan struct{}, b.atOnce)
	var all sync.WaitGroup
	begun := time.Now()
	for i, slot := range slots {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			boxes[i], errs[i] = b.restore(ctx, slot)
		})
	}
	all.Wait()
	out := since(begun)
	for _, it := range boxes {
		errs = append(errs, b.end(ctx, it))
	}
	return out, errors.Join(errs...)
}

// sustain counts restores, each ended when it answers, for count seconds.
func sustain(ctx context.Context, b *bench) (any, error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var errs []error
	done, begun := 0, time.Now()
	for range b.atOnce {
		all.Go(func() {
			for time.Since(begun) < time.Duration(b.count)*time.Second {
				slot, err := b.net.Acquire(ctx)
				if err == nil {
					var it box
					it, err = b.restore(ctx, slot)
					err = errors.Join(err, b.end(ctx, it))
				}
				mu.Lock()
				done++
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return map[string]float64{"rate": float64(done) / time.Since(begun).Seconds()}, errors.Join(errs...)
}

// runOne runs "1" and waits for its result.
func runOne(ctx context.Context, addr netip.Addr) error {
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
