package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// A paused sandbox is copied to the bucket, and resumed by a server that lost its
// files. While the bucket is away or damaged the resume says so, and nothing is lost.
func TestSnapshotsInABucket(t *testing.T) {
	ctx := t.Context()
	w := servertest.New(t)
	bucket := filepath.Join(t.TempDir(), "bucket")
	w.Config.Bucket.Bucket = bucket
	w.Start()
	inTheBucket(t, bucket, "images") // before any sandbox needs it
	box, err := w.Client().Create(ctx, client.CreateOptions{Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Client().Pause(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.Start() // which begins with copies
	copies := inTheBucket(t, bucket, "snapshots")
	w.Stop()
	at := filepath.Join(w.Config.Data, "snapshots", filepath.Base(filepath.Dir(copies[0])))
	if err := os.RemoveAll(at); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(copies[0])
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte{}, whole...)
	flipped[len(flipped)-1] ^= 1
	if err := os.WriteFile(copies[0], flipped, 0o600); err != nil {
		t.Fatal(err)
	}
	w.Start()
	if _, err := w.Client().Connect(ctx, box.ID, 0); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a resume from a damaged copy: %v", err)
	}
	if err := os.WriteFile(copies[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client().Connect(ctx, box.ID, 0); err != nil {
		t.Errorf("a resume from the bucket: %v", err)
	}
	if _, err := os.Stat(at); err != nil {
		t.Error(err)
	}
}

// inTheBucket waits for records of a kind, and returns their files.
func inTheBucket(t *testing.T, bucket, kind string) (records []string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(records) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s are in the bucket", kind)
		}
		records, _ = filepath.Glob(filepath.Join(bucket, kind, "*", "record"))
	}
	return records
}
