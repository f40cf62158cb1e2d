// Package volumetest has the tests that every volume.Storage passes.
package volumetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/volume"
)

// Options says what is tested.
type Options struct {
	// Open opens the storage in a directory, of which an earlier one may be open
	// yet, as if its process had been killed.
	Open func(t *testing.T, dir string) volume.Storage
	// SizeMB is how large the volumes are.
	SizeMB int
	// Bounded says that no more fits into a volume than its size.
	Bounded bool
	// Shrinks says that a volume becomes smaller when it holds little.
	Shrinks bool
	// GrowsIdle says that a volume becomes larger only while it is not attached.
	GrowsIdle bool
}

// Run runs the tests.
func Run(t *testing.T, o Options) {
	for _, test := range []struct {
		name string
		do   func(*fixture)
	}{
		{"a volume is made once, and is empty", created},
		{"a volume that is not there is not found", absent},
		{"files outlive the storage's end", outlives},
		{"a volume in use is not deleted", deleted},
		{"a clone has the files of its moment", cloned},
		{"a clone of a volume that is written is whole", clonedWhileWritten},
		{"a volume has the files of another in place of its own", replaced},
		{"a volume becomes larger while it is used", resized},
		{"a size below what is there is refused", shrunk},
		{"no more fits than the size", bounded},
		{"usage tells of files and bytes", used},
		{"what nobody waits for is not made", calledOff},
		{"many use it at once", together},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fixture{T: t, o: o, dir: t.TempDir()}
			f.s = f.open()
			test.do(f)
		})
	}
}

type fixture struct {
	*testing.T
	o   Options
	dir string
	s   volume.Storage
}

func (f *fixture) open() volume.Storage { return f.o.Open(f.T, f.dir) }

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) want(kind cay.Kind, err error) {
	f.Helper()
	if cay.KindOf(err) != kind || err == nil {
		f.Fatalf("want an error of kind %v, got %v", kind, err)
	}
}

// made makes a volume.
func (f *fixture) made() cay.VolumeID {
	f.Helper()
	id := cay.NewVolumeID()
	f.must(f.s.Create(f.Context(), id, f.o.SizeMB))
	return id
}

// attached attaches a volume until the test ends.
func (f *fixture) attached(id cay.VolumeID) string {
	f.Helper()
	dir, err := f.s.Attach(f.Context(), id)
	f.must(err)
	s := f.s
	f.Cleanup(func() { s.Detach(id) })
	return dir
}

// in calls do while a volume is attached.
func (f *fixture) in(id cay.VolumeID, do func(dir string)) {
	f.Helper()
	dir, err := f.s.Attach(f.Context(), id)
	f.must(err)
	defer f.s.Detach(id)
	do(dir)
}

func (f *fixture) write(path, text string) {
	f.Helper()
	f.must(os.WriteFile(path, []byte(text), 0o644))
}

func (f *fixture) has(path, text string) {
	f.Helper()
	got, err := os.ReadFile(path)
	f.must(err)
	if string(got) != text {
		f.Errorf("%s has %q, want %q", filepath.Base(path), got, text)
	}
}

func (f *fixture) list(ids ...cay.VolumeID) {
	f.Helper()
	got, err := f.s.List(f.Context())
	f.must(err)
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		f.Errorf("there are %v, want %v", got, ids)
	}
}

func created(f *fixture) {
	f.list()
	id := f.made()
	f.list(id)
	f.want(cay.Conflict, f.s.Create(f.Context(), id, f.o.SizeMB))
	f.want(cay.Invalid, f.s.Create(f.Context(), cay.NewVolumeID(), 0))
	f.in(id, func(dir string) {
		names, err := os.ReadDir(dir)
		f.must(err)
		if len(names) > 0 {
			f.Errorf("a new volume holds %v", names)
		}
		var st syscall.Stat_t
		f.must(syscall.Lstat(dir, &st))
		if os.Geteuid() == 0 && (st.Uid != 1000 || st.Gid != 1000) {
			f.Errorf("its root is %d:%d's", st.Uid, st.Gid)
		}
		if st.Mode&0o7777 != 0o755 {
			f.Errorf("its root has the mode %o", st.Mode&0o7777)
		}
	})
	f.list(id)
}

