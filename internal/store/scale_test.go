package store_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// TestScale is `make bench-scale`: the records of a cluster of SCALE_NODES, whose
// servers are stores that do what nodes and fronts do and run nothing. They share
// SCALE_CONNS connections, one for each transaction or statement, as servers behind
// PgBouncer do with pool_mode = transaction. Loads come at their rates whether the
// database keeps up or not, and a time counts from when the work was due. Without
// settings it is small: nothing may fail, and all that was answered must be there.
func TestScale(t *testing.T) {
	s := newScale(t)
	s.seed()
	s.register("start of all servers, sixteen at a time")
	s.steady()
	s.most()
	s.lose()
	s.storm()
	s.prune()
	s.check()
	s.report()
}

// setting is a number of the environment.
func setting(name string, small int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return small
}

type scale struct {
	t   *testing.T
	ctx context.Context

	nodesN, rows, seconds, creates, lookups, fronts, conns, lost, events int
	full                                                                 bool

	server *pgtest.Server
	pooler *store.Pooler
	name   string
	db     *store.DB // the fronts' and the leader's
	stats  *pgx.Conn
	nodes  []*fakeNode
	teams  []cay.TeamID
	ids    []cay.SandboxID
	kind   cay.Template
	build  cay.Build
	key    cay.APIKey

	mu      sync.Mutex
	took    map[string][]time.Duration
	said    []string
	created atomic.Int64
}

// fakeNode is a server of a node without a machine.
type fakeNode struct {
	cay.Node
	db              *store.DB
	mu              sync.Mutex
	running, paused []cay.Sandbox
}

func (n *fakeNode) put(to *[]cay.Sandbox, b cay.Sandbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*to = append(*to, b)
}

// take removes one; ok is false where there is none.
func (n *fakeNode) take(from *[]cay.Sandbox) (b cay.Sandbox, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(*from) == 0 {
		return b, false
	}
	at := rand.IntN(len(*from))
	last := len(*from) - 1
	b = (*from)[at]
	(*from)[at] = (*from)[last]
	*from = (*from)[:last]
	return b, true
}

func newScale(t *testing.T) *scale {
	s := &scale{
		t: t, ctx: t.Context(), took: map[string][]time.Duration{}, full: os.Getenv("SCALE_NODES") != "",
		nodesN: setting("SCALE_NODES", 5), rows: setting("SCALE_ROWS", 200), seconds: setting("SCALE_SECONDS", 1),
		creates: setting("SCALE_CREATES", 20), lookups: setting("SCALE_LOOKUPS", 50), fronts: setting("SCALE_FRONTS", 2),
		conns: setting("SCALE_CONNS", 10), lost: setting("SCALE_LOST", 2), events: setting("SCALE_EVENTS", 1000),
	}
	settings := []string{"fsync=on", "max_connections=300"}
	if s.full {
		settings = append(settings, "shared_buffers=1GB", "max_wal_size=4GB", "checkpoint_timeout=15min", "random_page_cost=1.1",
			"shared_preload_libraries=pg_stat_statements", "pg_stat_statements.max=1000")
	}
	s.server = pgtest.Start(t, settings...)
	s.name = s.server.Database(t, "")
	storetest.OpenPostgres(t, s.server.URL(s.name)) // makes the tables
	var err error
	s.pooler, err = store.NewPooler(s.ctx, s.server.URL(s.name), s.conns, storetest.Key(t))
	s.must(err)
	t.Cleanup(s.pooler.Close)
	s.db = s.pooler.Store()
	s.stats, err = pgx.Connect(s.ctx, s.server.URL(s.name))
	s.must(err)
	t.Cleanup(func() { _ = s.stats.Close(context.Background()) })
	return s
}

func (s *scale) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scale) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.mu.Lock()
	s.said = append(s.said, text)
	s.mu.Unlock()
	fmt.Fprintln(s.t.Output(), text)
}

