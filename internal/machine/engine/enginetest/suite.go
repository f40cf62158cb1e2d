// Package enginetest is what an engine must do to be one: the conformance
// suite that every implementation of engine.Engine runs.
//
// It needs root, a Go toolchain, mkfs.erofs and a kernel with network
// namespaces; it fails and names the missing one.
package enginetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// Run runs the suite. open is called more than once in one test and must
// return another Engine over the same state each time, as after a restart, that
// tells hook of its commands. It allows a restore limit.
func Run(t *testing.T, hook *Hook, open func(t testing.TB, limit time.Duration) engine.Engine) {
	if os.Getuid() != 0 {
		t.Fatal("the engine's conformance suite must run as root")
	}
	s := &suite{hook: hook, image: rootImage(t), dir: t.TempDir()}
	s.open = func(t testing.TB) engine.Engine { return open(t, RestoreLimit) }
	s.hasty = func(t testing.TB) engine.Engine { return open(t, hastyLimit) }
	s.slots = []*slot{newSlot(t, 0), newSlot(t, 1)}
	s.Engine = s.open(t)
	for _, c := range []struct {
		name string
		run  func(*suite, *testing.T)
	}{
		{"boot", (*suite).boot},
		{"checkpoint and restore", (*suite).restore},
		{"two restores side by side", (*suite).twins},
		{"refused snapshots", (*suite).strangers},
		{"adopt after restart", (*suite).adopt},
		{"half made", (*suite).halfMade},
		{"hold and release", (*suite).pause},
		{"freeze and thaw", (*suite).freeze},
		{"frozen while it maps", (*suite).frozenWhileItMaps},
		{"reserved mount", (*suite).reserved},
		{"changed files", (*suite).changes},
		{"snapshot of files", (*suite).files},
		{"memory snapshot's files", (*suite).filesOfMemory},
		{"held while files are saved", (*suite).filesHeld},
		{"set-uid programs", (*suite).elevate},
		{"own end", (*suite).ownEnd},
		{"out of memory", (*suite).outOfMemory},
		{"disk full", (*suite).diskFull},
		{"failed starts", (*suite).failedStarts},
		{"killed start", (*suite).killedStart},
		{"interrupted while it is saved", (*suite).interruptedSave},
		{"broken while it is saved", (*suite).brokenSave},
		{"broken while it is restored", (*suite).brokenRestore},
		{"restore that does not end", (*suite).endlessRestore},
		{"network namespaces", (*suite).namespaces},
		{"bridges", (*suite).bridges},
		{"connections that are over", (*suite).oldConnections},
		{"connections that are being closed", (*suite).closingConnections},
		{"renames", (*suite).renames},
		{"loopback address", (*suite).loopbackAddress},
		{"boot id", (*suite).bootID},
		{"limits of inotify", (*suite).inotifyLimits},
		{"ends of processes", (*suite).ends},
		{"room on the host", (*suite).hostRoom},
		{"volumes", (*suite).volumes},
		{"volumes by the agent", (*suite).byAgent},
		{"stale files", (*suite).stale},
		{"files of others", (*suite).others},
		{"links to moved files", (*suite).linksToMoved},
		{"renames into moved directories", (*suite).renamesIntoMoved},
		{"targets of links", (*suite).targetsOfLinks},
		{"errors of syncs", (*suite).errorsOfSyncs},
		{"locks", (*suite).locks},
		{"locks through a save", (*suite).savedLocks},
		{"mutexes of others", (*suite).mutexesOfOthers},
		{"docker", (*suite).docker},
		{"first to go", (*suite).firstToGo},
		{"contents of memory", (*suite).contents},
		{"memory watched", (*suite).watched},
		{"crowds stand still", (*suite).crowds},
		{"many names", (*suite).manyNames},
		{"filtered", (*suite).filtered},
		{"in its cgroups", (*suite).inCgroups},
		{"memory by demand", (*suite).memoryByDemand},
		{"untouched memory", (*suite).untouched},
		{"working set", (*suite).workingSet},
		{"traced working set", (*suite).traced},
		{"lost memory", (*suite).lostMemory},
		{"memory on a full disk", (*suite).memoryOnFullDisk},
		{"arriving memory", (*suite).arrivingMemory},
		{"arrivals that fail", (*suite).arrivalsThatFail},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(s, t) })
	}
}

// suite is one run over one engine.
type suite struct {
	engine.Engine
	open  func(testing.TB) engine.Engine
	hasty func(testing.TB) engine.Engine // allows a restore little time
	hook  *Hook
	image string
	dir   string
	slots []*slot
}

var limits = cay.Limits{CPUs: 1, MemoryMB: 128, DiskMB: 64}

func (s *suite) bootSpec(id cay.InstanceID, at *slot) engine.BootSpec {
	dir := filepath.Join(s.dir, string(id))
	return engine.BootSpec{
		ID: id, Root: s.image, Digest: "sha256-test", Args: []string{"/guest"}, Limits: limits,
		Dir: dir, Reserved: filepath.Join(dir, "reserved"), Net: at.net,
	}
}

// bootFrom boots an instance from the files of a snapshot; the test's end
// kills it.
func (s *suite) bootFrom(t *testing.T, from string, at *slot) cay.InstanceID {
	t.Helper()
	id := cay.NewInstanceID()
	spec := s.bootSpec(id, at)
	spec.From, spec.Args = from, nil // it knows what was booted
	at.address(t)
	s.endWith(t, id)
	must(t, s.Boot(t.Context(), spec))
	at.expect(t, "ok", "/health")
	return id
}

func (s *suite) restoreSpec(snap cay.Snapshot, from string, at *slot) engine.RestoreSpec {
	id := cay.NewInstanceID()
	dir := filepath.Join(s.dir, string(id))
	return engine.RestoreSpec{
		ID: id, Snapshot: snap, From: from, Root: s.image, Limits: limits,
		Dir: dir, Reserved: filepath.Join(dir, "reserved"), Net: at.net,
	}
}

// start boots an instance and waits for its guest; the test's end kills it.
func (s *suite) start(t *testing.T, at *slot) cay.InstanceID {
	t.Helper()
	id := cay.NewInstanceID()
	at.address(t)
	s.endWith(t, id)
	must(t, s.Boot(t.Context(), s.bootSpec(id, at)))
	at.expect(t, "ok", "/health")
	return id
}

// resume restores an instance; the test's end kills it.
func (s *suite) resume(t *testing.T, snap cay.Snapshot, from string, at *slot) cay.InstanceID {
	t.Helper()
	spec := s.restoreSpec(snap, from, at)
	at.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Restore(t.Context(), spec))
	return spec.ID
}

func (s *suite) endWith(t *testing.T, id cay.InstanceID) {
	t.Cleanup(func() {
		if err := s.Kill(context.Background(), id); err != nil {
			t.Errorf("kill at the end: %v", err)
		}
	})
}

// snapshot checkpoints an instance into a fresh directory.
func (s *suite) snapshot(t *testing.T, id cay.InstanceID, keep bool) (cay.Snapshot, string) {
	t.Helper()
	dir := t.TempDir()
	then := engine.Ends
	if keep {
		then = engine.GoesOn
	}
	snap, err := s.Checkpoint(t.Context(), id, dir, then)
	must(t, err)
	snap.ID = cay.NewSnapshotID()
	return snap, dir
}

// gone checks that nothing of an instance is left.
func (s *suite) gone(t *testing.T, id cay.InstanceID) {
	t.Helper()
	ids, err := s.List(t.Context())
	must(t, err)
	for _, other := range ids {
		if other == id {
			t.Fatalf("instance %s is still listed", id)
		}
	}
}
