package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

const (
	together = 8 // callers, half of them at each of two servers
	each     = 4 // changes of each
)

// TestTwoServers has two servers change the same records at the same time.
func TestTwoServers(t *testing.T) {
	server := pgtest.Start(t)
	empty := server.Database(t, "")
	var opened sync.WaitGroup
	for range 3 { // servers that start at once on a database without tables
		opened.Go(func() {
			s, err := store.OpenPostgres(context.WithoutCancel(t.Context()), store.PostgresConfig{URL: server.URL(empty)}, storetest.Key(t))
			if err != nil {
				t.Error(err)
				return
			}
			_ = s.Close()
		})
	}
	opened.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, tt := range []struct {
		name string
		test func(t *testing.T, both func(func(s *store.DB, n int) error), s *store.DB, team cay.TeamID)
	}{
		{"Limit", limitTogether}, {"Once", onceTogether}, {"Builds", buildsTogether}, {"Usage", usageTogether},
		{"Events", eventsTogether}, {"Audit", auditTogether}, {"Webhooks", webhooksTogether}, {"Lease", leaseTogether}, {"Version", versionTogether},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := server.URL(server.Database(t, empty))
			servers := []*store.DB{storetest.OpenPostgres(t, at), storetest.OpenPostgres(t, at)}
			team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
			if err := servers[0].AddTeam(t.Context(), team); err != nil {
				t.Fatal(err)
			}
			both := func(f func(s *store.DB, n int) error) {
				t.Helper()
				var all sync.WaitGroup
				for i := range together {
					all.Go(func() {
						for j := range each {
							if err := f(servers[i%2], i*each+j); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
			}
			tt.test(t, both, servers[0], team.ID)
		})
	}
	t.Run("Fence", func(t *testing.T) { fence(t, server, empty) })
}

func box(team cay.TeamID) (cay.Sandbox, cay.Event) {
	b := cay.Sandbox{ID: cay.NewSandboxID(), Team: team, Template: "t", State: cay.Running, Limits: cay.Limits{CPUs: 1, MemoryMB: 1}, StartedAt: time.Now()}
	return b, cay.Event{Team: team, Sandbox: b.ID, Type: cay.SandboxCreated, Reason: cay.ReasonAsked, At: b.StartedAt}
}

// limitTogether has no more sandboxes run than a limit, and no fewer.
func limitTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, team cay.TeamID) {
	const most = together*each/2 + 1
	full := errors.New("full")
	both(func(s *store.DB, _ int) error {
		err := s.Tx(t.Context(), func(tx store.Store) error {
			load, err := tx.RunningOf(t.Context(), team, "")
			if err == nil && load.Sandboxes >= most {
				err = full
			}
			if err != nil {
				return err
			}
			b, told := box(team)
			return tx.AddSandbox(t.Context(), b, told)
		})
		if errors.Is(err, full) {
			return nil
		}
		return err
	})
	load, err := s.RunningOf(t.Context(), team, "")
	if err != nil || load.Sandboxes != most {
		t.Errorf("%d sandboxes run, %v; the limit is %d", load.Sandboxes, err, most)
	}
	minutes, err := s.TeamMinutes(t.Context(), team, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil || len(minutes) == 0 || minutes[len(minutes)-1].Running != most {
		t.Errorf("counted are %+v, %v", minutes, err)
	}
}

// onceTogether has one sandbox of each idempotency key.
func onceTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, team cay.TeamID) {
	var mu sync.Mutex
	made := map[string]int{}
	both(func(s *store.DB, n int) error {
		b, told := box(team)
		b.Once = cay.Once{Key: fmt.Sprint(n % each), Digest: "d"}
		err := s.AddSandbox(t.Context(), b, told)
		if cay.KindOf(err) == cay.Conflict {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		made[b.Once.Key]++
		return err
	})
	n, err := s.CountSandboxes(t.Context(), store.SandboxQuery{Team: team})
	if err != nil || n != each || len(made) != each {
		t.Errorf("%d sandboxes of %d keys, %v", n, len(made), err)
	}
}

// buildsTogether has each build taken once, and no more wait than may.
func buildsTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, team cay.TeamID) {
	ctx := t.Context()
	kind := cay.Template{ID: cay.NewTemplateID(), Team: team}
	if err := s.AddTemplate(ctx, kind); err != nil {
		t.Fatal(err)
	}
	const most = 10
	both(func(s *store.DB, n int) error {
		return s.Tx(ctx, func(tx store.Store) error {
			queue, err := tx.QueuedBuilds(ctx)
			if err != nil || len(queue) >= most {
				return err
			}
			b := cay.Build{ID: cay.NewBuildID(), Template: kind.ID, Team: team, State: cay.BuildBuilding, UpdatedAt: time.Now()}
			return errors.Join(tx.PutBuild(ctx, b), tx.QueueBuild(ctx, b, "sealed", ""))
		})
	})
	queue, err := s.QueuedBuilds(ctx)
	if err != nil || len(queue) != most {
		t.Fatalf("%d builds wait, %v", len(queue), err)
	}
	var mu sync.Mutex
	taken := map[cay.BuildID]int{}
	both(func(s *store.DB, n int) error {
		b, sealed, err := s.TakeBuild(ctx, cay.NodeID(fmt.Sprint(n)), 1, time.Hour)
		if cay.KindOf(err) == cay.NotFound {
			return nil
		}
		if err == nil && sealed != "sealed" {
			err = errors.New("what it is made from was forgotten before")
		}
		mu.Lock()
		defer mu.Unlock()
		taken[b.ID]++
		return err
	})
	if len(taken) != most {
		t.Errorf("%d builds were taken", len(taken))
	}
	for id, n := range taken {
		if n != 1 {
			t.Errorf("build %s was taken %d times", id, n)
		}
	}
}

// usageTogether has each amount counted once, in as many accounts as there are.
func usageTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, team cay.TeamID) {
	ctx := t.Context()
	both(func(s *store.DB, n int) error {
		a := cay.Account{Team: team, Template: cay.TemplateID(fmt.Sprint(n % 3))}
		if n%8 == 7 {
			_, err := s.PruneUsage(ctx, time.UnixMilli(0), time.UnixMilli(0))
			return err
		}
		return s.AddUsage(ctx, a, time.Now(), cay.Amounts{CPU: 1})
	})
	rows, err := s.Usage(ctx, store.UsageQuery{Team: team, To: time.Now().Add(time.Hour), Accounts: true})
	sum := int64(0)
	for _, row := range rows {
		sum += row.Amounts.CPU
	}
	if want := int64(together * each * 7 / 8); err != nil || sum != want || len(rows) != 3 {
		t.Errorf("%d are counted in %d accounts, %v; want %d", sum, len(rows), err, want)
	}
	b, told := box(team)
	begun := time.Now()
	if err := s.AddSandbox(ctx, b, told); err != nil {
		t.Fatal(err)
	}
	both(func(s *store.DB, _ int) error { return s.CountUsage(ctx, []cay.Sandbox{b}) })
	rows, err = s.Usage(ctx, store.UsageQuery{Team: team, To: time.Now().Add(time.Hour)})
	if err != nil || len(rows) != 1 || rows[0].Amounts.VCPU > time.Since(begun).Milliseconds()+1 || rows[0].Amounts.Creates != 1 {
		t.Errorf("%+v are counted in %s, %v", rows, time.Since(begun), err)
	}
}

