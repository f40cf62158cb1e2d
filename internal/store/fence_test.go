package store_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// fence has a second machine's server take the records over at any moment: no record
// of the first one's comes after that. Databases are copies of an empty one.
func fence(t *testing.T, server *pgtest.Server, empty string) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, database func() (name, at string), server *pgtest.Server)
	}{
		{"Between", fenceBetween}, {"InTheMiddle", fenceInTheMiddle}, {"APausedProcess", fencePaused}, {"AStoppedProcess", fenceStopped}, {"AtWork", fenceAtWork}, {"Clock", fenceClock},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.test(t, func() (string, string) {
				name := server.Database(t, empty)
				return name, server.URL(name)
			}, server)
		})
	}
}

// holds takes the records for a machine, whose writes they refuse once another one
// has them.
func holds(t *testing.T, s *store.DB, machine string, lease time.Duration) (epoch int64) {
	t.Helper()
	epoch, err := s.TakeNode(t.Context(), "it's", machine, lease)
	if err != nil {
		t.Fatal(err)
	}
	s.Guard("it's", epoch)
	return epoch
}

// TestMakers: a node that records a build or a checkpoint has made its snapshot, and one that
// records it once more has not.
func TestMakers(t *testing.T) {
	server := pgtest.Start(t)
	ctx := t.Context()
	s := storetest.OpenPostgres(t, server.URL(server.Database(t, "")))
	holds(t, s, "one", time.Hour)
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
	template := cay.Template{ID: cay.NewTemplateID(), Team: team.ID, Names: []string{"x"}}
	build := cay.Build{ID: cay.NewBuildID(), Template: template.ID, Team: team.ID, State: cay.BuildReady, Snapshot: cay.NewSnapshotID()}
	box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, Template: template.ID, State: cay.Running, Node: "it's", StartedAt: time.Now()}
	point := cay.Checkpoint{ID: cay.NewSnapshotID(), Team: team.ID, Sandbox: box.ID, CreatedAt: time.Now()}
	for _, record := range []func() error{
		func() error { return s.AddTeam(ctx, team) },
		func() error { return s.AddTemplate(ctx, template) },
		func() error { return s.PutBuild(ctx, build) },
		func() error { return s.AddSandbox(ctx, box) },
		func() error { _, err := s.AddCheckpoint(ctx, point); return err },
	} {
		if err := record(); err != nil {
			t.Fatal(err)
		}
	}
	epoch, err := s.TakeNode(ctx, "another", "two", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s.Guard("another", epoch)
	build.UpdatedAt = time.Now()
	if err := s.PutBuild(ctx, build); err != nil {
		t.Fatal(err)
	}
	for _, id := range []cay.SnapshotID{build.Snapshot, point.ID} {
		if got, err := s.SnapshotMakers(ctx, id); err != nil || !slices.Equal(got, []cay.NodeID{"it's"}) {
			t.Errorf("snapshot %s was made on %q, %v", id, got, err)
		}
	}
	build.Snapshot = cay.NewSnapshotID()
	if err := s.PutBuild(ctx, build); err != nil {
		t.Fatal(err)
	}
	if got, err := s.SnapshotMakers(ctx, build.Snapshot); err != nil || !slices.Equal(got, []cay.NodeID{"another"}) {
		t.Errorf("its next snapshot was made on %q, %v", got, err)
	}
}

func addTeam(t testing.TB, s store.Store, name string) error {
	return s.AddTeam(t.Context(), cay.Team{ID: cay.NewTeamID(), Name: name, CreatedAt: time.Now()})
}

func teamNames(t *testing.T, s *store.DB) (names []string) {
	t.Helper()
	list, err := s.Teams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, team := range list {
		names = append(names, team.Name)
	}
	return names
}

// hasTeams checks which teams are recorded.
func hasTeams(t *testing.T, s *store.DB, want ...string) {
	t.Helper()
	names := teamNames(t, s)
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("the teams are %q, want %q", names, want)
	}
}

