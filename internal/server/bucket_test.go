package server_test

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// hideBucket has a bucket that is a directory be away, until back.
func hideBucket(t *testing.T, bucket string) (back func()) {
	t.Helper()
	away := bucket + "-away"
	if err := os.Rename(bucket, away); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bucket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(bucket); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(away, bucket); err != nil {
			t.Fatal(err)
		}
	}
}

// The bucket is away for CLUSTER_AWAY seconds: creates, requests, pauses and resumes go on,
// and say that no copy is there; all copies are within two minutes of its return.
func TestBucketIsAway(t *testing.T) {
	seconds := longRun(t, "CLUSTER_AWAY")
	c := servertest.StartCluster(t, 3, servertest.Steady)
	c.AwaitReady(3)
	ctx := t.Context()
	back := hideBucket(t, c.Bucket)
	var paused []string
	for begun, n := time.Now(), 0; time.Since(begun) < time.Duration(seconds)*time.Second; n++ {
		api := func(i int) *client.Client { return c.Nodes[(n+i)%3].Client() }
		box, err := api(0).Create(ctx, client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatalf("a create after %s: %v", time.Since(begun), err)
		}
		says(t, c.Nodes[(n+1)%3], box.ID, box.ID)
		if err := api(2).Pause(ctx, box.ID); err != nil {
			t.Fatalf("a pause after %s: %v", time.Since(begun), err)
		}
		if n%2 == 0 {
			if _, err := api(1).Connect(ctx, box.ID, time.Hour); err != nil {
				t.Fatalf("a resume after %s: %v", time.Since(begun), err)
			}
			if code, text := intoSandbox(t, c.Nodes[n%3], box.ID, http.MethodGet, "/", nil); code != http.StatusOK || text != box.ID {
				t.Errorf("after a resume: %d %q", code, text)
			}
			if err := api(0).Pause(ctx, box.ID); err != nil {
				t.Fatal(err)
			}
		}
		info, err := api(1).Info(ctx, box.ID)
		if err != nil || info.State != "paused" || info.Replicated == nil || *info.Replicated {
			t.Errorf("paused while the bucket is away: %+v, %v", info, err)
		}
		paused = append(paused, box.ID)
		time.Sleep(500 * time.Millisecond)
	}
	for _, id := range paused {
		if n := told(t, c.Nodes[0], id, cay.SandboxReplicated); n != 0 {
			t.Errorf("sandbox %s was told %d times to have a copy in a bucket that is away", id, n)
		}
	}
	back()
	begun := time.Now()
	for _, id := range paused {
		awaitReplicated(t, c.Nodes[1], id)
		if n := told(t, c.Nodes[2], id, cay.SandboxReplicated); n != 1 {
			t.Errorf("the copy of sandbox %s was told %d times", id, n)
		}
	}
	took := time.Since(begun)
	if took > 2*time.Minute {
		t.Errorf("all copies are there after %s", took)
	}
	t.Logf("away for %d s: %d sandboxes paused, all copies %s after its return", seconds, len(paused), took.Round(time.Millisecond))
}
