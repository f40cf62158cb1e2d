package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cay-run/cay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is for what must happen and does so at once on an idle machine.
const deadline = 60 * time.Second

func spec() cay.InstanceSpec {
	return cay.InstanceSpec{
		Instance: cay.NewInstanceID(), Sandbox: cay.NewSandboxID(), Team: cay.NewTeamID(),
		Template: cay.NewTemplateID(), Build: cay.NewBuildID(), Snapshot: cay.NewSnapshotID(),
		Env: map[string]string{"A": "1", "E2B_SANDBOX": "no"}, AccessToken: "secret", Network: cay.DefaultNetwork(),
	}
}

func create(t *testing.T, n *Node) cay.Instance {
	t.Helper()
	inst, err := n.Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	return inst
}

// nothingLeft checks that a machine is as it was before anything ran on it.
func nothingLeft(t *testing.T, m *machine, n *Node) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.containers {
		t.Errorf("container %s is left", id)
	}
	for index, st := range m.slots {
		if st != "idle" {
			t.Errorf("slot %d is %s", index, st)
		}
	}
	if len(m.users) > 0 {
		t.Errorf("snapshots are used still, and could not be evicted: %v", m.users)
	}
	if len(m.holds) > 0 || len(m.mapped) > 0 {
		t.Errorf("snapshots are held still: %v, removed and held: %v", m.holds, m.mapped)
	}
	for _, dir := range []string{"instances", "reserved"} {
		left, err := names(filepath.Join(m.dir, dir))
		if len(left) != 0 || err != nil {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
	if got := n.Instances(); len(got) != 0 {
		t.Errorf("the node still lists %v", got)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.instances) != 0 || len(n.restores) != 0 {
		t.Errorf("the node still holds %d instances and %d turns", len(n.instances), len(n.restores))
	}
}

func nextDeath(t *testing.T, n *Node) cay.Death {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	list, next, err := n.Deaths(ctx, cay.Cursor{})
	if err != nil {
		t.Fatalf("no death was told: %v", err)
	}
	next.Seq -= int64(len(list) - 1)
	n.deaths.read(next) // this one is known now
	return list[0]
}

// noDeath fails for a death that was told.
func noDeath(t *testing.T, n *Node) {
	t.Helper()
	if list, _, _, _ := n.deaths.read(cay.Cursor{}); len(list) > 0 {
		t.Errorf("a death was told: %+v", list)
	}
}

func TestLife(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := spec()
	inst, err := n.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if found, ok := n.Lookup(s.Sandbox); !ok || found.Addr != inst.Addr || found.Spec.Instance != s.Instance {
		t.Errorf("Lookup = %+v, %v", found, ok)
	}
	for id, token := range n.Tokens() {
		if id != s.Sandbox || token != "secret" {
			t.Errorf("Tokens yields %s, %s", id, token)
		}
	}
	if u, err := n.Usage(t.Context(), s.Instance); u.Tasks != 7 || err != nil {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	in := m.inits[0]
	if in.EnvVars["A"] != "1" || in.EnvVars["E2B_SANDBOX"] != "true" || in.EnvVars["E2B_SANDBOX_ID"] != string(s.Sandbox) ||
		in.EnvVars["E2B_TEMPLATE_ID"] != string(s.Template) || in.AccessToken != "secret" ||
		len(in.Entropy) != 32 || len(in.MachineID) != 32 || in.MemoryMB != 512 {
		t.Errorf("identity: %+v", in)
	}
	if s.Env["E2B_SANDBOX"] != "no" {
		t.Error("the caller's environment was changed")
	}
	if fi, err := os.Stat(filepath.Join(n.journal(s.Instance), specFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("journal: %v, %v", fi, err)
	}

	m.on("gone", func() error {
		if _, ok := n.Lookup(s.Sandbox); ok {
			t.Error("Lookup finds a sandbox that is gone")
		}
		return nil
	})
	if err := n.Kill(t.Context(), s.Instance, cay.CauseTimeout); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, m, n)
	if d := nextDeath(t, n); d.Instance != s.Instance || d.Sandbox != s.Sandbox || d.Cause != cay.CauseTimeout {
		t.Errorf("death: %+v", d)
	}
	if end := m.events[len(m.events)-3:]; !slices.Equal(end, []string{"kill", "gone", "release"}) {
		t.Errorf("the end went %v", end)
	}
	if err := n.Kill(t.Context(), s.Instance, cay.CauseAsked); err != nil {
		t.Errorf("a second kill: %v", err)
	}
	if _, err := n.Usage(t.Context(), s.Instance); cay.KindOf(err) != cay.NotFound {
		t.Errorf("usage of what is gone: %v", err)
	}
}

// steps of a create that can fail, and what the error says.
var steps = map[string]string{
	"get": "find its snapshot", "canrestore": "find its snapshot", "image": "find its snapshot",
	"acquire": "network slot", "apply": "network policy", "restore": "restore its snapshot",
	"watch": "watch it", "init": "identity",
}

func TestFailedStepLeavesNothing(t *testing.T) {
	for step, says := range steps {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			n := m.open(t)
			m.on(step, func() error {
				return cay.Errorf(cay.NoSpace, "no room").WithHint("make room")
			})
			_, err := n.Create(t.Context(), spec())
			var e *cay.Error
			if !errors.As(err, &e) || e.Kind != cay.NoSpace || e.Hint != "make room" || !strings.Contains(e.Msg, says) {
				t.Errorf("Create = %#v, want the step %q in it", err, says)
			}
			nothingLeft(t, m, n)
			m.on(step, nil)
			create(t, n) // and the node still works
		})
	}
}

