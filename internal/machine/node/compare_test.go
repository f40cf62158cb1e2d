package node

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// image makes an empty root image where the machine says that it is.
func (m *machine) image(t *testing.T) {
	t.Helper()
	f, err := os.Create(m.dir + "/digest.erofs")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(erofs.New().Write(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestCompare(t *testing.T) {
	m := newMachine(t)
	m.image(t)
	n := m.open(t)
	s := create(t, n).Spec
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Team: s.Team, Sandbox: s.Sandbox}
	if err := n.Checkpoint(t.Context(), s.Instance, record); err != nil {
		t.Fatal(err)
	}
	m.changed = map[string][]string{unfinished: {"now"}}
	before, after := cay.Moment{Snapshot: record.ID}, cay.Moment{Instance: s.Instance}
	got, err := n.Compare(t.Context(), before, after)
	if err != nil || got.Added != 1 || len(got.Changes) != 1 || got.Changes[0].Path != "/now" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, ok := n.Lookup(s.Sandbox); !ok || len(n.Instances()) != 1 {
		t.Errorf("%d instances run", len(n.Instances()))
	}
	if m.unfinished != 0 || len(m.containers) != 1 {
		t.Errorf("%d unfinished snapshots and %d containers are left", m.unfinished, len(m.containers))
	}
	if _, s, _ := n.cfg.Snapshots.Get(record.ID); len(layerOf(s)) == 0 {
		t.Error("the files that were read are not kept")
	}
	restores := func() int {
		return len(m.events) - len(slices.DeleteFunc(slices.Clone(m.events), func(e string) bool { return e == "restore" }))
	}
	was := restores()
	if _, err := n.Compare(t.Context(), before, before); err != nil || restores() != was {
		t.Errorf("it was restored once more: %v", err)
	}
	if len(m.inits) != 1 {
		t.Errorf("%d agents were told who they are", len(m.inits))
	}
}

func TestCompareFails(t *testing.T) {
	m := newMachine(t)
	m.image(t)
	n := m.open(t)
	s := create(t, n).Spec
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Team: s.Team, Sandbox: s.Sandbox}
	if err := n.Checkpoint(t.Context(), s.Instance, record); err != nil {
		t.Fatal(err)
	}
	here := cay.Moment{Snapshot: record.ID}
	for _, step := range []string{"get", "check", "restore", "files", "attach", "readfiles"} {
		m.on(step, func() error { return cay.Errorf(cay.Internal, "no %s", step) })
		if _, err := n.Compare(t.Context(), here, cay.Moment{Instance: s.Instance}); err == nil {
			t.Errorf("compared without %s", step)
		}
		m.on(step, nil)
		if m.unfinished != 0 || len(m.containers) != 1 {
			t.Fatalf("%s: %d unfinished snapshots and %d containers are left", step, m.unfinished, len(m.containers))
		}
	}
	if _, err := n.Compare(t.Context(), here, cay.Moment{Instance: cay.NewInstanceID()}); cay.KindOf(err) != cay.NotFound {
		t.Errorf("compared with an unknown instance: %v", err)
	}
	other := m.saved[record.ID]
	other.ID, other.Root = cay.NewSnapshotID(), "other"
	m.saved[other.ID] = other
	if _, err := n.Compare(t.Context(), here, cay.Moment{Snapshot: other.ID}); cay.KindOf(err) != cay.Conflict {
		t.Errorf("compared on another root: %v", err)
	}
}

// ReadFiles visits the empty files that a test says were changed.
func (m *machine) ReadFiles(dir string, visit func(*tar.Header, io.Reader) error) error {
	if err := m.step("readfiles"); err != nil {
		return err
	}
	for _, name := range m.changed[shown(dir)] {
		if err := visit(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, nil); err != nil {
			return err
		}
	}
	return nil
}
