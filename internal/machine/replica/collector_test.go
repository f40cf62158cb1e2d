package replica

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

const (
	collecting = "CAY_TEST_COLLECTOR" // the bucket, the rows and the data of the process
	keepShort  = 6 * time.Second      // longer than a snapshot takes to the bucket
)

// collects has a machine remove what rows deny: files named as the snapshots.
func collects(ctx context.Context, r *Replica, rows string) error {
	_, err := r.Collect(ctx, func(id cay.SnapshotID) (bool, error) {
		_, err := os.Stat(filepath.Join(rows, string(id)))
		return err == nil, nil
	})
	return err
}

// hurries has a bucket's times be those of a test.
func hurries(r *Replica) {
	r.keepFor, r.condemnedFor, r.settle = keepShort, keepShort*2/3, keepShort/6
}

// version makes one of five templates' root images, in thirty versions: each has what others of
// its template have, too, behind what is its own.
func (m machine) version(t testing.TB, seed uint64) cay.Snapshot {
	t.Helper()
	return m.savesOn(t, seed, "t", append(noise(seed, 10<<10), noise(100+seed%5, 100<<10)...))
}

// TestCollector is the process that TestCollectorIsKilled kills.
func TestCollector(t *testing.T) {
	at := strings.Fields(os.Getenv(collecting))
	if len(at) == 0 {
		return
	}
	dir, err := snapshot.Open(at[2])
	noError(t, err)
	bucket, err := blob.OpenDir(at[0])
	noError(t, err)
	r := New(bucket, dir, at[2], newKey(), "one", func(int64) error { return nil })
	hurries(r)
	fmt.Println("collecting")
	for {
		if err := collects(t.Context(), r, at[1]); err != nil {
			fmt.Println("failed:", err)
		}
	}
}

// Snapshots, with engines that some of them share and images of which some have the same pieces, are copied and removed by
// several machines, twenty for each time that the process of the collector is killed, which is
// CLUSTER_CUTS times at least: what has a row is whole, and two rounds later nothing else is left.
func TestCollectorIsKilled(t *testing.T) {
	kills, _ := strconv.Atoi(os.Getenv("CLUSTER_CUTS"))
	if kills == 0 {
		t.Skip("NOT TESTED HERE: it takes minutes; make test-cluster-faults has it")
	}
	w, rows := newWorld(t), t.TempDir()
	noError(t, w.machine("one").Take(t.Context()))
	stop := make(chan struct{})
	var working sync.WaitGroup
	var mu sync.Mutex
	living, made := map[cay.SnapshotID]cay.Snapshot{}, 0
	copied := func() int {
		mu.Lock()
		defer mu.Unlock()
		return made
	}
	for range 4 {
		m := w.machine("one") // of a cluster all write
		hurries(m.Replica)
		working.Go(func() {
			var mine []cay.SnapshotID
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := m.version(t, rand.Uint64N(30))
				noError(t, os.WriteFile(filepath.Join(rows, string(s.ID)), nil, 0o600))
				if err := m.Push(t.Context(), s.ID); err != nil {
					t.Errorf("a copy while others are removed: %v", err)
				}
				mine = append(mine, s.ID)
				mu.Lock()
				living[s.ID] = s
				made++
				for len(mine) > 3 {
					i := rand.IntN(len(mine))
					noError(t, os.Remove(filepath.Join(rows, string(mine[i]))))
					delete(living, mine[i])
					mine = slices.Delete(mine, i, i+1)
				}
				mu.Unlock()
			}
		})
	}
	time.Sleep(keepShort)
	killed := 0
	for ; killed < kills || copied() < 20*kills; killed++ {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCollector$")
		cmd.Env = append(os.Environ(), collecting+"="+strings.Join([]string{w.bucket, rows, t.TempDir()}, " "))
		out, err := cmd.StdoutPipe()
		noError(t, err)
		noError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "collecting" {
		}
		time.Sleep(rand.N(300 * time.Millisecond))
		noError(t, cmd.Process.Kill())
		for lines.Scan() {
			t.Error(lines.Text())
		}
		_ = cmd.Wait()
	}
	close(stop)
	working.Wait()
	last := w.machine("one")
	hurries(last.Replica)
	for range 2 {
		time.Sleep(keepShort + 100*time.Millisecond)
		noError(t, collects(t.Context(), last.Replica, rows))
	}
	want, sharing := map[string]bool{}, 0
	for id, s := range living {
		for _, used := range last.uses(t, s.Root) {
			want[images+used] = true
			sharing++
		}
		for _, one := range []string{snapshots + string(id), images + s.Root, engines + s.EngineHash} {
			want[one] = true
		}
		other := w.machine("other")
		if err := other.Fetch(t.Context(), id); err != nil {
			t.Errorf("snapshot %s, which has a row: %v", id, err)
		} else if err := other.dir.Verify(t.Context(), id); err != nil {
			t.Error(err)
		} else if image, err := os.ReadFile(filepath.Join(other.data, "images", s.Root+".erofs")); err != nil || fmt.Sprintf("%x", sha256.Sum256(image)) != s.Root {
			t.Errorf("the image of snapshot %s is another one, %v", id, err)
		}
	}
	if sharing == 0 {
		t.Error("no image uses another one")
	}
	for _, below := range []string{snapshots, images, engines} {
		for _, path := range w.objects(below) {
			name, _ := filepath.Rel(w.bucket, filepath.Dir(path))
			if !want[name] {
				t.Errorf("%s is left, and nothing needs it", path)
			}
		}
	}
	t.Logf("%d snapshots made, %d live, with %d uses of other images; %d kills of the collector", made, len(living), sharing, killed)
}

// An image that a copy begins to need after it was listed stays, and so does one whose removal
// has begun: the copy stores it anew.
func TestCollectorMeetsACopy(t *testing.T) {
	w := newWorld(t)
	one, other := w.machine("one"), w.machine("one")
	one.settle = time.Millisecond
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	path, err := one.dir.Image(s.Root)
	noError(t, err)
	at, day := prefix(s.Root), time.Now().Add(-keepFor)
	age := func() {
		for _, path := range w.objects(images) {
			noError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-48*time.Hour)))
		}
	}
	age()
	noError(t, other.condemn(t.Context(), at, day))
	age()
	noError(t, one.pushImage(t.Context(), s.Root, "t", path, mostAtOnce))
	if n, err := other.remove(t.Context(), at, day); n != 0 || err != nil {
		t.Errorf("%d objects were removed, %v", n, err)
	}
	age()
	all := w.objects(images)
	noError(t, os.Remove(filepath.Join(w.bucket, at, recordName))) // a removal began
	noError(t, one.pushImage(t.Context(), s.Root, "t", path, mostAtOnce))
	if n, err := other.remove(t.Context(), at, day); n != 0 || err != nil || !slices.Equal(w.objects(images), all) {
		t.Errorf("%d objects were removed, %v", n, err)
	}
	last := w.machine("last")
	noError(t, last.Fetch(t.Context(), s.ID))
	same(t, one, last, s)
}