func takenOver(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrTakenOver) || cay.KindOf(err) != cay.Unavailable {
		t.Errorf("%s: %v", what, err)
	}
}

func fenceBetween(t *testing.T, database func() (string, string), _ *pgtest.Server) {
	_, at := database()
	one, two := storetest.OpenPostgres(t, at), storetest.OpenPostgres(t, at)
	epoch := holds(t, one, "one", time.Hour)
	if err := addTeam(t, one, "a"); err != nil {
		t.Error(err)
	}
	if _, err := two.TakeNode(t.Context(), "it's", "two", time.Hour); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a lease that holds was taken: %v", err)
	}
	if err := one.RenewNode(t.Context(), "it's", epoch, -time.Second); err != nil {
		t.Error(err)
	}
	if err := addTeam(t, one, "b"); err != nil {
		t.Errorf("a lease is over, and no other server has come: %v", err)
	}
	holds(t, two, "two", time.Hour)
	takenOver(t, "a record", addTeam(t, one, "c"))
	takenOver(t, "a lease", one.RenewNode(t.Context(), "it's", epoch, time.Hour))
	takenOver(t, "a transaction", one.Tx(t.Context(), func(store.Store) error { return nil }))
	if err := one.LeaveNode(t.Context(), "it's", epoch); err != nil {
		t.Error(err)
	}
	if err := addTeam(t, two, "d"); err != nil {
		t.Error(err)
	}
	hasTeams(t, one, "a", "b", "d") // it may read
	// The same machine's next server takes them at once.
	again := storetest.OpenPostgres(t, at)
	holds(t, again, "two", time.Hour)
	takenOver(t, "a record of the killed one", addTeam(t, two, "e"))
	hasTeams(t, again, "a", "b", "d")
}

func fenceInTheMiddle(t *testing.T, database func() (string, string), _ *pgtest.Server) {
	_, at := database()
	for what, tail := range map[string]func(tx store.Store) error{
		"a transaction that goes on": func(tx store.Store) error { return addTeam(t, tx, "b") },
		"a transaction at its end":   func(store.Store) error { return nil },
	} {
		one, two := storetest.OpenPostgres(t, at), storetest.OpenPostgres(t, at)
		holds(t, one, "one", -time.Second)
		takenOver(t, what, one.Tx(t.Context(), func(tx store.Store) error {
			if err := addTeam(t, tx, "a"); err != nil {
				return err
			}
			holds(t, two, "two", -time.Second)
			return tail(tx)
		}))
		hasTeams(t, two)
	}
}

const otherServer = "CAY_TEST_OTHER_SERVER"

// otherProcess is a server in a process of its own.
type otherProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

// startOther starts a test as the process of a server. It ends with the test that asks.
func startOther(t *testing.T, test, at string) *otherProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), otherServer+"="+at)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	return &otherProcess{t, cmd, in, lines}
}

// next is what follows a prefix in the next line that has it.
func (p *otherProcess) next(prefix string) string {
	p.t.Helper()
	for p.lines.Scan() {
		if text, ok := strings.CutPrefix(p.lines.Text(), prefix); ok {
			return text
		}
	}
	p.t.Fatalf("the other server ended: %v", p.lines.Err())
	return ""
}

func (p *otherProcess) signal(how syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(how); err != nil {
		p.t.Fatal(err)
	}
}

// fencePaused stops the process of a server in the middle of a transaction, and has
// it go on when its machine's records are another one's.
func fencePaused(t *testing.T, database func() (string, string), _ *pgtest.Server) {
	_, at := database()
	two := storetest.OpenPostgres(t, at)
	other := startOther(t, "TestOtherServer", at)
	other.next("in the middle")
	other.signal(syscall.SIGSTOP)
	holds(t, two, "two", time.Hour)
	hasTeams(t, two)
	other.signal(syscall.SIGCONT)
	if _, err := io.WriteString(other.in, "\n"); err != nil {
		t.Fatal(err)
	}
	if told := other.next("over: "); !strings.Contains(told, store.ErrTakenOver.Error()) {
		t.Errorf("its transaction ended with %q", told)
	}
	hasTeams(t, two)
}

