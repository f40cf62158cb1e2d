package server_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
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
	inTheWay := filepath.Join(bucket, "images")
	if err := errors.Join(os.MkdirAll(bucket, 0o700), os.WriteFile(inTheWay, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	w.Start()
	paused := func() string {
		box, err := w.Client().Create(ctx, client.CreateOptions{Template: "base"})
		if err == nil {
			err = w.Client().Pause(ctx, box.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		return box.ID
	}
	replicated := func(id string) bool {
		info, err := w.Client().Info(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return info.Replicated != nil && *info.Replicated
	}

	// Files go first, of all, and a copy counts once the root image is there as well.
	box, other := paused(), paused()
	inTheBucket(t, bucket, "snapshots", 2)
	if replicated(box) || replicated(other) {
		t.Error("a copy without its root image is said to be whole")
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	inTheBucket(t, bucket, "images", 1)
	for deadline := time.Now().Add(time.Minute); !replicated(box) || !replicated(other); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("copies are not told to be whole")
		}
	}

	if err := w.Client().Kill(ctx, other); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	copies := slices.DeleteFunc(inTheBucket(t, bucket, "snapshots", 2), func(record string) bool {
		_, err := os.Stat(filepath.Join(w.Config.Data, "snapshots", filepath.Base(filepath.Dir(record))))
		return err != nil
	})
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
	if _, err := w.Client().Connect(ctx, box, 0); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a resume from a damaged copy: %v", err)
	}
	if err := os.WriteFile(copies[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client().Connect(ctx, box, 0); err != nil {
		t.Errorf("a resume from the bucket: %v", err)
	}
	if _, err := os.Stat(at); err != nil {
		t.Error(err)
	}
}

// inTheBucket waits for so many records of a kind, and returns their files.
func inTheBucket(t *testing.T, bucket, kind string, many int) (records []string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(records) < many; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d %s are in the bucket, and not %d", len(records), kind, many)
		}
		records, _ = filepath.Glob(filepath.Join(bucket, kind, "*", "record"))
	}
	return records
}