func absent(f *fixture) {
	there := f.made()
	for _, id := range []cay.VolumeID{cay.NewVolumeID(), "", "..", "../" + there, there + ".new"} {
		_, err := f.s.Attach(f.Context(), id)
		f.want(cay.NotFound, err)
		_, err = f.s.Usage(f.Context(), id)
		f.want(cay.NotFound, err)
		f.want(cay.NotFound, f.s.Clone(f.Context(), id, cay.NewVolumeID()))
		f.want(cay.NotFound, f.s.Resize(f.Context(), id, f.o.SizeMB))
		f.must(f.s.Delete(f.Context(), id))
	}
	f.list(there)
}

// outlives opens the storage anew while the first has a volume attached, as if
// the process had been killed, and finds all as it was.
func outlives(f *fixture) {
	id, other := f.made(), f.made()
	f.in(id, func(dir string) {
		f.write(filepath.Join(dir, "file"), "kept")
		kept, err := os.Open(filepath.Join(dir, "file"))
		f.must(err)
		defer kept.Close() // by a sandbox that outlives the server
		f.must(kept.Sync())

		f.s = f.open()
		f.list(id, other)
		f.in(id, func(dir string) {
			f.has(filepath.Join(dir, "file"), "kept")
			f.write(filepath.Join(dir, "second"), "too")
		})
	})
}

func deleted(f *fixture) {
	id, other := f.made(), f.made()
	f.in(id, func(dir string) {
		f.in(id, func(again string) {
			if again != dir {
				f.Errorf("it is at %s and at %s", dir, again)
			}
		})
		f.write(filepath.Join(dir, "file"), "x")
		f.want(cay.Conflict, f.s.Delete(f.Context(), id))
		f.has(filepath.Join(dir, "file"), "x")
	})
	f.must(f.s.Delete(f.Context(), id))
	f.must(f.s.Delete(f.Context(), id))
	_, err := f.s.Attach(f.Context(), id)
	f.want(cay.NotFound, err)
	f.list(other)
	left, err := os.ReadDir(f.dir)
	f.must(err)
	if len(left) != 1 {
		f.Errorf("beside the other volume there are %v", left)
	}
}

func replaced(f *fixture) {
	id, from := f.made(), cay.NewVolumeID()
	f.in(id, func(dir string) { f.write(filepath.Join(dir, "file"), "before") })
	f.must(f.s.Clone(f.Context(), id, from))
	f.in(id, func(dir string) {
		f.write(filepath.Join(dir, "file"), "after")
		f.write(filepath.Join(dir, "more"), "after")
		f.want(cay.Conflict, f.s.Replace(f.Context(), from, id))
		f.has(filepath.Join(dir, "more"), "after")
	})
	for range 2 { // a snapshot may be used again, while it is attached
		f.must(f.s.Replace(f.Context(), from, id))
		f.in(from, func(source string) {
			f.in(id, func(dir string) {
				f.has(filepath.Join(dir, "file"), "before")
				if _, err := os.Lstat(filepath.Join(dir, "more")); !errors.Is(err, os.ErrNotExist) {
					f.Errorf("what was there is there yet: %v", err)
				}
				f.write(filepath.Join(dir, "file"), "own")
				f.has(filepath.Join(source, "file"), "before")
			})
		})
	}
	f.want(cay.NotFound, f.s.Replace(f.Context(), cay.NewVolumeID(), id))
	f.want(cay.NotFound, f.s.Replace(f.Context(), from, cay.NewVolumeID()))
	f.want(cay.Conflict, f.s.Replace(f.Context(), id, id))
	f.list(id, from)
	left, err := os.ReadDir(f.dir)
	f.must(err)
	if len(left) != 2 {
		f.Errorf("beside the volumes there are %v", left)
	}
	f.s = f.open() // as after a crash
	f.in(id, func(dir string) { f.has(filepath.Join(dir, "file"), "own") })
}

func cloned(f *fixture) {
	from, id, second := f.made(), cay.NewVolumeID(), cay.NewVolumeID()
	dir := f.attached(from)
	f.must(os.MkdirAll(filepath.Join(dir, "a", "b"), 0o750))
	f.write(filepath.Join(dir, "a", "b", "file"), "before")
	f.must(os.Symlink("b/file", filepath.Join(dir, "a", "link")))
	f.must(f.s.Clone(f.Context(), from, id))
	f.want(cay.Conflict, f.s.Clone(f.Context(), from, id))
	f.want(cay.Conflict, f.s.Clone(f.Context(), from, from))
	f.write(filepath.Join(dir, "a", "b", "file"), "after")
	copied := f.attached(id)
	f.has(filepath.Join(copied, "a", "link"), "before")
	f.has(filepath.Join(dir, "a", "link"), "after")
	f.write(filepath.Join(copied, "own"), "x")
	if _, err := os.Lstat(filepath.Join(dir, "own")); !errors.Is(err, os.ErrNotExist) {
		f.Errorf("a clone's file is in its source: %v", err)
	}
	f.must(f.s.Clone(f.Context(), id, second)) // both are attached
	f.in(second, func(dir string) { f.has(filepath.Join(dir, "own"), "x") })
	f.list(from, id, second)
}

