package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

func TestPauseAndResume(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	first := create(t, n)
	s := first.Spec
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Parent: s.Snapshot, Team: s.Team, Sandbox: s.Sandbox, Secure: true}
	if err := n.Pause(t.Context(), s.Instance, record); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Lookup(s.Sandbox); ok {
		t.Error("a paused sandbox is found")
	}
	if d := nextDeath(t, n); d.Instance != s.Instance || d.Cause != cay.CauseAsked {
		t.Errorf("death: %+v", d)
	}
	nothingLeft(t, m, n)
	order := []string{"gone", "begin", "hold", "checkpoint", "commit", "kill"}
	at := 0
	for _, e := range m.events {
		if at < len(order) && e == order[at] {
			at++
		}
	}
	if at != len(order) {
		t.Errorf("events %v do not follow %v", m.events, order)
	}
	if got := n.Snapshots(); len(got) != 1 || got[0].ID != record.ID || got[0].Parent != s.Snapshot || got[0].Root != "digest" {
		t.Errorf("snapshots: %+v", got)
	}

	s.Instance, s.Snapshot, s.Resume = cay.NewInstanceID(), record.ID, true
	if _, err := n.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if in, token := m.inits[1], m.tokens[1]; in.Mode != guest.ModeResume || in.SandboxID != string(s.Sandbox) || token != "token of "+string(s.Sandbox) {
		t.Errorf("resumed with token %q: %+v", token, in)
	}
	if m.tokens[0] != "" || m.inits[0].Mode != guest.ModeCreate {
		t.Errorf("a template's agent was given token %q", m.tokens[0])
	}
	if err := n.RemoveSnapshot(t.Context(), record.ID); err != nil || len(n.Snapshots()) != 0 {
		t.Errorf("the snapshot is still there: %v", err)
	}
}

// Paused instances that wait for the disk have what a running one has: a pause waits
// while they are many, and changes nothing when it is given up.
func TestPausesWaitForTheFilesOfOthers(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	written := make(chan struct{})
	write := sync.OnceFunc(func() { close(written) })
	defer write()
	m.on("files", func() error { <-written; return nil })
	pause := func(ctx context.Context, inst cay.Instance) error {
		return n.Pause(ctx, inst.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: inst.Spec.Sandbox})
	}
	for range maxLeaving {
		if err := pause(t.Context(), create(t, n)); err != nil {
			t.Fatal(err)
		}
	}
	next := create(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pause(ctx, next); err == nil {
		t.Error("a pause found a place where there was none")
	}
	if _, ok := n.Lookup(next.Spec.Sandbox); !ok {
		t.Error("the pause that was given up ended the sandbox")
	}
	done := make(chan error, 1)
	go func() { done <- pause(t.Context(), next) }()
	write()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// One of files alone waits for no disk.
	if err := n.Pause(t.Context(), create(t, n).Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Kind: cay.FilesSnapshot}); err != nil {
		t.Error(err)
	}
	for range maxLeaving + 2 {
		nextDeath(t, n)
	}
	nothingLeft(t, m, n)
}

// TestCopiedAhead: the copy of a memory begins when it is written, where a client waits for it.
func TestCopiedAhead(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	ahead := func() (out []string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, e := range m.events {
			if id, ok := strings.CutPrefix(e, "ahead "); ok {
				out = append(out, id)
			}
		}
		return out
	}
	for _, kind := range []cay.SnapshotKind{cay.MemorySnapshot, cay.FilesSnapshot} {
		for _, durable := range []bool{false, true} {
			ctx, before, record := t.Context(), len(ahead()), cay.Snapshot{ID: cay.NewSnapshotID(), Kind: kind}
			if durable {
				ctx = cay.WithDurable(ctx)
			}
			if err := n.Pause(ctx, create(t, n).Spec.Instance, record); err != nil {
				t.Fatal(err)
			}
			nextDeath(t, n)
			got := ahead()[before:]
			if want := durable && kind == cay.MemorySnapshot; len(got) > 1 || want != slices.Contains(got, string(record.ID)) {
				t.Errorf("durable %t, of %s: copied ahead are %v", durable, kind, got)
			}
		}
	}
}