// TestOtherServer is the process that fencePaused stops.
func TestOtherServer(t *testing.T) {
	at := os.Getenv(otherServer)
	if at == "" {
		return
	}
	s := storetest.OpenPostgres(t, at)
	holds(t, s, "one", -time.Second)
	err := s.Tx(t.Context(), func(tx store.Store) error {
		if err := addTeam(t, tx, "a"); err != nil {
			return err
		}
		fmt.Println("in the middle")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return err
		}
		return addTeam(t, tx, "b")
	})
	fmt.Println("over:", err)
}

// fenceStopped stops the process of a server at a random moment of its work, for longer than
// its lease, and has it go on when its machine's records are another one's: it has written
// all that it was answered, and changes nothing more. CLUSTER_CUTS says how often.
func fenceStopped(t *testing.T, database func() (string, string), _ *pgtest.Server) {
	rounds := 1
	if n, err := strconv.Atoi(os.Getenv("CLUSTER_CUTS")); err == nil {
		rounds = n
	}
	for range rounds {
		t.Run("", func(t *testing.T) { // which closes what it opened
			_, at := database()
			stopped(t, at)
		})
	}
}

func stopped(t *testing.T, at string) {
	two := storetest.OpenPostgres(t, at)
	other := startOther(t, "TestBusyServer", at)
	other.next("at work")
	time.Sleep(rand.N(200 * time.Millisecond))
	other.signal(syscall.SIGSTOP)
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) { // its lease ends
		epoch, err := two.TakeNode(t.Context(), "it's", "two", time.Hour)
		if err == nil {
			two.Guard("it's", epoch)
			break
		}
		if cay.KindOf(err) != cay.Conflict || time.Since(begun) > time.Minute {
			t.Fatal(err)
		}
	}
	before := teamNames(t, two)
	other.signal(syscall.SIGCONT)
	answered := strings.Fields(other.next("answered: "))
	if refused := other.next("refused: "); refused != fmt.Sprint(busy) {
		t.Errorf("of %d writers %s were refused", busy, refused)
	}
	if after := teamNames(t, two); !slices.Equal(before, after) {
		t.Errorf("it was followed with %d records, and there are %d", len(before), len(after))
	}
	for _, name := range answered {
		if !slices.Contains(before, name) {
			t.Errorf("record %s was answered, and is not there", name)
		}
	}
	t.Logf("%d records when it was followed, %d answered", len(before), len(answered))
}

// busy is how many write in a server that is stopped.
const busy = 4

// TestBusyServer is the process that fenceStopped stops.
func TestBusyServer(t *testing.T) {
	at := os.Getenv(otherServer)
	if at == "" {
		return
	}
	const lease = 500 * time.Millisecond
	s := storetest.OpenPostgres(t, at)
	epoch := holds(t, s, "one", lease)
	var mu sync.Mutex
	var answered []string
	var refused atomic.Int64
	var all sync.WaitGroup
	for i := range busy {
		all.Go(func() {
			for j := 0; ; j++ {
				name := fmt.Sprintf("%d-%d", i, j)
				err := addTeam(t, s, name)
				if errors.Is(err, store.ErrTakenOver) {
					refused.Add(1)
					return
				}
				if err == nil {
					mu.Lock()
					answered = append(answered, name)
					mu.Unlock()
				}
				if i == 0 {
					_ = s.RenewNode(t.Context(), "it's", epoch, lease) // refused once another one has the name
				}
				if i == 0 && j == 3 {
					fmt.Println("at work")
				}
			}
		})
	}
	all.Wait()
	fmt.Println("answered:", strings.Join(answered, " "))
	fmt.Println("refused:", refused.Load())
}