func TestJournalFails(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := spec()
	if err := os.WriteFile(n.journal(s.Instance), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), "journal") {
		t.Errorf("Create = %v", err)
	}
	nothingLeft(t, m, n)
	if err := diskError(&os.PathError{Err: syscall.ENOSPC}); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("a full disk is %v", err)
	}
}

// A server that dies in the middle of a create must leave nothing that its
// successor does not remove: the guest has no identity, and no caller knows it.
func TestCrashDuringCreate(t *testing.T) {
	for step := range steps {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			first := m.open(t)
			m.on(step, func() error { runtime.Goexit(); return nil }) // no clean-up runs
			died := make(chan struct{})
			go func() {
				defer close(died)
				first.Create(context.Background(), spec())
			}()
			<-died
			m.crash()
			nothingLeft(t, m, m.open(t))
		})
	}
}

func TestCrashAndAdopt(t *testing.T) {
	m := newMachine(t)
	first := m.open(t)
	a, b, c, d := create(t, first), create(t, first), create(t, first), create(t, first)
	first.Close()
	m.crash()

	m.die(b.Spec.Instance, cay.Death{})                                               // b died while no server ran
	os.Remove(filepath.Join(first.journal(c.Spec.Instance), wholeFile))               // c was never finished
	os.WriteFile(filepath.Join(first.journal(d.Spec.Instance), specFile), nil, 0o600) // d's journal is broken
	stray := cay.NewInstanceID()                                                      // a build's, without a journal
	m.containers[stray] = &container{}
	os.MkdirAll(first.reserved(stray), 0o755)
	m.slots[9] = "found"

	second := m.open(t)
	got := second.Instances()
	if len(got) != 1 || got[0].Spec.Instance != a.Spec.Instance || got[0].Addr != a.Addr || !got[0].Started.Equal(a.Started) {
		t.Errorf("adopted %+v, want %+v", got, a)
	}
	if len(m.containers) != 1 {
		t.Errorf("%d containers, want 1", len(m.containers))
	}
	if death := nextDeath(t, second); death.Instance != b.Spec.Instance || death.Cause != cay.CauseHostLost {
		t.Errorf("death: %+v", death)
	}
	if x := create(t, second); x.Addr == a.Addr {
		t.Error("the adopted address was given away")
	} else if err := second.Kill(t.Context(), x.Spec.Instance, cay.CauseAsked); err != nil {
		t.Error(err)
	}
	if err := second.Kill(t.Context(), a.Spec.Instance, cay.CauseAsked); err != nil {
		t.Error(err)
	}
	nothingLeft(t, m, second)
}

func TestDeath(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	inst := create(t, n)
	m.die(inst.Spec.Instance, cay.Death{Cause: cay.CauseOutOfMemory, Detail: "oom_kill 3", Trace: "for the log alone"})
	d := nextDeath(t, n)
	if d.Instance != inst.Spec.Instance || d.Sandbox != inst.Spec.Sandbox || d.Cause != cay.CauseOutOfMemory || d.Detail != "oom_kill 3" || d.Trace != "" || d.At.IsZero() {
		t.Errorf("death: %+v", d)
	}
	nothingLeft(t, m, n)
}

func TestDeathWhileMade(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := spec()
	m.on("init", func() error {
		m.die(s.Instance, cay.Death{Cause: cay.CauseEngine, Detail: "SIGSEGV"})
		return errors.New("connection reset")
	})
	_, err := n.Create(t.Context(), s)
	if err == nil || !strings.Contains(err.Error(), "SIGSEGV") {
		t.Errorf("Create = %v, want the evidence", err)
	}
	nothingLeft(t, m, n)
}

func TestKillWhileMade(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	s := spec()
	reached, killed := make(chan struct{}), make(chan error, 1)
	m.on("restore", func() error {
		close(reached)
		n.mu.Lock()
		inst := n.instances[s.Instance]
		n.mu.Unlock()
		<-inst.ctx.Done()
		return nil
	})
	go func() {
		<-reached
		killed <- n.Kill(context.Background(), s.Instance, cay.CauseAsked)
	}()
	if _, err := n.Create(t.Context(), s); cay.KindOf(err) != cay.Conflict {
		t.Errorf("Create = %v, want Conflict", err)
	}
	if err := <-killed; err != nil {
		t.Error(err)
	}
	nothingLeft(t, m, n)
}

