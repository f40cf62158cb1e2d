package server_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/server/servertest"
)

// startEvicting starts a server that keeps nothing here which the bucket has, but what is
// in use.
func startEvicting(t *testing.T, change ...func(*servertest.World)) *servertest.World {
	t.Helper()
	w := servertest.New(t)
	w.Config.Bucket.Bucket = filepath.Join(t.TempDir(), "bucket")
	w.Config.Bucket.Cache = "0MiB"
	for _, c := range change {
		c(w)
	}
	w.Start()
	return w
}

// awaitEvicted waits until a snapshot is in the bucket alone.
func awaitEvicted(t *testing.T, w *servertest.World, id string) {
	t.Helper()
	left := filepath.Join(w.Config.Data, "snapshots", ".evicted-"+id)
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(left); err == nil {
			return
		}
	}
	t.Fatalf("snapshot %s is not evicted", id)
}

// snapshotOf is what a sandbox is paused in, as the newest event says.
func snapshotOf(t *testing.T, w *servertest.World, id string) (out string) {
	t.Helper()
	for e, err := range w.Client().Events(t.Context(), client.EventOptions{Sandbox: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == string(cay.SandboxPaused) {
			out = e.Data["snapshot"]
		}
	}
	return out
}

// pauses pauses a sandbox and waits until the bucket alone has it.
func pauses(t *testing.T, w *servertest.World, id string) (snapshot string) {
	t.Helper()
	if err := w.Client().Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	snapshot = snapshotOf(t, w, id)
	awaitEvicted(t, w, snapshot)
	return snapshot
}

func hasMemory(t *testing.T, w *servertest.World, id, want string) {
	t.Helper()
	if code, text := intoSandbox(t, w, id, http.MethodGet, "/", nil); code != http.StatusOK || text != want {
		t.Errorf("sandbox %s answers %d %q, not %q", id, code, text, want)
	}
}

// A sandbox whose snapshot was evicted is as any paused one: after a restart, for five callers
// at once, while the bucket is away, and when it is deleted.
func TestEvictedSandbox(t *testing.T) {
	t.Parallel() // it waits more than it works
	ctx := t.Context()
	w := startEvicting(t)
	box, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	says(t, w, box.ID, "first")
	snapshot := pauses(t, w, box.ID)
	awaitReplicated(t, w, box.ID)
	if err := operator.Verify(ctx, w.Config, nil, func(v operator.Verified) {
		if v.Error != "" {
			t.Errorf("verify says of %s: %s", v.ID, v.Error)
		}
	}); err != nil {
		t.Error(err)
	}
	listed, err := w.Admin("").MachineSnapshots(ctx, "")
	if i := slices.IndexFunc(listed, func(s client.MachineSnapshot) bool { return s.ID == snapshot }); err != nil || i < 0 || !listed[i].Evicted || listed[i].Sandbox != box.ID || listed[0].Evicted {
		t.Errorf("the machine has %+v, %v", listed, err)
	}
	checks, err := w.Admin("").Checks(ctx, "")
	if i := slices.IndexFunc(checks, func(c client.Check) bool { return c.Name == "cache" }); err != nil || i < 0 || !strings.Contains(checks[i].Detail, "the bucket alone has 1") {
		t.Errorf("the checks are %+v, %v", checks, err)
	}
	w.Stop()
	w.Start()
	if info, err := w.Client().Info(ctx, box.ID); err != nil || info.State != "paused" || info.Replicated == nil || !*info.Replicated {
		t.Fatalf("after a restart: %+v, %v", info, err)
	}

	back := hideBucket(t, w.Config.Bucket.Bucket)
	_, err = w.Client().Connect(ctx, box.ID, time.Hour)
	if cay.KindOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "bucket") {
		t.Errorf("while the bucket is away: %v", err)
	}
	if info, err := w.Client().Info(ctx, box.ID); err != nil || info.State != "paused" {
		t.Errorf("after that: %+v, %v", info, err)
	}
	back()

	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if _, err := w.Client().Connect(ctx, box.ID, time.Hour); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	hasMemory(t, w, box.ID, "first")
	says(t, w, box.ID, "second")
	other, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	pauses(t, w, other.ID) // a sandbox that runs keeps its snapshot here, though it is the older one
	if _, err := os.Stat(filepath.Join(w.Config.Data, "snapshots", snapshot)); err != nil {
		t.Error(err)
	}

	snapshot = pauses(t, w, box.ID)
	record := filepath.Join(w.Config.Bucket.Bucket, "snapshots", snapshot, "record")
	whole, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, append(whole[:len(whole)-1:len(whole)-1], whole[len(whole)-1]^1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client().Connect(ctx, box.ID, time.Hour); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("from a damaged copy: %v", err)
	}
	if err := os.WriteFile(record, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client().Connect(ctx, box.ID, time.Hour); err != nil {
		t.Fatal(err)
	}
	hasMemory(t, w, box.ID, "second")
	snapshot = pauses(t, w, box.ID)
	if err := w.Client().Kill(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(w.Config.Data, "snapshots", "*"+snapshot+"*")); len(left) > 0 {
		t.Errorf("a sandbox that was deleted leaves %s", left)
	}
}

// Checkpoints and named snapshots that were evicted serve rollbacks, forks and creates.
func TestEvictedCheckpoints(t *testing.T) {
	t.Parallel() // it waits more than it works
	ctx := t.Context()
	w := startEvicting(t)
	api := w.Client()
	box, err := api.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for _, text := range []string{"first", "second"} {
		says(t, w, box.ID, text)
		n, err := api.Checkpoint(ctx, box.ID, text, "")
		if err != nil {
			t.Fatal(err)
		}
		points = append(points, n.ID)
	}
	named, err := api.Snapshot(ctx, box.ID, "kept")
	if err != nil {
		t.Fatal(err)
	}
	evicted := func() {
		t.Helper()
		for _, id := range points {
			awaitEvicted(t, w, id)
		}
	}
	evicted()
	forks, err := api.ForkCheckpoint(ctx, points[0], 2, time.Hour)
	if err != nil {
		t.Fatalf("fork: %v", err)
	}
	for _, f := range forks {
		hasMemory(t, w, f.ID, "first")
		if err := api.Kill(ctx, f.ID); err != nil {
			t.Error(err)
		}
	}
	evicted()
	if _, err := api.Rollback(ctx, box.ID, points[0]); err != nil {
		t.Fatalf("rollback: %v", err)
	}
	hasMemory(t, w, box.ID, "first")
	awaitEvicted(t, w, points[1])

	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			made, err := api.Create(ctx, client.CreateOptions{Template: "kept", Timeout: time.Hour})
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			hasMemory(t, w, made.ID, "second")
			if err := api.Kill(ctx, made.ID); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	back := hideBucket(t, w.Config.Bucket.Bucket)
	if _, err := api.Rollback(ctx, box.ID, points[1]); err == nil || !strings.Contains(err.Error(), "bucket") {
		t.Errorf("a rollback while the bucket is away: %v", err)
	}
	hasMemory(t, w, box.ID, "first")
	back()
	if err := api.RemoveTemplate(ctx, named.ID); err != nil {
		t.Error(err)
	}
	if err := api.Kill(ctx, box.ID); err != nil {
		t.Error(err)
	}
}

// An evicted snapshot counts as it did before for the limit of its team.
func TestEvictedCounts(t *testing.T) {
	t.Parallel() // it waits more than it works
	ctx := t.Context()
	w := startEvicting(t, func(w *servertest.World) { w.Config.TeamSnapshots = "1MiB" })
	api := w.Client()
	box, err := api.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	says(t, w, box.ID, strings.Repeat("x", 900<<10)) // saved twice, with its files
	pauses(t, w, box.ID)
	w.Stop()
	w.Start()
	api = w.Client()
	other, err := api.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Checkpoint(ctx, other.ID, "", ""); err == nil || !strings.Contains(err.Error(), "snapshotBytes") {
		t.Errorf("a save beyond the limit: %v", err)
	}
	if err := api.Kill(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Checkpoint(ctx, other.ID, "", ""); err != nil {
		t.Errorf("once the other is deleted: %v", err)
	}
}
