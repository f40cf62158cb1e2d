package store_test

import (
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// BenchmarkLife is the cost of a short life's records: the key, the template,
// created, running, killed, and whether its snapshot is still used.
func BenchmarkLife(b *testing.B) {
	b.Run("SQLite", func(b *testing.B) { life(b, openAt(b, filepath.Join(b.TempDir(), "cay.db"))) })
	b.Run("PostgreSQL", func(b *testing.B) {
		server := pgtest.Start(b)
		life(b, storetest.OpenPostgres(b, server.URL(server.Database(b, ""))))
	})
}

// BenchmarkRead is a plain read by its id: a team's sandbox. Native is the same
// statement of the driver's own interface.
func BenchmarkRead(b *testing.B) {
	read := func(b *testing.B, s *store.DB) {
		team := cay.Team{ID: "team", Name: "a"}
		box := cay.Sandbox{ID: "box", Team: team.ID, State: cay.Running}
		must(b, errors.Join(s.AddTeam(b.Context(), team), s.AddSandbox(b.Context(), box)))
		for b.Loop() {
			_, err := s.Sandbox(b.Context(), team.ID, box.ID)
			must(b, err)
		}
	}
	b.Run("SQLite", func(b *testing.B) { read(b, openAt(b, filepath.Join(b.TempDir(), "cay.db"))) })
	server := pgtest.Start(b)
	name := server.Database(b, "")
	b.Run("PostgreSQL", func(b *testing.B) { read(b, storetest.OpenPostgres(b, server.URL(name))) })
	b.Run("Native", func(b *testing.B) {
		conn, err := pgx.Connect(b.Context(), server.URL(name))
		must(b, err)
		defer func() { _ = conn.Close(b.Context()) }()
		for b.Loop() {
			rows, err := conn.Query(b.Context(), `SELECT * FROM sandboxes WHERE team = $1 AND id = $2`, "team", "box")
			must(b, err)
			for rows.Next() {
				_, err := rows.Values()
				must(b, err)
			}
			must(b, rows.Err())
		}
	})
}

func life(b *testing.B, s *store.DB) {
	ctx := b.Context()
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

// BenchmarkUsageOfAYear sums up a year of a team with a million sandboxes: 200
// accounts that used something in each hour, and 800 in each day.
func BenchmarkUsageOfAYear(b *testing.B) {
	path := filepath.Join(b.TempDir(), "cay.db")
	must(b, openAt(b, path).Close())
	db, err := sql.Open("sqlite", path)
	must(b, err)
	const columns = `(span, team, at, account, vcpu, memory, cpu, storage, sent, creates, build, money)`
	for _, text := range []string{
		`INSERT INTO usage_accounts WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
		SELECT i, 'team', 'key' || (i % 10), 'template' || (i % 5), '{"user":"' || i || '"}' FROM n`,
		`INSERT INTO usage_rows ` + columns + ` WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 366 * 24 - 1),
		a(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM a WHERE id < 200)
		SELECT 'h', 'team', 1767225600000 + i * 3600000, id, 7200000, 3600000000, 1000000, 0, 1000, 1, 0, 1000 FROM n, a`,
		`INSERT INTO usage_rows ` + columns + ` WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 365),
		a(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM a WHERE id < 1000)
		SELECT 'd', 'team', 1767225600000 + i * 86400000, id, 172800000, 86400000000, 24000000, 0, 24000, 24, 0, 24000 FROM n, a`,
		`INSERT INTO usage_rows ` + columns + ` SELECT 'm', team, unixepoch(strftime('%Y-%m-01', at / 1000, 'unixepoch')) * 1000 AS month, account,
		SUM(vcpu), SUM(memory), SUM(cpu), SUM(storage), SUM(sent), SUM(creates), SUM(build), SUM(money) FROM usage_rows WHERE span = 'd' GROUP BY month, account`,
	} {
		_, err := db.ExecContext(b.Context(), text)
		must(b, err)
	}
	must(b, db.Close())
	s := openAt(b, path)
	year := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, q := range map[string]store.UsageQuery{
		"total":   {},
		"days":    {By: 24 * time.Hour},
		"account": {Accounts: true},
		"month":   {Accounts: true, From: year.AddDate(0, 6, 0), To: year.AddDate(0, 7, 0)},
	} {
		if q.From.IsZero() {
			q.From, q.To = year.Add(time.Hour), year.AddDate(1, 0, 0).Add(-time.Hour) // days and hours
		}
		q.Team = "team"
		b.Run(name, func(b *testing.B) {
			before := processorTime(b)
			defer func() {
				b.ReportMetric(float64((processorTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
			}()
			for b.Loop() {
				rows, err := s.Usage(b.Context(), q)
				must(b, err)
				if len(rows) == 0 {
					b.Fatal("nothing was used")
				}
			}
		})
	}
}