// eventsTogether has a reader see no number before a smaller one, as cursors of
// webhooks and streams rely on.
func eventsTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, team cay.TeamID) {
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		cursor := int64(0)
		for ended := false; !ended; {
			select {
			case <-stop:
				ended = true
			default:
			}
			list, err := s.Events(t.Context(), store.EventQuery{Team: team, After: cursor})
			if err != nil {
				t.Error(err)
				return
			}
			for _, e := range list {
				if e.Seq != cursor+1 {
					t.Errorf("event %d is seen after %d", e.Seq, cursor)
				}
				cursor = e.Seq
			}
		}
		if cursor != together*each {
			t.Errorf("%d events were seen", cursor)
		}
	}()
	both(func(s *store.DB, _ int) error {
		b, told := box(team)
		return s.AddSandbox(t.Context(), b, told)
	})
	close(stop)
	<-over
}

// auditTogether has one chain without a gap, with each row once, while readers
// append what waits.
func auditTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, team cay.TeamID) {
	both(func(s *store.DB, n int) error {
		row := cay.AuditRow{At: time.Now(), Team: team, Action: "test", Target: fmt.Sprint(n), Outcome: cay.OutcomeOK}
		if err := s.AddAudit(t.Context(), row); err != nil {
			return err
		}
		list, err := s.Audit(t.Context(), store.AuditQuery{Target: fmt.Sprint(n)})
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("row %d is there %d times after it was added", n, len(list))
		}
		return err
	})
	list, err := s.Audit(t.Context(), store.AuditQuery{})
	if err != nil || len(list) != together*each {
		t.Fatalf("%d rows, %v", len(list), err)
	}
	var before cay.AuditRow
	for _, r := range list {
		if r.Seq != before.Seq+1 || r.Prev != before.Hash || r.Hash != r.Sum() {
			t.Errorf("row %d does not follow %d", r.Seq, before.Seq)
		}
		before = r
	}
}

