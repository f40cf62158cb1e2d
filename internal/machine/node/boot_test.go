package node

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/command"
)

var kernel = cay.Boot{Env: map[string]string{"LANG": "C"}, User: "user", Dir: "/home/user", Ports: []int{guest.InterpPort}}

// saved makes an instance whose snapshot says what its template needs, pauses
// it and returns what would resume it.
func pausedAs(t *testing.T, m *machine, n *Node, kind cay.SnapshotKind) cay.InstanceSpec {
	t.Helper()
	s := spec()
	m.saved[s.Snapshot] = cay.Snapshot{ID: s.Snapshot, Root: "digest", Boot: kernel, Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024}}
	if _, err := n.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Kind: kind, Team: s.Team, Sandbox: s.Sandbox, Secure: true}
	if err := n.Pause(t.Context(), s.Instance, record); err != nil {
		t.Fatal(err)
	}
	nextDeath(t, n)
	s.Instance, s.Snapshot, s.Resume = cay.NewInstanceID(), record.ID, true
	return s
}

func TestFilesOnlyPauseAndResume(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := pausedAs(t, m, n, cay.FilesSnapshot)
	if slices.Contains(m.events, "checkpoint") {
		t.Errorf("its memory was saved: %v", m.events)
	}
	inst, err := n.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if inst.Notice != "" || !slices.Contains(m.events, "boot") || slices.Contains(m.events[len(m.events)-6:], "canrestore") {
		t.Errorf("resumed as %+v: %v", inst, m.events)
	}
	// A new agent is told everything, and asks for no token yet.
	in, token := m.inits[1], m.tokens[1]
	if in.Mode != guest.ModeBuild || in.TemplateEnv["LANG"] != "C" || in.DefaultUser != "user" || in.DefaultDir != "/home/user" ||
		in.AccessToken != "secret" || in.EnvVars["A"] != "1" || in.SandboxID != string(s.Sandbox) || token != "" {
		t.Errorf("told with token %q: %+v", token, in)
	}
	if !slices.Equal(m.ready, kernel.Ports) {
		t.Errorf("waited for %v", m.ready)
	}
	// Its settings go on with it.
	next := cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: s.Sandbox}
	if err := n.Pause(t.Context(), s.Instance, next); err != nil {
		t.Fatal(err)
	}
	_, got, err := n.cfg.Snapshots.Get(next.ID)
	if err != nil || got.Boot.User != "user" || got.Kind != cay.MemorySnapshot {
		t.Errorf("saved as %+v", got)
	}
}

func TestMemoryIsLeft(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := pausedAs(t, m, n, cay.MemorySnapshot)
	s.FilesOnly = true
	inst, err := n.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if inst.Notice != "" || !slices.Contains(m.events, "boot") {
		t.Errorf("resumed as %+v: %v", inst, m.events)
	}
	if len(m.checked) != 1 || m.checked[0].Name != "files/all" {
		t.Errorf("checked %v", m.checked)
	}
}

// TestDegrades: memory that nothing here restores any more is not the end of
// the files, and the caller that resumes it is told.
func TestDegrades(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := pausedAs(t, m, n, cay.MemorySnapshot)
	m.on("canrestore", func() error { return cay.Errorf(cay.Conflict, "engine build x is withdrawn") })
	inst, err := n.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(inst.Notice, "without its memory: engine build x is withdrawn") {
		t.Errorf("notice %q", inst.Notice)
	}
	n.Close() // adopted, it still says so
	m.crash()
	n = m.open(t)
	if again := n.Instances(); len(again) != 1 || again[0].Notice != inst.Notice {
		t.Errorf("adopted as %+v", again)
	}

	alone := spec() // a snapshot without files
	m.on("canrestore", func() error { return cay.Errorf(cay.Conflict, "engine build x is withdrawn") })
	if _, err := n.Create(t.Context(), alone); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), "withdrawn") {
		t.Errorf("Create = %v", err)
	}
}

