package store_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// TestPostgresWithoutItsStandby has a commit whose standby is away fail with an error
// that leaves open whether it counts.
func TestPostgresWithoutItsStandby(t *testing.T) {
	store.HurryCommits(t)
	server := pgtest.Start(t)
	s := storetest.OpenPostgres(t, server.URL(server.Database(t, "")))
	server.Stop(syscall.SIGINT)
	server.Run("synchronous_standby_names=none")
	err := s.AddTeam(t.Context(), cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()})
	if cay.KindOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "may count or not") {
		t.Errorf("a commit without the standby: %v", err)
	}
	server.Stop(syscall.SIGQUIT)
	server.Run()
	if list, err := s.Teams(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("after it: %v, %v", list, err)
	}
}

// TestPostgresIsNotSettled holds a commit by a standby that is away: until it counts, and
// is seen, nothing may be removed because no record names it.
func TestPostgresIsNotSettled(t *testing.T) {
	store.HurryCommits(t)
	server := pgtest.Start(t)
	standby := server.Standby(t)
	s := storetest.OpenPostgres(t, server.URL(server.Database(t, "")))
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
	b, created := box(team.ID)
	for _, err := range []error{s.AddTeam(t.Context(), team), s.AddSandbox(t.Context(), b, created), s.Settled(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	standby.Stop(syscall.SIGQUIT)
	n := cay.Checkpoint{ID: cay.NewSnapshotID(), Team: team.ID, Sandbox: b.ID, Kind: cay.MemorySnapshot, CreatedAt: time.Now()}
	answer := make(chan error, 1)
	go func() {
		_, err := s.AddCheckpoint(t.Context(), n)
		answer <- err
	}()
	var early error
	for s.Settled(t.Context()) == nil && early == nil {
		select {
		case early = <-answer:
			t.Fatalf("it was answered before it was seen to wait: %v", early)
		case <-time.After(time.Millisecond):
		}
	}
	if used, err := s.SnapshotUsed(t.Context(), n.ID); used || err != nil {
		t.Errorf("a commit that waits is seen: %t, %v", used, err)
	}
	if err := <-answer; cay.KindOf(err) != cay.Unavailable {
		t.Errorf("it was answered with %v", err)
	}
	for s.Settled(t.Context()) != nil { // PostgreSQL hears of its client's end
		time.Sleep(time.Millisecond)
	}
	if used, err := s.SnapshotUsed(t.Context(), n.ID); !used || err != nil {
		t.Errorf("what was not confirmed counts, and is not seen when all is settled: %t, %v", used, err)
	}
}

// TestPostgresCountsAnew has PostgreSQL crash before a transaction is committed, and give
// that one's number to another: the answer of the first is not the other one's.
func TestPostgresCountsAnew(t *testing.T) {
	server := pgtest.Start(t, "wal_writer_delay=10s") // so that nothing of what is not committed is on the disk
	name := server.Database(t, "")
	s := storetest.OpenPostgres(t, server.URL(name))
	server.Exec(t, name, "CREATE TABLE other (n bigint)")
	for what, crash := range map[string]func(){
		"the server":           func() { server.Stop(syscall.SIGQUIT); server.Run() },
		"one process of it":    func() { server.Crash(t) },
		"another name's place": func() {}, // and nothing crashes
	} {
		crashed := what != "another name's place"
		runs := 0
		err := s.Tx(t.Context(), func(tx store.Store) error {
			if runs++; runs > 1 {
				return errors.New("it has not happened")
			}
			if err := addTeam(t, tx, what); err != nil {
				return err
			}
			if _, err := tx.Teams(t.Context()); err != nil { // which sends what waits
				return err
			}
			crash()
			server.Exec(t, name, slices.Repeat([]string{"INSERT INTO other VALUES (1)"}, 20)...)
			return nil
		})
		if crashed && err == nil {
			t.Errorf("%s: a change was acknowledged that was not committed", what)
		}
	}
	hasTeams(t, s, "another name's place")
}

// TestNewsOfAConnection looks at connections that something else reads, as the driver does
// after a write that took long, or not.
func TestNewsOfAConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, read := range []bool{false, true} {
		in, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		out, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		if read {
			go func() {
				_, err := in.Read(make([]byte, 1))
				got <- err
			}()
			time.Sleep(50 * time.Millisecond) // it waits
		}
		if store.HasNews(in) {
			t.Errorf("read %t: there are news of a connection that is silent", read)
		}
		out.Close()
		if read {
			<-got
		}
		for begun := time.Now(); !store.HasNews(in); time.Sleep(time.Millisecond) {
			if time.Since(begun) > time.Minute {
				t.Fatalf("read %t: there are no news of a connection that has ended", read)
			}
		}
		in.Close()
	}
}

// TestPostgresOnAFullDisk fills the disk of the database: changes fail with one
// line, and what was acknowledged is there when the disk has room again.
func TestPostgresOnAFullDisk(t *testing.T) {
	dir := disktest.Ext4(t, 256<<20)
	for _, above := range []string{filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} { // PostgreSQL does not run as root
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	server := pgtest.StartIn(t, dir)
	s := storetest.OpenPostgres(t, server.URL(server.Database(t, "")))
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
	if err := s.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	empty := disktest.Fill(t, dir)
	acknowledged := 0
	for range 200 {
		b, told := box(team.ID)
		b.Metadata = map[string]string{"a": strings.Repeat("x", 100_000)}
		err := s.AddSandbox(t.Context(), b, told)
		if err != nil {
			if kind := cay.KindOf(err); kind != cay.NoSpace && kind != cay.Unavailable {
				t.Errorf("on a full disk: %v", err)
			}
			break
		}
		acknowledged++
	}
	empty()
	if acknowledged == 200 {
		t.Error("the disk was never full")
	}
	server.Restart()
	n, err := s.CountSandboxes(t.Context(), store.SandboxQuery{Team: team.ID})
	if err != nil || n != acknowledged {
		t.Errorf("%d sandboxes are recorded, %d were acknowledged, %v", n, acknowledged, err)
	}
	b, told := box(team.ID)
	if err := s.AddSandbox(t.Context(), b, told); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