// webhooksTogether has a team get no more webhooks than it may have, and a cursor
// never go back.
func webhooksTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, team cay.TeamID) {
	var mu sync.Mutex
	var hooks []cay.WebhookID
	both(func(s *store.DB, n int) error {
		w := cay.Webhook{ID: cay.NewWebhookID(), Team: team, Name: fmt.Sprint(n), Version: 1, Enabled: true}
		err := s.AddWebhook(t.Context(), w, 3)
		if cay.KindOf(err) == cay.Exhausted {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		hooks = append(hooks, w.ID)
		return err
	})
	if len(hooks) != 3 {
		t.Fatalf("the team has %d webhooks", len(hooks))
	}
	both(func(s *store.DB, n int) error {
		return s.RecordAttempts(t.Context(), nil, []store.WebhookProgress{{Webhook: hooks[n%3], Cursor: int64(n)}})
	})
	for i, id := range hooks {
		w, err := s.Webhook(t.Context(), team, id)
		last := together*each - 1
		for last%3 != i {
			last--
		}
		if err != nil || w.Cursor != int64(last) {
			t.Errorf("the cursor is at %d, %v; want %d", w.Cursor, err, last)
		}
	}
}

// leaseTogether has one machine at a time have a node's name.
func leaseTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, _ cay.TeamID) {
	var mu sync.Mutex
	var epochs []int64
	both(func(s *store.DB, n int) error {
		epoch, err := s.TakeNode(t.Context(), "a", fmt.Sprint(n), time.Hour)
		if cay.KindOf(err) == cay.Conflict {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		epochs = append(epochs, epoch)
		return err
	})
	if len(epochs) != 1 || epochs[0] != 1 {
		t.Errorf("it was taken in the epochs %v", epochs)
	}
}

// versionTogether has one of many changes of a record's version count.
func versionTogether(t *testing.T, both func(func(*store.DB, int) error), s *store.DB, team cay.TeamID) {
	b, told := box(team)
	if err := s.AddSandbox(t.Context(), b, told); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	counted := 0
	both(func(s *store.DB, _ int) error {
		err := s.UpdateSandbox(t.Context(), b, told)
		if cay.KindOf(err) == cay.Conflict {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		counted++
		return err
	})
	last, err := s.LastEvent(t.Context(), team)
	if err != nil || counted != 1 || last != 2 {
		t.Errorf("%d changes counted, with %d events, %v", counted, last, err)
	}
}

// TestPostgresIsCutOff ends the server's connections, at once and again and again,
// while records are written: each change that is answered is there once, and each
// that failed is not, or may be and says so.
func TestPostgresIsCutOff(t *testing.T) {
	server := pgtest.Start(t)
	s := storetest.OpenPostgres(t, server.URL(server.Database(t, "")))
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
	if err := s.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var cuts sync.WaitGroup
	cuts.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			server.Exec(t, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cay' AND (random() < 0.5 OR state <> 'idle')")
		}
	})
	var mu sync.Mutex
	acknowledged := map[cay.SandboxID]bool{}
	var all sync.WaitGroup
	for range together {
		all.Go(func() {
			for range each {
				b, told := box(team.ID)
				if err := s.AddSandbox(t.Context(), b, told); err != nil {
					if cay.KindOf(err) != cay.Unavailable {
						t.Error(err)
					}
					continue
				}
				mu.Lock()
				acknowledged[b.ID] = true
				mu.Unlock()
			}
		})
	}
	all.Wait()
	close(stop)
	cuts.Wait()
	found, err := s.Sandboxes(t.Context(), store.SandboxQuery{Team: team.ID})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != len(acknowledged) {
		t.Errorf("%d sandboxes are recorded, %d were acknowledged", len(found), len(acknowledged))
	}
	last, err := s.LastEvent(t.Context(), team.ID)
	if err != nil || last != int64(len(found)) {
		t.Errorf("%d sandboxes have %d events, %v", len(found), last, err)
	}
	if !strings.Contains(server.Log(), "terminating connection due to administrator command") {
		t.Error("no connection was cut")
	}
	t.Logf("%d of %d changes were acknowledged", len(acknowledged), together*each)
}