func TestCheckpointLeavesItRunning(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	inst := create(t, n)
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: inst.Spec.Sandbox}
	if err := n.Checkpoint(t.Context(), inst.Spec.Instance, record); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Lookup(inst.Spec.Sandbox); !ok || slices.Contains(m.events, "gone") || slices.Contains(m.events, "hold") {
		t.Errorf("it was disturbed: %v", m.events)
	}
	clone := spec()
	clone.Snapshot = record.ID
	if _, err := n.Create(t.Context(), clone); err != nil {
		t.Fatal(err)
	}
	if m.inits[1].Mode != guest.ModeCreate || m.tokens[1] != "" {
		t.Errorf("clone of a sandbox without token: %q, %+v", m.tokens[1], m.inits[1])
	}
	if err := n.Checkpoint(t.Context(), cay.NewInstanceID(), record); cay.KindOf(err) != cay.NotFound {
		t.Errorf("checkpoint of nothing: %v", err)
	}
}

// An instance that may run Docker is saved as one, and booted as one from its files.
func TestTheFlagDockerGoesOnWithSnapshots(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := spec()
	m.saved[s.Snapshot] = cay.Snapshot{ID: s.Snapshot, Root: "digest", Boot: cay.Boot{Docker: true}, Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024}}
	if _, err := n.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	id := cay.NewSnapshotID()
	if err := n.Pause(t.Context(), s.Instance, cay.Snapshot{ID: id, Kind: cay.MemorySnapshot, Sandbox: s.Sandbox}); err != nil {
		t.Fatal(err)
	}
	nextDeath(t, n)
	if _, saved, err := n.cfg.Snapshots.Get(id); err != nil || !saved.Boot.Docker {
		t.Errorf("saved as %+v, %v", saved, err)
	}
	s.Instance, s.Snapshot, s.Resume, s.FilesOnly = cay.NewInstanceID(), id, true, true
	if _, err := n.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if !m.containers[s.Instance].docker {
		t.Error("it is booted without what Docker needs")
	}
}

func TestAFailedPauseLeavesItRunning(t *testing.T) {
	for _, step := range []string{"hold", "begin", "checkpoint", "commit"} {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			n := m.open(t)
			inst := create(t, n)
			full := cay.Wrap(cay.NoSpace, syscall.ENOSPC, "the disk is full")
			m.on(step, func() error { return full })
			err := n.Pause(t.Context(), inst.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: inst.Spec.Sandbox})
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("Pause = %v", err)
			}
			if _, ok := n.Lookup(inst.Spec.Sandbox); !ok || len(n.Snapshots()) != 0 || m.unfinished != 0 {
				t.Errorf("found %v, snapshots %v, unfinished %d", ok, n.Snapshots(), m.unfinished)
			}
			if m.containers[inst.Spec.Instance].held {
				t.Error("it is still held")
			}
			if _, err := os.Stat(filepath.Join(n.journal(inst.Spec.Instance), heldFile)); !os.IsNotExist(err) {
				t.Errorf("the mark is left: %v", err)
			}
			m.on(step, nil)
			if err := n.Pause(t.Context(), inst.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: inst.Spec.Sandbox}); err != nil {
				t.Errorf("the next pause: %v", err)
			}
		})
	}
}

func TestADeathDuringAPauseIsTold(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	inst := create(t, n)
	m.on("checkpoint", func() error {
		m.die(inst.Spec.Instance, cay.Death{Cause: cay.CauseOutOfMemory})
		return nil
	})
	if err := n.Pause(t.Context(), inst.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID()}); err == nil {
		t.Error("a dead sandbox was paused")
	}
	if d := nextDeath(t, n); d.Cause != cay.CauseOutOfMemory {
		t.Errorf("death: %+v", d)
	}
	nothingLeft(t, m, n)
}

func TestACrashDuringAPauseLeavesItRunning(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	inst := create(t, n)
	id := inst.Spec.Instance
	// The server is killed with the guest held: nothing after it happens.
	if err := errors.Join(n.markHeld(n.instances[id]), m.Hold(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	n.Close()
	m.crash()
	n = m.open(t)
	if _, ok := n.Lookup(inst.Spec.Sandbox); !ok || m.containers[id].held {
		t.Errorf("found %v, held %v", ok, m.containers[id].held)
	}
	if err := n.Pause(t.Context(), id, cay.Snapshot{ID: cay.NewSnapshotID()}); err != nil {
		t.Error(err)
	}
}
