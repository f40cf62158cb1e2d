package control_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func TestFork(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	spec := w.spec(time.Hour)
	spec.Metadata = map[string]string{"a": "b"}
	s, err := w.c.Create(ctx, w.who(), spec)
	if err != nil {
		t.Fatal(err)
	}
	var made atomic.Int32
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
		if made.Add(1) == 2 {
			return cay.Errorf(cay.Exhausted, "no more")
		}
		return nil
	}
	forks, err := w.c.Fork(ctx, cay.ForTeam(s.Team), s.ID, 3, time.Minute)
	if err != nil || len(forks) != 3 {
		t.Fatalf("forks: %v, %v", forks, err)
	}
	failed := 0
	ids := map[cay.SandboxID]bool{s.ID: true}
	var live []cay.Sandbox
	for _, f := range forks {
		if f.Err != nil {
			failed++
			if cay.KindOf(f.Err) != cay.Exhausted {
				t.Errorf("a fork failed: %v", f.Err)
			}
			continue
		}
		live = append(live, f.Sandbox)
		ids[f.Sandbox.ID] = true
		i := w.instance(f.Sandbox)
		if i.Resume || i.Snapshot == "s1" || i.AccessToken == w.instance(s).AccessToken || i.Env["SECRET"] != "x" ||
			f.Sandbox.Metadata["a"] != "b" || f.Sandbox.Template != s.Template || f.Sandbox.EndAt.Sub(f.Sandbox.StartedAt) != time.Minute {
			t.Errorf("fork %+v runs as %+v", f.Sandbox, i)
		}
	}
	if failed != 1 || len(ids) != 3 {
		t.Fatalf("%d failed, ids %v", failed, ids)
	}
	w.is(s, cay.Running)
	// Their snapshot lives as long as one of them.
	saved := live[0].Snapshot
	w.saved(saved)
	for n, f := range live {
		if err := w.c.Kill(ctx, cay.ForTeam(f.Team), f.ID); err != nil {
			t.Error(err)
		}
		if n == 0 {
			w.saved(saved)
		}
	}
	w.saved()
}

func TestWrongForks(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	for _, tt := range []struct {
		id      cay.SandboxID
		count   int
		timeout time.Duration
		want    cay.Kind
	}{
		{s.ID, 0, time.Hour, cay.Invalid},
		{s.ID, 101, time.Hour, cay.Invalid},
		{s.ID, 1, 0, cay.Invalid},
		{"inone", 1, time.Hour, cay.NotFound},
	} {
		if _, err := w.c.Fork(t.Context(), cay.ForTeam(s.Team), tt.id, tt.count, tt.timeout); cay.KindOf(err) != tt.want {
			t.Errorf("fork %+v: %v", tt, err)
		}
	}
	w.node.OnSave = func(cay.InstanceID) error { return cay.Errorf(cay.NoSpace, "full") }
	if _, err := w.c.Fork(t.Context(), cay.ForTeam(s.Team), s.ID, 1, time.Hour); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("fork on a full disk: %v", err)
	}
	w.node.OnSave = nil
	w.pause(s)
	if _, err := w.c.Fork(t.Context(), cay.ForTeam(s.Team), s.ID, 1, time.Hour); cay.KindOf(err) != cay.Conflict {
		t.Errorf("fork of a paused sandbox: %v", err)
	}
	if n := len(w.node.Alive()); n != 0 {
		t.Errorf("%d instances came of it", n)
	}
}

func TestSnapshots(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s := w.create(time.Hour)
	plain, err := w.c.Snapshot(ctx, cay.ForTeam(s.Team), s.ID, "", cay.MemorySnapshot)
	if err != nil || len(plain.Names) != 0 || plain.Source != s.ID || plain.Limits != s.Limits {
		t.Fatalf("snapshot %+v, %v", plain, err)
	}
	named, err := w.c.Snapshot(ctx, cay.ForTeam(s.Team), s.ID, "Mine:default", cay.MemorySnapshot)
	if err != nil || len(named.Names) != 1 || named.Names[0] != "mine" {
		t.Fatalf("snapshot %+v, %v", named, err)
	}
	newest, err := w.c.Snapshot(ctx, cay.ForTeam(s.Team), s.ID, "mine", cay.MemorySnapshot)
	if err != nil || newest.ID != named.ID || newest.Snapshot == named.Snapshot {
		t.Fatalf("snapshot %+v, %v", newest, err)
	}
	w.saved(plain.Snapshot, newest.Snapshot)
	for _, tt := range []struct {
		of   cay.SandboxID
		name string
		want int
	}{{"", "", 2}, {s.ID, "", 2}, {"iother", "", 0}, {"", "mine", 1}, {"", "nope", 0}, {"", "base", 0}} {
		if list, err := w.c.Snapshots(ctx, cay.ForTeam(s.Team), tt.of, tt.name); err != nil || len(list) != tt.want {
			t.Errorf("list %+v: %v, %v", tt, list, err)
		}
	}
	if list, err := w.c.Templates(ctx, cay.ForTeam(s.Team)); err != nil || len(list) != 1 {
		t.Errorf("templates: %v, %v", list, err)
	}
	for ref, want := range map[string]cay.SnapshotID{
		string(plain.ID) + ":default": plain.Snapshot, w.team.Name + "/mine:default": newest.Snapshot,
	} {
		spec := w.spec(time.Hour)
		spec.Template = ref
		child, err := w.c.Create(ctx, w.who(), spec)
		if err != nil || w.instance(child).Snapshot != want {
			t.Fatalf("create of %s: %+v, %v", ref, child, err)
		}
		if err := w.c.RemoveTemplate(ctx, cay.ForTeam(s.Team), ref); cay.KindOf(err) != cay.Invalid {
			t.Errorf("remove what is in use: %v", err)
		}
		w.pause(child)
		if err := w.c.Kill(ctx, cay.ForTeam(child.Team), child.ID); err != nil {
			t.Error(err)
		}
		if err := w.c.RemoveTemplate(ctx, cay.ForTeam(s.Team), ref); err != nil {
			t.Error(err)
		}
		if err := w.c.RemoveTemplate(ctx, cay.ForTeam(s.Team), ref); cay.KindOf(err) != cay.NotFound {
			t.Errorf("remove twice: %v", err)
		}
	}
	w.saved()
	for name, want := range map[string]cay.Kind{
		"base": cay.Conflict, "a b": cay.Invalid, "x:a b": cay.Invalid, "stranger/x": cay.Denied,
	} {
		if _, err := w.c.Snapshot(ctx, cay.ForTeam(s.Team), s.ID, name, cay.MemorySnapshot); cay.KindOf(err) != want {
			t.Errorf("snapshot named %q: %v", name, err)
		}
	}
	w.saved()
	w.alive(s)
}