// TestPostgresRestarts has changes wait while the database is away, and fail with
// one line when it stays away.
func TestPostgresRestarts(t *testing.T) {
	server := pgtest.Start(t)
	at := server.URL(server.Database(t, ""))
	s := storetest.OpenPostgres(t, at)
	add := func(name string) error {
		return s.AddTeam(t.Context(), cay.Team{ID: cay.NewTeamID(), Name: name, CreatedAt: time.Now()})
	}
	server.Stop(syscall.SIGQUIT) // a crash
	done := make(chan error)
	go func() { done <- add("a") }()
	server.Run()
	if err := <-done; err != nil {
		t.Errorf("a change across a restart: %v", err)
	}
	if list, err := s.Teams(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	server.Stop(syscall.SIGQUIT)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for what, err := range map[string]error{"a change": s.AddTeam(ctx, cay.Team{ID: cay.NewTeamID(), Name: "b"}), "a start": reopen(ctx, t, at, false)} {
		if cay.KindOf(err) != cay.Unavailable || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s without a database: %v", what, err)
		}
	}
	server.Run("default_transaction_read_only=on")
	if err := add("c"); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("a change of a read-only database: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := reopen(ctx, t, at, false); cay.KindOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a start on a read-only database: %v", err)
	}
	server.Stop(syscall.SIGQUIT)
	server.Run()
	if err := reopen(t.Context(), t, at, true); cay.KindOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "standby") {
		t.Errorf("a start without the standby that was asked for: %v", err)
	}
	server.Stop(syscall.SIGQUIT)
	server.Run("synchronous_standby_names=none", "synchronous_commit=local")
	if err := reopen(t.Context(), t, at, true); cay.KindOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "connected") {
		t.Errorf("a start while the standby is away: %v", err)
	}
	if list, err := s.Teams(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("in the end: %v, %v", list, err)
	}
}

func reopen(ctx context.Context, t *testing.T, at string, standby bool) error {
	s, err := store.OpenPostgres(ctx, store.PostgresConfig{URL: at, Standby: standby}, storetest.Key(t))
	if err == nil {
		_ = s.Close()
	}
	return err
}

// TestPostgresRefuses has a start refuse with one line that names the cause and no
// password.
func TestPostgresRefuses(t *testing.T) {
	server := pgtest.Start(t)
	at := server.URL(server.Database(t, ""))
	server.Exec(t, "postgres", "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", "CREATE USER guest PASSWORD 's3cret'")
	for _, tt := range []struct{ at, want string }{
		{server.URL("none"), "does not exist"},
		{server.URL("bytes"), "UTF8"},
		{strings.Replace(at, "cay@", "guest:s3cret@", 1), "may not create"},
		{strings.Replace(at, "cay@", "nobody:s3cret@", 1), "does not exist"},
		{"postgres://cay:s3cret@/x?host=/nowhere&connect_timeout=1", "cannot be"},
		{"postgres://cay:s3cret@:port:/", "cannot be read"},
		{"host=/nowhere password=s3cret port=x", "cannot be read"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := reopen(ctx, t, tt.at, false)
		cancel()
		if err == nil {
			t.Errorf("%s was opened", tt.at)
			continue
		}
		text := err.Error()
		var ours *cay.Error
		if errors.As(err, &ours) {
			text += ours.Hint
		}
		if !strings.Contains(text, tt.want) || strings.Contains(text, "s3cret") || strings.Contains(text, "\n") {
			t.Errorf("%s: %s; want %q", tt.at, text, tt.want)
		}
	}
	_, err := store.OpenPostgres(t.Context(), store.TooNew(at), storetest.Key(t))
	if cay.KindOf(err) != cay.Unsupported || !strings.Contains(err.Error(), "too old") {
		t.Errorf("an older PostgreSQL: %v", err)
	}
}
