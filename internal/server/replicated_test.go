package server_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// awaitReplicated waits until the record of a paused sandbox says that the bucket has
// it.
func awaitReplicated(t *testing.T, w *servertest.World, id string) client.Info {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(20 * time.Millisecond) {
		info, err := w.Client().Info(t.Context(), id)
		if err == nil && info.Replicated != nil && *info.Replicated {
			return info
		}
	}
	t.Fatalf("sandbox %s is not replicated", id)
	return client.Info{}
}

// told counts the events of a sandbox of a type.
func told(t *testing.T, w *servertest.World, id string, what cay.EventType) (n int) {
	t.Helper()
	for e, err := range w.Client().Events(t.Context(), client.EventOptions{Sandbox: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == string(what) {
			n++
		}
	}
	return n
}

// The record of a paused sandbox says whether the bucket has what was saved, and one
// event tells it; a durable pause answers when it is so, and not where it is not.
func TestReplicated(t *testing.T) {
	ctx := t.Context()
	w := servertest.New(t)
	bucket := filepath.Join(t.TempDir(), "bucket")
	w.Config.Bucket.Bucket = bucket
	w.Start()
	api := w.Client()
	make1 := func() string {
		t.Helper()
		box, err := api.Create(ctx, client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return box.ID
	}
	id := make1()
	if info, err := api.Info(ctx, id); err != nil || info.Replicated != nil || info.ReplicatedAt != nil {
		t.Errorf("one that runs: %+v, %v", info, err)
	}
	if err := api.Pause(ctx, id); err != nil {
		t.Fatal(err)
	}
	first := awaitReplicated(t, w, id)
	if first.ReplicatedAt == nil || first.ReplicatedAt.Before(first.EndAt.Add(-time.Second)) || told(t, w, id, cay.SandboxReplicated) != 1 {
		t.Errorf("paused at %s, replicated at %s, told %d times", first.EndAt, first.ReplicatedAt, told(t, w, id, cay.SandboxReplicated))
	}
	// A restart knows it, and tells nothing once more.
	w.Stop()
	w.Start()
	if again := awaitReplicated(t, w, id); !again.ReplicatedAt.Equal(*first.ReplicatedAt) {
		t.Errorf("after a restart it is replicated at %s, before at %s", again.ReplicatedAt, first.ReplicatedAt)
	}
	api = w.Client()
	if _, err := api.Connect(ctx, id, time.Hour); err != nil {
		t.Fatal(err)
	}
	// Another pause is another snapshot.
	if err := api.PauseDurably(ctx, id, false); err != nil {
		t.Fatal(err)
	}
	if info, err := api.Info(ctx, id); err != nil || info.Replicated == nil || !*info.Replicated || !info.ReplicatedAt.After(*first.ReplicatedAt) {
		t.Errorf("after a durable pause: %+v, %v", info, err)
	}
	if n := told(t, w, id, cay.SandboxReplicated); n != 2 {
		t.Errorf("two pauses were told %d times", n)
	}
	if err := api.PauseDurably(ctx, id, true); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a durable pause of one that is paused: %v", err)
	}
	// The bucket is away: the pause counts, and does not answer that it is durable.
	back := hideBucket(t, bucket)
	other := make1()
	within, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := api.PauseDurably(within, other, true); err == nil {
		t.Error("a pause is durable in a bucket that is away")
	}
	if info, err := api.Info(ctx, other); err != nil || info.State != "paused" || info.Replicated == nil || *info.Replicated {
		t.Errorf("paused while the bucket is away: %+v, %v", info, err)
	}
	back()
	awaitReplicated(t, w, other)
}

// A durable pause finds the bucket full: it answers at once and says so, the operator hears of it,
// and the copy follows when there is room.
func TestBucketIsFull(t *testing.T) {
	ctx := t.Context()
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("NOT TESTED HERE: it mounts a tmpfs, which needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	w := servertest.New(t)
	w.Config.Bucket.Bucket = filepath.Join(root, "bucket")
	w.Start()
	api := w.Client()
	box, err := api.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(root, "filler")
	if err := os.WriteFile(filler, make([]byte, 9<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the bucket: %v", err)
	}
	err = api.PauseDurably(ctx, box.ID, false)
	if cay.CodeOf(err) != cay.CodeNotReplicated || !strings.Contains(err.Error(), "the bucket is full") {
		t.Fatalf("a durable pause: %v", err)
	}
	if info, err := api.Info(ctx, box.ID); err != nil || info.State != "paused" || *info.Replicated {
		t.Errorf("after it: %+v, %v", info, err)
	}
	checks, err := w.Admin("").Checks(ctx, "")
	if err != nil || !slices.ContainsFunc(checks, func(c client.Check) bool { return strings.Contains(c.Detail, "copies fail: no space is left") }) {
		t.Errorf("the operator hears %+v, %v", checks, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	awaitReplicated(t, w, box.ID)
}

// Lists of snapshots say whether the bucket has them; without a bucket nothing.
func TestReplicatedSnapshots(t *testing.T) {
	for _, bucket := range []bool{true, false} {
		w := servertest.New(t)
		if bucket {
			w.Config.Bucket.Bucket = t.TempDir()
		}
		w.Start()
		api := w.Client()
		box, err := api.Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		made, err := api.Snapshot(t.Context(), box.ID, "kept:v1")
		if err != nil || (made.Replicated != nil) != bucket {
			t.Fatalf("with a bucket %t: %+v, %v", bucket, made, err)
		}
		for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			list, err := api.Snapshots(t.Context(), box.ID)
			if err != nil || len(list) != 1 || (list[0].Replicated != nil) != bucket {
				t.Fatalf("with a bucket %t: %+v, %v", bucket, list, err)
			}
			if !bucket || *list[0].Replicated && list[0].ReplicatedAt != nil {
				break
			}
			if time.Since(begun) > time.Minute {
				t.Fatalf("the bucket has no copy: %+v", list[0])
			}
		}
	}
}

// CAY_PAUSE_DURABLE has each pause wait; without a bucket a durable pause is refused
// before anything is paused.
func TestPauseDurable(t *testing.T) {
	ctx := t.Context()
	for _, durable := range []bool{true, false} {
		w := servertest.New(t)
		if durable {
			w.Config.Bucket.Bucket, w.Config.PauseDurable = t.TempDir(), true
		}
		w.Start()
		box, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if !durable {
			if err := w.Client().PauseDurably(ctx, box.ID, false); cay.KindOf(err) != cay.Invalid {
				t.Errorf("a durable pause without a bucket: %v", err)
			}
			if info, err := w.Client().Info(ctx, box.ID); err != nil || info.State != "running" {
				t.Errorf("after that: %+v, %v", info, err)
			}
		}
		if err := w.Client().Pause(ctx, box.ID); err != nil {
			t.Fatal(err)
		}
		info, err := w.Client().Info(ctx, box.ID)
		if err != nil || (info.Replicated != nil) != durable || durable && !*info.Replicated {
			t.Errorf("with durable %t: %+v, %v", durable, info, err)
		}
	}
}