// clonedWhileWritten clones a volume in which files get their names when they
// are whole: a clone has no half of one.
func clonedWhileWritten(f *fixture) {
	if !f.o.Bounded {
		f.Skip("copies directories one file after the other")
	}
	from := f.made()
	dir := f.attached(from)
	text := bytes.Repeat([]byte("whole"), 10_000)
	var stop atomic.Bool
	var writing sync.WaitGroup
	began := make(chan struct{})
	var once sync.Once
	writing.Go(func() {
		for n := 0; !stop.Load(); n++ {
			path := filepath.Join(dir, fmt.Sprint(n%50))
			if err := errors.Join(writeSynced(path+".new", text), os.Rename(path+".new", path)); err != nil {
				f.Error(err)
				break
			}
			once.Do(func() { close(began) })
		}
		once.Do(func() { close(began) })
	})
	<-began
	var clones []cay.VolumeID
	for range 3 {
		clones = append(clones, cay.NewVolumeID())
		if err := f.s.Clone(f.Context(), from, clones[len(clones)-1]); err != nil {
			f.Error(err)
		}
	}
	stop.Store(true)
	writing.Wait()
	if f.Failed() {
		return
	}
	for _, id := range clones {
		f.in(id, func(dir string) {
			files, err := filepath.Glob(filepath.Join(dir, "*[0-9]"))
			f.must(err)
			if len(files) == 0 {
				f.Error("a clone is empty")
			}
			for _, path := range files {
				got, err := os.ReadFile(path)
				f.must(err)
				if !bytes.Equal(got, text) {
					f.Errorf("%s of a clone has %d bytes", filepath.Base(path), len(got))
				}
			}
		})
	}
}

func writeSynced(path string, text []byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Sync(), file.Close())
}

func resized(f *fixture) {
	id := f.made()
	dir, err := f.s.Attach(f.Context(), id)
	f.must(err)
	f.write(filepath.Join(dir, "file"), "x")
	before, err := f.s.Usage(f.Context(), id)
	f.must(err)
	if f.o.GrowsIdle {
		f.want(cay.Conflict, f.s.Resize(f.Context(), id, f.o.SizeMB*2))
		f.s.Detach(id)
		f.must(f.s.Resize(f.Context(), id, f.o.SizeMB*2))
		dir, err = f.s.Attach(f.Context(), id)
		f.must(err)
	}
	s := f.s
	defer s.Detach(id)
	f.must(f.s.Resize(f.Context(), id, f.o.SizeMB*2))
	f.must(f.s.Resize(f.Context(), id, f.o.SizeMB*2))
	after, err := f.s.Usage(f.Context(), id)
	f.must(err)
	more := int64(f.o.SizeMB) << 20
	if after.Size != before.Size+more || (after.Size-after.Used)-(before.Size-before.Used) < more*8/10 {
		f.Errorf("from %+v to %+v", before, after)
	}
	f.has(filepath.Join(dir, "file"), "x")
	if f.o.Bounded { // there is room where there was none
		f.must(noise(filepath.Join(dir, "much"), before.Size-before.Used+more/2))
	}
	f.s = f.open()
	again, err := f.s.Usage(f.Context(), id)
	f.must(err)
	if again.Size != after.Size {
		f.Errorf("opened anew, it has %d bytes instead of %d", again.Size, after.Size)
	}
}

func shrunk(f *fixture) {
	id := f.made()
	f.in(id, func(dir string) { f.must(noise(filepath.Join(dir, "much"), int64(f.o.SizeMB)<<20/2)) })
	f.want(cay.Invalid, f.s.Resize(f.Context(), id, f.o.SizeMB/4))
	if f.o.Shrinks {
		f.must(f.s.Resize(f.Context(), id, f.o.SizeMB-1))
	}
	f.in(id, func(dir string) {
		info, err := os.Stat(filepath.Join(dir, "much"))
		f.must(err)
		if info.Size() != int64(f.o.SizeMB)<<20/2 {
			f.Errorf("a file has %d bytes", info.Size())
		}
	})
}