// Memory whose engine is elsewhere is fetched with it; where it is nowhere, the files
// start, and where it cannot be asked for, nothing does.
func TestFetchesTheEngine(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fetch   error
		brought bool
		fails   cay.Kind
	}{
		{name: "fetched", brought: true},
		{name: "nowhere"},
		{name: "not now", fetch: cay.Errorf(cay.Unavailable, "the bucket is away"), fails: cay.Unavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			there, asked := false, 0
			cfg := m.config()
			cfg.Fetch = func(context.Context, cay.SnapshotID) error {
				asked++
				there = tc.brought
				return tc.fetch
			}
			n, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			s := pausedAs(t, m, n, cay.MemorySnapshot)
			m.on("canrestore", func() error {
				if there {
					return nil
				}
				return cay.Errorf(cay.Conflict, "engine build x is not installed")
			})
			inst, err := n.Create(t.Context(), s)
			if (tc.fails != "") != (err != nil) || err != nil && cay.KindOf(err) != tc.fails {
				t.Fatalf("Create = %v", err)
			}
			if err == nil && (inst.Notice == "") != tc.brought {
				t.Errorf("notice %q", inst.Notice)
			}
			if asked != 1 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

// TestFilesAreAwaited: a start from the files of a sandbox that was just paused
// waits for them; a start from its memory does not.
func TestFilesAreAwaited(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := spec()
	if _, err := n.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	goOn := make(chan struct{})
	m.on("files", func() error { <-goOn; return nil })
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: s.Sandbox}
	if err := n.Pause(t.Context(), s.Instance, record); err != nil {
		t.Fatal(err)
	}
	if !m.containers[s.Instance].held {
		t.Error("it runs on while its files are read")
	}
	if _, mark := readJournal(n.journal(s.Instance)); mark != "" {
		t.Error("a server that is killed now would let it run on")
	}
	again := s
	again.Instance, again.Snapshot, again.Resume = cay.NewInstanceID(), record.ID, true
	if _, err := n.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if err := n.Kill(t.Context(), again.Instance, cay.CauseAsked); err != nil {
		t.Fatal(err)
	}
	again.Instance, again.FilesOnly = cay.NewInstanceID(), true
	booted := make(chan error, 1)
	go func() {
		_, err := n.Create(t.Context(), again)
		booted <- err
	}()
	close(goOn)
	if err := <-booted; err != nil {
		t.Fatal(err)
	}
	if len(m.saved[record.ID].Files) != 2 {
		t.Errorf("saved as %+v", m.saved[record.ID])
	}
}

// TestPausedWithoutFiles: that the files could not be kept too is no failed
// pause.
func TestPausedWithoutFiles(t *testing.T) {
	for _, step := range []string{"files", "attach"} {
		m := newMachine(t)
		n := m.open(t)
		s := spec()
		if _, err := n.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		m.on(step, func() error { return cay.Errorf(cay.NoSpace, "full") })
		record := cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: s.Sandbox}
		if err := n.Pause(t.Context(), s.Instance, record); err != nil {
			t.Fatal(err)
		}
		nextDeath(t, n)
		nothingLeft(t, m, n)
		s.Instance, s.Snapshot, s.FilesOnly = cay.NewInstanceID(), record.ID, true
		if _, err := n.Create(t.Context(), s); cay.KindOf(err) != cay.Conflict {
			t.Errorf("%s: Create = %v", step, err)
		}
		s.Instance, s.FilesOnly = cay.NewInstanceID(), false
		if _, err := n.Create(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
}

// TestDamage: a damaged snapshot never becomes a sandbox that a client sees, and
// the error names the damage, not its consequence.
func TestDamage(t *testing.T) {
	for _, crash := range []bool{false, true} {
		m := newMachine(t)
		n := m.open(t)
		s := pausedAs(t, m, n, cay.MemorySnapshot)
		m.on("check", func() error {
			return cay.Errorf(cay.Internal, "snapshot x is damaged: memory").WithCode(cay.CodeDamaged)
		})
		if crash {
			m.on("restore", func() error { return cay.Errorf(cay.Internal, "bad magic") })
		}
		before := len(m.inits)
		_, err := n.Create(t.Context(), s)
		if err == nil || !strings.Contains(err.Error(), "snapshot x is damaged") || len(m.inits) != before {
			t.Errorf("Create = %v, %d agents were called", err, len(m.inits)-before)
		}
		nothingLeft(t, m, n)
	}
}

// TestStartsAgain: after a boot the template's start command runs, as its user
// and with the sandbox's token, until the ready command succeeds.
func TestStartsAgain(t *testing.T) {
	was := kernel
	t.Cleanup(func() { kernel = was })
	kernel.Start, kernel.Ready = "serve", "look"
	m := newMachine(t)
	n := m.open(t)
	s := pausedAs(t, m, n, cay.FilesSnapshot)
	tries := 0
	m.on("run look", func() error {
		if tries++; tries < 3 {
			return &command.Exit{Status: "exit status 1"}
		}
		return nil
	})
	inst, err := n.Create(t.Context(), s)
	if err != nil || inst.Notice != "" {
		t.Fatalf("%+v, %v", inst, err)
	}
	look := Line{Text: "look", Context: cay.CommandContext{User: "user", Dir: "/home/user"}, Token: "secret"}
	serve := look
	serve.Text, serve.Stays = "serve", true
	if want := []Line{serve, look, look, look}; !reflect.DeepEqual(m.lines, want) {
		t.Errorf("it ran %+v", m.lines)
	}

	// Commands of the template's parent keep the parent's context.
	kernel.StartIn = &cay.CommandContext{Env: map[string]string{"A": "parent's"}, User: "worker", Dir: "/srv"}
	child := pausedAs(t, m, n, cay.FilesSnapshot)
	m.lines = nil
	if _, err := n.Create(t.Context(), child); err != nil || len(m.lines) == 0 || !reflect.DeepEqual(m.lines[0].Context, *kernel.StartIn) {
		t.Errorf("it ran %+v, %v", m.lines, err)
	}
	kernel.StartIn = nil

	// A user who broke it has the sandbox all the same, and is told.
	m.on("run serve", func() error { return &command.Exit{Status: "exit status 127"} })
	if err := n.Kill(t.Context(), s.Instance, cay.CauseAsked); err != nil {
		t.Fatal(err)
	}
	s.Instance = cay.NewInstanceID()
	if inst, err = n.Create(t.Context(), s); err != nil || !strings.HasSuffix(inst.Notice, "could not be started: exit status 127") {
		t.Errorf("notice %q, %v", inst.Notice, err)
	}

	// A clone is told that it is one, under the token that it has by then.
	clone := s
	clone.Instance, clone.Sandbox, clone.Resume = cay.NewInstanceID(), cay.NewSandboxID(), false
	m.on("run serve", nil)
	if _, err := n.Create(t.Context(), clone); err != nil {
		t.Fatal(err)
	}
	if in := m.inits[len(m.inits)-1]; in.Mode != guest.ModeCreate || in.SandboxID != string(clone.Sandbox) || m.tokens[len(m.tokens)-1] != "secret" {
		t.Errorf("told %+v", in)
	}

	// One that resumes with its memory runs it already.
	m.lines = nil
	warm := pausedAs(t, m, n, cay.MemorySnapshot)
	if _, err := n.Create(t.Context(), warm); err != nil || len(m.lines) != 0 {
		t.Errorf("it ran %+v, %v", m.lines, err)
	}
}
