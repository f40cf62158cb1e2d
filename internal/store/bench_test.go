package store_test

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// BenchmarkLife is the cost of a short life's records: the key, the template,
// created, running, killed, and whether its snapshot is still used.
func BenchmarkLife(b *testing.B) {
	ctx := b.Context()
	s := openAt(b, filepath.Join(b.TempDir(), "cay.db"))
	at := time.UnixMilli(1_800_000_000_000).UTC()
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: at}
	key := cay.APIKey{ID: cay.NewKeyID(), Team: team.ID, Name: "k", Hash: sha256.Sum256([]byte("k")), CreatedAt: at}
	kind := cay.Template{ID: cay.NewTemplateID(), Team: team.ID, Names: []string{"base"}, Public: true, CreatedAt: at, UpdatedAt: at}
	build := cay.Build{
		ID: cay.NewBuildID(), Template: kind.ID, Team: team.ID, State: cay.BuildReady, Snapshot: cay.NewSnapshotID(),
		CreatedAt: at, UpdatedAt: at, FinishedAt: at,
	}
	for _, err := range []error{s.AddTeam(ctx, team), s.AddKey(ctx, key), s.AddTemplate(ctx, kind), s.PutBuild(ctx, build)} {
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	before := processorTime(b)
	defer func() {
		b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op") // of a machine that does other things too
	}()
	for i := 0; b.Loop(); i++ {
		_, _, err := s.KeyByHash(ctx, key.Hash)
		must(b, err)
		t, err := s.FindTemplate(ctx, team.ID, "base")
		must(b, err)
		box := cay.Sandbox{
			ID: cay.SandboxID(fmt.Sprintf("i%019d", i)), Team: team.ID, Template: t.ID, Build: t.Build, Snapshot: t.Snapshot,
			Instance: cay.NewInstanceID(), State: cay.Creating, Metadata: map[string]string{"a": "b"},
			StartedAt: at, EndAt: at.Add(time.Minute), Timeout: time.Minute, OnTimeout: cay.KillOnTimeout,
		}
		told := cay.Event{Team: team.ID, Sandbox: box.ID, Type: cay.SandboxCreated, Reason: cay.ReasonAsked, At: at}
		must(b, s.AddSandbox(ctx, box, told))
		box.State, told.Type = cay.Running, cay.SandboxRunning
		must(b, s.UpdateSandbox(ctx, box, told))
		box.Version++
		box.State, box.EndedAt, told.Type = cay.Killed, at, cay.SandboxKilled
		must(b, s.UpdateSandbox(ctx, box, told))
		_, err = s.SnapshotUsed(ctx, box.Snapshot)
		must(b, err)
	}
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