func bounded(f *fixture) {
	if !f.o.Bounded {
		f.Skip("bounds nothing")
	}
	id := f.made()
	f.in(id, func(dir string) {
		path := filepath.Join(dir, "much")
		if err := noise(path, int64(f.o.SizeMB)<<20); !errors.Is(err, syscall.ENOSPC) {
			f.Fatalf("a full volume says %v", err)
		}
		u, err := f.s.Usage(f.Context(), id)
		f.must(err)
		if u.Used > u.Size || u.Used < u.Size*9/10 {
			f.Errorf("a full volume has %+v", u)
		}
		f.must(os.Remove(path))
		f.must(noise(path, int64(f.o.SizeMB)<<20/2))
	})
}

func used(f *fixture) {
	id := f.made()
	empty, err := f.s.Usage(f.Context(), id)
	f.must(err)
	if empty.Size != int64(f.o.SizeMB)<<20 || empty.Files != 0 || empty.Used > empty.Size/2 {
		f.Errorf("an empty volume has %+v", empty)
	}
	const bytes = 3 << 20
	f.in(id, func(dir string) {
		f.must(os.Mkdir(filepath.Join(dir, "dir"), 0o755))
		f.must(noise(filepath.Join(dir, "dir", "file"), bytes))
		f.must(os.Symlink("nowhere", filepath.Join(dir, "link")))
		u, err := f.s.Usage(f.Context(), id)
		for begun := time.Now(); err == nil && u.Files != 3 && time.Since(begun) < time.Minute; { // XFS counts what it is still removing
			u, err = f.s.Usage(f.Context(), id)
		}
		f.must(err)
		if u.Files != 3 || u.Used < empty.Used+bytes || u.Used > empty.Used+2*bytes || u.Stored < empty.Stored+bytes*8/10 {
			f.Errorf("with three files it has %+v, empty it had %+v", u, empty)
		}
	})
}

func calledOff(f *fixture) {
	from := f.made()
	ended, end := context.WithCancel(f.Context())
	end()
	if err := f.s.Create(ended, cay.NewVolumeID(), f.o.SizeMB); err == nil {
		f.Error("a volume was made that nobody waits for")
	}
	if err := f.s.Clone(ended, from, cay.NewVolumeID()); err == nil {
		f.Error("a clone was made that nobody waits for")
	}
	f.list(from)
	left, err := os.ReadDir(f.dir)
	f.must(err)
	if len(left) != 1 {
		f.Errorf("there are %v", left)
	}
}

// together has many attach, clone, count and remove at once.
func together(f *fixture) {
	id := f.made()
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			if err := useIt(f, id, n); err != nil {
				f.Error(err)
			}
		})
	}
	all.Wait()
	f.list(id)
	f.in(id, func(dir string) {
		for n := range 8 {
			f.has(filepath.Join(dir, fmt.Sprint(n)), fmt.Sprint(n))
		}
	})
	f.must(f.s.Delete(f.Context(), id))
	f.list()
}

func useIt(f *fixture, id cay.VolumeID, n int) error {
	dir, err := f.s.Attach(f.Context(), id)
	if err != nil {
		return err
	}
	defer f.s.Detach(id)
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), fmt.Append(nil, n), 0o644); err != nil {
		return err
	}
	if _, err := f.s.Usage(f.Context(), id); err != nil {
		return err
	}
	if err := f.s.Delete(f.Context(), id); cay.KindOf(err) != cay.Conflict {
		return fmt.Errorf("removing one in use: %w", err)
	}
	own := cay.NewVolumeID()
	if err := f.s.Clone(f.Context(), id, own); err != nil {
		return err
	}
	if _, err := f.s.Attach(f.Context(), own); err != nil {
		return err
	}
	f.s.Detach(own)
	return f.s.Delete(f.Context(), own)
}

// noise writes bytes that nothing can leave out, and has the disk take them.
func noise(path string, size int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{1})
	block := make([]byte, 1<<20)
	for left := size; left > 0 && err == nil; left -= int64(len(block)) {
		block = block[:min(left, int64(len(block)))]
		_, _ = random.Read(block)
		_, err = file.Write(block)
	}
	return errors.Join(err, file.Sync(), file.Close())
}