func (s *scale) box(n *fakeNode, team cay.TeamID) cay.Sandbox {
	at := time.Now()
	return cay.Sandbox{
		ID: cay.NewSandboxID(), Team: team, Template: s.kind.ID, Build: s.build.ID, Snapshot: s.build.Snapshot, Alias: "base", Key: s.key.ID,
		Node: n.ID, Instance: cay.NewInstanceID(), State: cay.Running, Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
		Metadata: map[string]string{"user": "ann"}, Network: cay.NetworkPolicy{AllowInternet: true}, Secure: true,
		StartedAt: at, EndAt: at.Add(10 * time.Minute), Timeout: 10 * time.Minute, OnTimeout: cay.PauseOnTimeout,
	}
}

func told(b cay.Sandbox, kind cay.EventType) cay.Event {
	return cay.Event{Team: b.Team, Sandbox: b.ID, Instance: b.Instance, Type: kind, Reason: cay.ReasonAsked, At: time.Now(),
		Data: map[string]string{"endAt": b.EndAt.Format(time.RFC3339), "template": string(b.Template)}}
}

// seed makes the members, the teams and the rows of a cluster that has been at work.
func (s *scale) seed() {
	begun := time.Now()
	ctx := s.ctx
	teams := max(10, s.nodesN)
	for i := range teams {
		team := cay.Team{ID: cay.NewTeamID(), Name: fmt.Sprintf("team %d", i), CreatedAt: time.Now()}
		s.must(s.db.AddTeam(ctx, team))
		s.teams = append(s.teams, team.ID)
	}
	at := time.Now()
	s.key = cay.APIKey{ID: cay.NewKeyID(), Team: s.teams[0], Name: "k", Hash: sha256.Sum256([]byte("k")), CreatedAt: at}
	s.kind = cay.Template{ID: cay.NewTemplateID(), Team: s.teams[0], Names: []string{"base"}, Public: true, CreatedAt: at, UpdatedAt: at}
	s.build = cay.Build{ID: cay.NewBuildID(), Template: s.kind.ID, Team: s.teams[0], State: cay.BuildReady, Snapshot: cay.NewSnapshotID(),
		CreatedAt: at, UpdatedAt: at, FinishedAt: at}
	s.must(errors.Join(s.db.AddKey(ctx, s.key), s.db.AddTemplate(ctx, s.kind), s.db.PutBuild(ctx, s.build),
		s.db.BuildsReplicated(ctx, s.build.Snapshot, at)))
	for i := range s.nodesN {
		n := cay.Node{ID: cay.NodeID(fmt.Sprintf("node-%04d", i)), Machine: fmt.Sprintf("machine-%04d", i), Address: fmt.Sprintf("10.0.%d.%d:7071", i/250, i%250),
			Fingerprint: strings.Repeat(fmt.Sprintf("%08x", i), 8), Version: "1", State: cay.NodeJoined}
		if i == 0 {
			s.must(s.db.MakeCluster(ctx, cay.Cluster{ID: "c"}, "alone", n))
		} else {
			_, err := s.db.AddJoinToken(ctx, fmt.Sprint("token ", i), "bundle", time.Hour)
			s.must(err)
			s.must(s.db.JoinCluster(ctx, fmt.Sprint("token ", i), func(cay.Cluster, string) (cay.Node, error) { return n, nil }))
		}
		s.nodes = append(s.nodes, &fakeNode{Node: n, db: s.pooler.Store()})
	}
	for _, team := range s.teams { // the account and the counters that a team's first sandbox makes
		b := s.box(s.nodes[0], team)
		s.must(s.db.AddSandbox(ctx, b, told(b, cay.SandboxCreated), told(b, cay.SandboxRunning)))
		b.State, b.EndedAt = cay.Killed, time.Now()
		s.must(s.db.UpdateSandbox(ctx, b, told(b, cay.SandboxKilled)))
	}
	first := s.box(s.nodes[0], s.teams[0])
	s.must(s.db.AddSandbox(ctx, first, told(first, cay.SandboxCreated)))
	columns := s.text(`SELECT string_agg(column_name, ', ' ORDER BY ordinal_position) FROM information_schema.columns WHERE table_name = 'sandboxes'`)
	values := s.text(`SELECT string_agg(CASE WHEN column_name IN ('id', 'team', 'node', 'state') THEN 's.' || column_name WHEN column_name = 'started_at' THEN 'b.started_at - s.i'
WHEN column_name = 'snapshot' THEN 'CASE s.state WHEN ''paused'' THEN ''of '' || s.id ELSE b.snapshot END' ELSE 'b.' || column_name END, ', ' ORDER BY ordinal_position)
FROM information_schema.columns WHERE table_name = 'sandboxes'`)
	// Half of the rows of each node run, half are paused; each has two events.
	s.exec(
		fmt.Sprintf(`CREATE TABLE seed AS SELECT i, 'i' || lpad(i::text, 19, '0') AS id, (SELECT id FROM teams WHERE name = 'team ' || ((i + 31 * (i / %[2]d)) %% %[1]d)) AS team,
'node-' || lpad((i %% %[2]d)::text, 4, '0') AS node, CASE WHEN (i / %[2]d) %% 2 = 0 THEN 'running' ELSE 'paused' END AS state FROM generate_series(1, %[3]d) i`, teams, s.nodesN, s.rows),
		`SET session_replication_role = replica`, // what is referred to is there
		fmt.Sprintf(`INSERT INTO sandboxes (%s) SELECT %s FROM sandboxes b, seed s WHERE b.id = '%s'`, columns, values, first.ID),
		`INSERT INTO sandbox_metadata (sandbox, team, key, value) SELECT id, team, 'user', 'ann' FROM seed`,
		`INSERT INTO events (team, seq, sandbox, type, reason, at, data, instance, outwards)
SELECT s.team, 1000 + row_number() OVER (PARTITION BY s.team ORDER BY s.i, k), s.id, e.type, e.reason, e.at - s.i, e.data, e.instance, e.outwards
FROM seed s, generate_series(1, 2) k, (SELECT * FROM events LIMIT 1) e`,
		`UPDATE event_counters c SET last = (SELECT max(seq) FROM events e WHERE e.team = c.team)`,
		`INSERT INTO usage_open (sandbox, account, since, cpus, memory_mb, creates) SELECT s.id, a.id, o.since, 2, 512, 0
FROM seed s JOIN usage_accounts a ON a.team = s.team, (SELECT since FROM usage_open LIMIT 1) o WHERE s.state = 'running'`,
		`DROP TABLE seed`, `RESET session_replication_role`, `VACUUM ANALYZE`, `CHECKPOINT`)
	s.ids = make([]cay.SandboxID, s.rows)
	for i := range s.ids {
		s.ids[i] = cay.SandboxID(fmt.Sprintf("i%019d", i+1))
	}
	s.created.Add(int64(teams + 1 + s.rows))
	if s.full {
		s.exec(`CREATE EXTENSION pg_stat_statements`)
	}
	s.say("%d nodes, %d teams, %d sandboxes' rows in %s; %d connections, %d fronts; PostgreSQL %s, fsync on", s.nodesN, teams, s.rows,
		time.Since(begun).Round(time.Second), s.conns, s.fronts, s.text(`current_setting('server_version')`))
}

