package node

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
)

// A run directory without room refuses new work by its name, and ends nothing.
func TestAFullRunDirectory(t *testing.T) {
	m := newMachine(t)
	cfg := m.config()
	cfg.Reserved = disktest.Ext4(t, 16<<20)
	n, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	box, other := create(t, n), create(t, n)
	empty := disktest.Fill(t, cfg.Reserved)
	if _, err := n.Create(t.Context(), spec()); cay.KindOf(err) != cay.NoSpace || !strings.Contains(err.Error(), cfg.Reserved) {
		t.Errorf("a create: %v", err)
	}
	if err := n.Kill(t.Context(), other.Spec.Instance, cay.CauseAsked); err != nil {
		t.Errorf("an end: %v", err)
	}
	found(t, n, box)
	empty()
	create(t, n)
}

// An agent that has no room for its identity tells of its own disk; where the
// host's is full, that is the one to name.
func TestAnIdentityWithoutRoom(t *testing.T) {
	m := newMachine(t)
	cfg := m.config()
	cfg.Dir = disktest.Ext4(t, 16<<20)
	n, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	empty := func() {}
	for _, full := range []bool{false, true} {
		m.on("init", func() error {
			if full {
				empty = disktest.Fill(t, cfg.Dir)
			}
			return cay.Errorf(cay.NoSpace, "its own disk is full")
		})
		_, err := n.Create(t.Context(), spec())
		empty()
		if cay.KindOf(err) != cay.NoSpace || strings.Contains(err.Error(), "the disk of "+cfg.Dir+" is full") != full {
			t.Errorf("the host's disk is full: %v; it is said: %v", full, err)
		}
	}
	m.on("init", nil)
	create(t, n)
}

// On a disk that has come to its reserve new work is refused, saves and resumes
// go on into a part of it, and an end is always possible.
func TestADiskAtItsReserve(t *testing.T) {
	m := newMachine(t)
	dir := disktest.Ext4(t, 512<<20)
	cfg := m.config()
	cfg.Disk = disk.Reserve{Dir: dir}
	n, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	box, other := create(t, n), create(t, n)
	calls := map[string]func() error{
		"create": func() error {
			_, err := n.Create(t.Context(), spec())
			return err
		},
		"build": func() error {
			l, err := n.Borrow(t.Context(), BootSpec{Digest: "digest", Root: "/root.erofs", Limits: cay.Limits{CPUs: 1, MemoryMB: 1, DiskMB: 1}})
			if err == nil {
				l.Return()
			}
			return err
		},
		"resume": func() error {
			again := spec()
			again.Resume = true
			_, err := n.Create(t.Context(), again)
			return err
		},
		"checkpoint": func() error {
			return n.Checkpoint(context.Background(), other.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot})
		},
		"pause": func() error {
			return n.Pause(context.Background(), box.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot})
		},
	}
	level, err := cfg.Disk.Level()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct {
		what    string
		free    int64
		refused []string
	}{
		{"in the reserve", level.Reserve - 1<<20, []string{"build", "create"}},
		{"at its end", level.Reserve / 8, []string{"build", "checkpoint", "create", "pause", "resume"}},
	} {
		left := disktest.FillTo(t, dir, at.free)
		m.events = nil
		var refused []string
		for name, call := range calls {
			if name == "pause" && at.refused[len(at.refused)-1] != "resume" {
				continue // it would end the sandbox
			}
			err := call()
			if err != nil && cay.KindOf(err) != cay.NoSpace {
				t.Errorf("%s, %s: %v", at.what, name, err)
			}
			if err != nil {
				refused = append(refused, name)
			}
		}
		slices.Sort(refused)
		if !slices.Equal(refused, at.refused) {
			t.Errorf("%s: %v is refused, want %v", at.what, refused, at.refused)
		}
		if slices.Contains(m.events, "hold") {
			t.Errorf("%s: a guest was held for a save that is refused", at.what)
		}
		left()
	}
	defer disktest.FillTo(t, dir, 64<<10)()
	if err := n.Kill(t.Context(), other.Spec.Instance, cay.CauseAsked); err != nil {
		t.Errorf("an end on a full disk: %v", err)
	}
	found(t, n, box)
}