func TestCallerLeaves(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	m.on("restore", func() error { cancel(); return nil })
	if _, err := n.Create(ctx, spec()); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("Create = %v", err)
	}
	nothingLeft(t, m, n)
}

func TestKillIsTriedAgain(t *testing.T) {
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		n, err := Open(t.Context(), m.config())
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		inst := create(t, n)
		tries := 0
		m.on("kill", func() error {
			if tries++; tries < 4 {
				return errors.New("device busy")
			}
			return nil
		})
		m.on("release", func() error {
			if tries < 4 {
				t.Error("the slot was released while the container lived")
			}
			return nil
		})
		if err := n.Kill(t.Context(), inst.Spec.Instance, cay.CauseAsked); err != nil {
			t.Error(err)
		}
		nothingLeft(t, m, n)
	})
}

func TestRestoresAreBounded(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	var both sync.WaitGroup // two must be in restore at once, or this test hangs
	both.Add(2)
	var once [2]sync.Once
	m.on("restore", func() error {
		for i := range once {
			mine := false
			once[i].Do(func() { mine = true })
			if mine {
				both.Done()
				both.Wait()
				break
			}
		}
		return nil
	})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := n.Create(context.Background(), spec()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if m.most != 2 || len(n.Instances()) != 8 {
		t.Errorf("%d restores at once, %d instances", m.most, len(n.Instances()))
	}
}

func TestClose(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	inst := create(t, n)
	n.Close()
	if len(m.containers) != 1 {
		t.Error("Close ended a sandbox")
	}
	if _, err := n.Create(t.Context(), spec()); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("Create after Close: %v", err)
	}
	if err := n.Kill(t.Context(), inst.Spec.Instance, cay.CauseAsked); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("Kill after Close: %v", err)
	}
	if _, _, err := n.Deaths(t.Context(), cay.Cursor{}); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("Deaths after Close: %v", err)
	}
}

func TestBadIDs(t *testing.T) {
	n := newMachine(t).open(t)
	s := spec()
	s.Instance = "../x"
	if _, err := n.Create(t.Context(), s); cay.KindOf(err) != cay.Invalid {
		t.Errorf("Create = %v", err)
	}
	s = create(t, n).Spec
	if _, err := n.Create(t.Context(), s); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a second Create = %v", err)
	}
}

func TestShareMount(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b")
	err := ShareMount(dir)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skip("this process may not mount")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := ShareMount(dir); err != nil { // again
		t.Fatal(err)
	}
	sub := filepath.Join(dir, "x", "y")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	volume := t.TempDir()
	precious := filepath.Join(volume, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(volume, sub, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if mounts, err := mountsBelow(dir); len(mounts) != 2 || err != nil {
		t.Errorf("mounts: %v, %v", mounts, err)
	}
	if err := UnshareMount(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("the volume lost its file: %v", err)
	}
	if mounts, err := mountsBelow(dir); len(mounts) != 0 || err != nil {
		t.Errorf("mounts: %v, %v", mounts, err)
	}
}

// TestWhatAFailedCreateIs: a client reads from the code of the error whether
// the same request may succeed.
func TestWhatAFailedCreateIs(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		kind cay.Kind
		code string
	}{
		{"breaks", errors.New("broken"), cay.Internal, cay.CodeCreateFailed},
		{"not this time", cay.Errorf(cay.Unavailable, "busy"), cay.Unavailable, cay.CodeCreateFailed},
		{"in no time", context.DeadlineExceeded, cay.Unavailable, cay.CodeCreateFailed},
		{"too large for its own limit", cay.Errorf(cay.Exhausted, "does not fit"), cay.Internal, cay.CodeCreateRefused},
		{"of another machine", cay.Errorf(cay.Unsupported, "another processor"), cay.Unsupported, cay.CodeCreateRefused},
		{"gone", cay.Errorf(cay.NotFound, "no such file"), cay.NotFound, cay.CodeCreateRefused},
		{"no room", cay.Errorf(cay.NoSpace, "the disk is full"), cay.NoSpace, cay.CodeCreateRefused},
		{"with a code of its own", cay.Errorf(cay.Unavailable, "endless").WithCode(cay.CodeRestoreTimeout), cay.Unavailable, cay.CodeRestoreTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			n := m.open(t)
			m.on("restore", func() error { return tt.err })
			_, err := n.Create(t.Context(), spec())
			if cay.KindOf(err) != tt.kind || cay.CodeOf(err) != tt.code {
				t.Errorf("kind %v, code %q: %v", cay.KindOf(err), cay.CodeOf(err), err)
			}
		})
	}
}