func (s *scale) exec(statements ...string) {
	for _, text := range statements {
		_, err := s.stats.Exec(s.ctx, text)
		s.must(err)
	}
}

// text is the value of an expression.
func (s *scale) text(expression string) (out string) {
	s.must(s.stats.QueryRow(s.ctx, "SELECT ("+expression+")::text").Scan(&out))
	return out
}

// start is what the records see of a server that starts: it takes its node's name,
// reads what it has, and reports.
func (s *scale) start(n *fakeNode) error {
	n.db = s.pooler.Store()
	epoch, err := n.db.TakeNode(s.ctx, n.ID, n.Machine, time.Minute)
	if err != nil {
		return err
	}
	n.Epoch, n.State = epoch, cay.NodeReady
	n.db.Guard(n.ID, epoch)
	mine, err := n.db.SandboxesOf(s.ctx, n.ID)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.running, n.paused = nil, nil
	for _, b := range mine {
		if b.State == cay.Paused {
			n.paused = append(n.paused, b)
		} else {
			n.running = append(n.running, b)
		}
	}
	n.mu.Unlock()
	return s.beat(n)
}

func (s *scale) beat(n *fakeNode) error {
	n.mu.Lock()
	one := n.Node
	one.NodeUse = cay.NodeUse{CPUs: 16, MemoryMB: 65536, MemoryFreeMB: 30000 + rand.IntN(1000), Running: len(n.running), Paused: len(n.paused),
		PromisedCPUs: 2 * len(n.running), PromisedMB: 512 * len(n.running), Engine: strings.Repeat("e", 64), Warm: map[string]int{string(s.kind.ID): 4, "base": 4}}
	n.mu.Unlock()
	_, err := n.db.ReportNode(s.ctx, one, time.Minute)
	return err
}