// fenceAtWork has a server lose its records while many write.
func fenceAtWork(t *testing.T, database func() (string, string), _ *pgtest.Server) {
	_, at := database()
	one, two := storetest.OpenPostgres(t, at), storetest.OpenPostgres(t, at)
	holds(t, one, "one", -time.Second)
	var answered atomic.Int64
	busy := make(chan struct{})
	var all sync.WaitGroup
	for i := range together {
		all.Go(func() {
			for j := 0; ; j++ {
				err := addTeam(t, one, fmt.Sprintf("%d-%d", i, j))
				if err != nil {
					takenOver(t, "a record", err)
					return
				}
				if answered.Add(1) == 4*together {
					close(busy)
				}
			}
		})
	}
	<-busy
	holds(t, two, "two", time.Hour)
	first, err := two.Teams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all.Wait()
	last, err := two.Teams(t.Context())
	if err != nil || len(last) != len(first) || int64(len(last)) != answered.Load() {
		t.Errorf("%d records were there when the next server began, %d in the end, %d were answered, %v", len(first), len(last), answered.Load(), err)
	}
}

// fenceClock sets the database's clock: a lease that ends too early or too late costs
// time, and no record.
func fenceClock(t *testing.T, database func() (string, string), server *pgtest.Server) {
	name, at := database()
	server.Exec(t, name, `CREATE SCHEMA leap`, `CREATE TABLE leap.clock (ahead interval NOT NULL)`, `INSERT INTO leap.clock VALUES ('0')`,
		`CREATE FUNCTION leap.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM leap.clock'`)
	leap := func(to string) { server.Exec(t, name, `UPDATE leap.clock SET ahead = '`+to+`'`) }
	at += "&search_path=" + url.QueryEscape("public,leap,pg_catalog")
	one, two, three := storetest.OpenPostgres(t, at), storetest.OpenPostgres(t, at), storetest.OpenPostgres(t, at)
	const lease = 10 * time.Minute
	holds(t, one, "one", lease)
	if err := addTeam(t, one, "a"); err != nil {
		t.Fatal(err)
	}
	list, err := one.Teams(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	b := waitingBuild(t, one, list[0].ID)
	if _, _, err := one.TakeBuild(t.Context(), "other", 1, lease); err != nil {
		t.Fatal(err)
	}
	over := func(want bool) {
		t.Helper()
		queue, err := two.QueuedBuilds(t.Context())
		if err != nil || len(queue) != 1 || queue[0].Build != b || queue[0].Over != want {
			t.Errorf("the queue is %+v, %v; its lease is over: %v", queue, err, want)
		}
	}
	refused := func(s *store.DB, machine, left string) {
		t.Helper()
		if _, err := s.TakeNode(t.Context(), "it's", machine, lease); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), left) {
			t.Errorf("a lease that holds: %v", err)
		}
	}
	over(false)
	refused(two, "two", "ends in")

	leap("20 minutes")
	over(true)
	holds(t, two, "two", lease)
	takenOver(t, "a record after a leap", addTeam(t, one, "b"))

	leap("-1 day") // two's lease ends in a day
	if err := addTeam(t, two, "c"); err != nil {
		t.Error(err)
	}
	refused(three, "three", "ends in 10m0s")
	leap("-23 hours")
	holds(t, three, "three", lease)
	takenOver(t, "a record after the second leap", addTeam(t, two, "d"))
	hasTeams(t, three, "a", "c")
}

// waitingBuild has a build of a team wait.
func waitingBuild(t *testing.T, s *store.DB, team cay.TeamID) cay.BuildID {
	t.Helper()
	kind := cay.Template{ID: cay.NewTemplateID(), Team: team}
	b := cay.Build{ID: cay.NewBuildID(), Template: kind.ID, Team: team, State: cay.BuildBuilding, UpdatedAt: time.Now()}
	for _, err := range []error{s.AddTemplate(t.Context(), kind), s.PutBuild(t.Context(), b), s.QueueBuild(t.Context(), b, "sealed", "")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.ID
}