// each has workers do something for all nodes, and notes how long each took.
func (s *scale) each(name string, workers int, nodes []*fakeNode, f func(n *fakeNode) error) {
	var wg sync.WaitGroup
	work := make(chan *fakeNode)
	for range workers {
		wg.Go(func() {
			for n := range work {
				s.timed(name, time.Now(), func() error { return f(n) })
			}
		})
	}
	begun := time.Now()
	for _, n := range nodes {
		work <- n
	}
	close(work)
	wg.Wait()
	s.say("%s: %d in %s", name, len(nodes), time.Since(begun).Round(time.Millisecond))
}

// timed notes how long something took since it was due.
func (s *scale) timed(name string, due time.Time, f func() error) {
	err := f()
	took := time.Since(due)
	if err != nil && s.ctx.Err() == nil {
		s.t.Errorf("%s: %v", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took[name] = append(s.took[name], took)
}

func (s *scale) register(name string) { s.each(name, 16, s.nodes, s.start) }

// load is work that comes at a rate.
type load struct {
	name string
	rate float64 // a second
	do   func(i int) error
}

// loads are what the servers of a cluster ask of its records all the time.
func (s *scale) loads() []load {
	n, c := float64(s.nodesN), float64(s.creates)
	node := func(i int) *fakeNode { return s.nodes[i%len(s.nodes)] }
	some := func(int) *fakeNode { return s.nodes[rand.IntN(len(s.nodes))] }
	return []load{
		{"heartbeat", n / 5, func(i int) error { return s.beat(node(i)) }},
		{"look-up of an owner", float64(s.lookups), func(int) error {
			_, err := s.db.SandboxHome(s.ctx, s.ids[rand.IntN(len(s.ids))])
			return err
		}},
		{"create", c, func(i int) error { return s.create(some(i)) }},
		{"pause", c * 0.3, func(i int) error { return s.pause(some(i)) }},
		{"resume", c * 0.3, func(i int) error { return s.resume(some(i)) }},
		{"end", c, func(i int) error { return s.end(some(i)) }},
		{"use of a node's sandboxes", n / 300, func(i int) error { return s.count(node(i)) }},
		{"snapshots that a node keeps", n / 600, func(i int) error { return s.kept(node(i)) }},
		{"a front's view of all nodes", float64(s.fronts+1) / min(5, 1+float64(s.nodesN/200)), func(int) error {
			list, err := s.db.Nodes(s.ctx)
			if err == nil && len(list) != s.nodesN {
				err = fmt.Errorf("%d nodes", len(list))
			}
			return err
		}},
		{"a node's look for copies", n / 15, func(i int) error { _, err := node(i).db.UncopiedBuilds(s.ctx); return err }},
		{"a node's look at limits and teams", n / 5, func(i int) error {
			_, e1 := node(i).db.AllTeamLimits(s.ctx)
			_, e2 := node(i).db.RemovedTeams(s.ctx)
			return errors.Join(e1, e2)
		}},
		{"a node's look at budgets", n / 60, func(i int) error { _, err := node(i).db.Budgets(s.ctx, ""); return err }},
		{"the leader's look at all teams' events", 1, func(int) error { _, err := s.db.EventCounters(s.ctx); return err }},
	}
}

// create is what a create of an instance of the pool asks.
func (s *scale) create(n *fakeNode) error {
	b := s.box(n, s.teams[rand.IntN(len(s.teams))])
	b.Once = cay.Once{Key: string(b.ID), Digest: "d", Since: time.Now().Add(-10 * time.Minute)}
	if _, _, err := n.db.KeyByHash(s.ctx, s.key.Hash); err != nil {
		return err
	}
	if _, err := n.db.FindTemplate(s.ctx, b.Team, "base"); err != nil {
		return err
	}
	if _, _, err := n.db.CreatedWith(s.ctx, b.Team, b.Once.Key, b.Once.Since); cay.KindOf(err) != cay.NotFound {
		return fmt.Errorf("a new key: %w", err)
	}
	err := n.db.Tx(s.ctx, func(tx store.Store) error {
		if _, err := tx.RunningOf(s.ctx, b.Team, b.ID); err != nil {
			return err
		}
		return tx.AddSandbox(s.ctx, b, told(b, cay.SandboxCreated), told(b, cay.SandboxRunning))
	})
	if err == nil {
		s.created.Add(1)
		n.put(&n.running, b)
	}
	return err
}

func (s *scale) end(n *fakeNode) error {
	b, ok := n.take(&n.running)
	if !ok {
		return nil
	}
	b.State, b.EndedAt, b.Cause = cay.Killed, time.Now(), cay.CauseAsked
	return n.db.UpdateSandbox(s.ctx, b, told(b, cay.SandboxKilled))
}

func (s *scale) pause(n *fakeNode) error {
	b, ok := n.take(&n.running)
	if !ok {
		return nil
	}
	b.State, b.Snapshot, b.Saved = cay.Pausing, cay.NewSnapshotID(), cay.MemorySnapshot
	if err := n.db.UpdateSandbox(s.ctx, b, told(b, cay.SandboxPausing)); err != nil {
		return err
	}
	b.Version++
	b.State, b.EndedAt = cay.Paused, time.Now()
	if err := n.db.UpdateSandbox(s.ctx, b, told(b, cay.SandboxPaused)); err != nil {
		return err
	}
	b.Version++
	n.put(&n.paused, b)
	return nil
}

func (s *scale) resume(n *fakeNode) error {
	b, ok := n.take(&n.paused)
	if !ok {
		return nil
	}
	b.State, b.Instance = cay.Resuming, cay.NewInstanceID()
	err := n.db.Tx(s.ctx, func(tx store.Store) error {
		if _, err := tx.RunningOf(s.ctx, b.Team, b.ID); err != nil {
			return err
		}
		return tx.UpdateSandbox(s.ctx, b, told(b, cay.SandboxResuming))
	})
	if err != nil {
		return err
	}
	b.Version++
	b.State, b.EndedAt, b.EndAt = cay.Running, time.Time{}, time.Now().Add(10*time.Minute)
	if err := n.db.UpdateSandbox(s.ctx, b, told(b, cay.SandboxResumed)); err != nil {
		return err
	}
	b.Version++
	n.put(&n.running, b)
	return nil
}

// count counts the use of what runs on a node, each with a reading.
func (s *scale) count(n *fakeNode) error {
	n.mu.Lock()
	running := slices.Clone(n.running)
	n.mu.Unlock()
	for i := range running {
		running[i].Reading = cay.Reading{Instance: running[i].Instance, Last: cay.Taken{CPU: time.Duration(rand.IntN(1e9)), Sent: rand.Int64N(1e6)}}
	}
	return n.db.CountUsage(s.ctx, running)
}

func (s *scale) kept(n *fakeNode) error {
	mine, err := n.db.SandboxesOf(s.ctx, n.ID)
	if err != nil {
		return err
	}
	var kept []store.Kept
	for _, b := range mine {
		if b.State == cay.Paused {
			kept = append(kept, store.Kept{Account: cay.Account{Team: b.Team, Key: b.Key, Template: b.Template, Labels: b.Metadata}, Bytes: 24 << 20})
		}
	}
	return n.db.CountKept(s.ctx, n.ID, kept)
}

// steady has all loads at once for the time asked for.
func (s *scale) steady() {
	s.resetStatements()
	before, mine := s.processor(), s.mine()
	begun := time.Now()
	until := begun.Add(time.Duration(s.seconds) * time.Second)
	var wg sync.WaitGroup
	for _, l := range s.loads() {
		wg.Go(func() {
			var work sync.WaitGroup
			defer work.Wait()
			slots := make(chan struct{}, 500)
			for i := 0; ; i++ {
				due := begun.Add(time.Duration(float64(i) / l.rate * float64(time.Second)))
				if !due.Before(until) {
					return
				}
				time.Sleep(time.Until(due))
				slots <- struct{}{}
				work.Go(func() {
					s.timed(l.name, due, func() error { return l.do(i) })
					<-slots
				})
				if time.Since(until) > 30*time.Second {
					s.say("%s: given up %s behind", l.name, time.Since(due).Round(time.Millisecond))
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begun)
	s.say("steady for %d s, which took %s: PostgreSQL used %.2f processors, the servers %.2f", s.seconds, took.Round(time.Millisecond),
		(s.processor()-before).Seconds()/took.Seconds(), (s.mine()-mine).Seconds()/took.Seconds())
	s.table([]string{"heartbeat", "look-up of an owner", "create", "pause", "resume", "end", "use of a node's sandboxes", "snapshots that a node keeps",
		"a front's view of all nodes", "a node's look for copies", "a node's look at limits and teams", "a node's look at budgets", "the leader's look at all teams' events"}, took)
	s.bar()
	s.heap()
	s.statements()
}

// most is how many creates come through with 16 clients, beside the fewest statements
// that record the same.
func (s *scale) most() {
	span := 100 * time.Millisecond
	if s.full {
		span = time.Duration(min(s.seconds, 10)) * time.Second
	}
	run := func(f func() error) float64 {
		var wg sync.WaitGroup
		var n atomic.Int64
		until := time.Now().Add(span)
		for range 16 {
			wg.Go(func() {
				for time.Now().Before(until) {
					if err := f(); err != nil {
						s.t.Error(err)
						return
					}
					n.Add(1)
				}
			})
		}
		wg.Wait()
		return float64(n.Load()) / span.Seconds()
	}
	cfg, err := pgxpool.ParseConfig(s.server.URL(s.name))
	s.must(err)
	cfg.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(s.ctx, cfg)
	s.must(err)
	defer pool.Close()
	ours := run(func() error { return s.create(s.nodes[rand.IntN(len(s.nodes))]) })
	raw := run(func() error { return s.rawCreate(pool) })
	s.say("creates of 16 clients: %.0f a second, as the fewest statements in one round trip %.0f: %.2f of it", ours, raw, ours/raw)
}

// rawCreate is a create with a key, two events, its row, its label and the team's
// counters, sent at once.
func (s *scale) rawCreate(pool *pgxpool.Pool) error {
	team, id, now := string(s.teams[rand.IntN(len(s.teams))]), string(cay.NewSandboxID()), time.Now().UnixMilli()
	var b pgx.Batch
	b.Queue(`WITH n AS (UPDATE event_counters SET last = last + 2 WHERE team = $1 RETURNING last)
INSERT INTO events (team, seq, sandbox, type, reason, at, data, instance, outwards) SELECT $1, n.last - 2 + k, $2, 'sandbox.created', 'asked', $3, '{}', '', ''
FROM n, generate_series(1, 2) k`, team, id, now)
	b.Queue(`INSERT INTO idempotency_keys (team, key, digest, sandbox, created_at) VALUES ($1, $2, 'd', $2, $3)`, team, id, now)
	b.Queue(`INSERT INTO sandboxes (id, team, template, build, snapshot, alias, node, instance, state, cause, ended_at, cpus, memory_mb, disk_mb, metadata, env, network, secure,
started_at, end_at, timeout_ms, on_timeout) VALUES ($1, $2, $3, $4, $5, 'base', 'node-0000', $6, 'running', '', 0, 2, 512, 1024, '{"user":"ann"}', '{}', '{}', 1, $7, $7, 600000, 'pause')`,
		id, team, string(s.kind.ID), string(s.build.ID), string(s.build.Snapshot), string(cay.NewInstanceID()), now)
	b.Queue(`INSERT INTO sandbox_metadata (sandbox, team, key, value) VALUES ($1, $2, 'user', 'ann')`, id, team)
	b.Queue(`INSERT INTO usage_open (sandbox, account, since, cpus, memory_mb, creates) SELECT $1, id, $3, 2, 512, 1 FROM usage_accounts WHERE team = $2`, id, team, now)
	b.Queue(`INSERT INTO team_minutes (team, at, running, most, starts) VALUES ($1, $2, 1, 1, 1)
ON CONFLICT (team, at) DO UPDATE SET running = team_minutes.running + 1, most = team_minutes.most + 1, starts = team_minutes.starts + 1`, team, now-now%60000)
	if err := pool.SendBatch(s.ctx, &b).Close(); err != nil { // one transaction
		return err
	}
	s.created.Add(1)
	return nil
}

// lose has the leader declare nodes gone and record what they took along, first one
// and then many, and other nodes take paused ones over.
func (s *scale) lose() {
	s.resetStatements()
	count := min(s.lost, len(s.nodes)-1)
	for _, some := range [][]*fakeNode{s.nodes[1:2], s.nodes[1 : 1+count]} {
		running := 0
		for _, n := range some {
			running += len(n.running)
		}
		s.each(fmt.Sprintf("%d nodes declared gone with %d running", len(some), running), 1, some, s.lostNode)
	}
	gone := s.nodes[1]
	heir := s.nodes[0]
	for _, b := range gone.paused {
		s.timed("take-over of a paused sandbox", time.Now(), func() error {
			got, err := heir.db.AdoptSandbox(s.ctx, b.ID, heir.ID)
			if err == nil {
				heir.put(&heir.paused, got)
			}
			return err
		})
	}
	gone.paused = nil
	s.table([]string{"take-over of a paused sandbox"}, 0)
	s.statements()
}

// lostNode is what the leader does for a node that is gone.
func (s *scale) lostNode(n *fakeNode) error {
	time.Sleep(2 * time.Millisecond) // for longer than it may be silent
	lost, err := s.db.LoseNode(s.ctx, n.ID, time.Millisecond)
	if err != nil || !lost {
		return fmt.Errorf("gone %v: %w", lost, err)
	}
	rows, err := s.db.SandboxesOf(s.ctx, n.ID)
	if err != nil {
		return err
	}
	var work errgroup.Group
	work.SetLimit(8)
	for _, b := range rows {
		if b.State == cay.Paused {
			continue
		}
		b.State, b.Cause, b.EndedAt = cay.Killed, cay.CauseHostLost, time.Now()
		work.Go(func() error {
			return s.db.Tx(s.ctx, func(tx store.Store) error {
				return errors.Join(tx.SkipUsage(s.ctx, b.ID), tx.UpdateSandbox(s.ctx, b, told(b, cay.SandboxKilled)))
			})
		})
	}
	n.running = nil
	return work.Wait()
}

// storm has all servers start at once.
func (s *scale) storm() { s.register("all servers start anew at once") }

// prune forgets a day of events.
func (s *scale) prune() {
	old := time.Now().AddDate(0, 0, -30).UnixMilli()
	s.exec(fmt.Sprintf(`INSERT INTO events (team, seq, sandbox, type, reason, at, data, instance, outwards)
SELECT t.id, -i, 'i' || lpad((i / 5)::text, 19, '0'), e.type, e.reason, %d + i, e.data, e.instance, e.outwards
FROM (SELECT id, row_number() OVER () - 1 AS k, count(*) OVER () AS of FROM teams) t, (SELECT * FROM events LIMIT 1) e, generate_series(1, %d) i WHERE t.k = i %% t.of`, old, s.events), `ANALYZE events`)
	size := s.text(`pg_size_pretty(pg_total_relation_size('events'))`)
	begun := time.Now()
	n, err := s.db.PruneEvents(s.ctx, time.Now().AddDate(0, 0, -8))
	s.must(err)
	if n != s.events {
		s.t.Errorf("%d of %d events were forgotten", n, s.events)
	}
	took := time.Since(begun)
	s.say("%d events of %s forgotten in %s: %.0f a second", n, size, took.Round(time.Millisecond), float64(n)/took.Seconds())
}

// check reads back that all that was answered is there.
func (s *scale) check() {
	var n int64
	s.must(s.stats.QueryRow(s.ctx, `SELECT count(*) FROM sandboxes`).Scan(&n))
	if want := s.created.Load(); n != want {
		s.t.Errorf("%d sandboxes are recorded, %d were answered", n, want)
	}
	s.say("%d sandboxes are recorded, as answered", n)
}

func (s *scale) report() {
	if path := os.Getenv("SCALE_REPORT"); path != "" {
		s.must(os.WriteFile(path, []byte(strings.Join(s.said, "\n")+"\n"), 0o600))
	}
}

// table says how long work took, a line for each kind.
func (s *scale) table(names []string, span time.Duration) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "work\tcount\ta second\tp50 ms\tp99 ms\tworst ms")
	s.mu.Lock()
	for _, name := range names {
		took := slices.Sorted(slices.Values(s.took[name]))
		if len(took) == 0 {
			continue
		}
		rate := "–"
		if span > 0 {
			rate = fmt.Sprintf("%.1f", float64(len(took))/span.Seconds())
		}
		at := func(share float64) string {
			return fmt.Sprintf("%.1f", float64(took[int(share*float64(len(took)-1))].Microseconds())/1000)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", name, len(took), rate, at(0.5), at(0.99), at(1))
	}
	s.mu.Unlock()
	_ = w.Flush()
	s.say("%s", out.String())
}

// bar says whether what clients and leases wait for took at most 50 ms, but for one in a
// hundred.
func (s *scale) bar() {
	const most = 50 * time.Millisecond
	s.mu.Lock()
	var above []string
	for _, name := range []string{"heartbeat", "look-up of an owner", "create"} {
		took := slices.Sorted(slices.Values(s.took[name]))
		if len(took) == 0 || took[(len(took)-1)*99/100] > most {
			above = append(above, name)
		}
	}
	s.mu.Unlock()
	met := "met"
	if len(above) > 0 {
		met = "not met by: " + strings.Join(above, ", ")
	}
	s.say("bar of p99 at most %s for renewals, look-ups and creates: %s", most, met)
}

// heap says how the heartbeats leave the table of nodes.
func (s *scale) heap() {
	s.say("nodes: %s", s.text(`SELECT n_tup_upd || ' updates, ' || n_tup_hot_upd || ' of them in place, ' || n_dead_tup || ' dead rows, ' || pg_size_pretty(pg_table_size('nodes'))
FROM pg_stat_user_tables WHERE relname = 'nodes'`))
}

func (s *scale) resetStatements() {
	if s.full {
		s.text(`pg_stat_statements_reset()`)
	}
}

// statements says which of them took most.
func (s *scale) statements() {
	if !s.full {
		return
	}
	rows, err := s.stats.Query(s.ctx, `SELECT calls, total_exec_time, mean_exec_time, rows, shared_blks_hit + shared_blks_read, left(regexp_replace(query, '\s+', ' ', 'g'), 110)
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY total_exec_time DESC LIMIT 14`)
	s.must(err)
	defer rows.Close()
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "calls\tms in all\tms\trows\tpages a call\tstatement")
	for rows.Next() {
		var calls, n, pages int64
		var total, mean float64
		var text string
		s.must(rows.Scan(&calls, &total, &mean, &n, &pages, &text))
		fmt.Fprintf(w, "%d\t%.0f\t%.3f\t%d\t%d\t%s\n", calls, total, mean, n, pages/calls, text)
	}
	s.must(rows.Err())
	_ = w.Flush()
	s.say("%s", out.String())
}

// processor is what PostgreSQL's processes have used.
func (s *scale) processor() (sum time.Duration) {
	text, err := os.ReadFile(filepath.Join(s.server.Dir(), "data", "postmaster.pid"))
	s.must(err)
	line, _, _ := strings.Cut(string(text), "\n")
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	s.must(err)
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		own := filepath.Base(filepath.Dir(path)) == line
		if !own && f[1] != line {
			continue
		}
		fields := f[11:13]
		if own {
			fields = f[11:15] // with the children that ended
		}
		for _, field := range fields {
			ticks, err := strconv.ParseInt(field, 10, 64)
			s.must(err)
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}

// mine is what this process has used.
func (s *scale) mine() time.Duration {
	var u unix.Rusage
	s.must(unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
