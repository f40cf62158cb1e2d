package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// pooled runs a test with a node that has a pool, in time of its own.
func pooled(t *testing.T, memory int64, test func(t *testing.T, m *machine, n *Node)) {
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		cfg := m.config()
		cfg.PoolMemory = memory
		n, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		test(t, m, n)
	})
}

var shape = cay.InstanceSpec{
	Snapshot: "snapshot", Template: "template", Build: "build", Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
}

// fill asks for what shape names that often, in vain, and waits for the pool.
func fill(t *testing.T, n *Node, shape cay.InstanceSpec, count int) {
	t.Helper()
	for range count {
		if inst := n.claim(t.Context(), shape); inst != nil {
			t.Errorf("an empty pool gave %s", inst.spec.Sandbox)
		}
	}
	settled()
	if got := n.Pool().Ready[shape.Template]; got != count {
		t.Fatalf("%d ready after %d creates", got, count)
	}
}

// settled waits until the pool has done what there was to do.
func settled() {
	time.Sleep(20 * time.Second)
	synctest.Wait()
}

// welcome asks for an instance of shape, which may be a warm one.
func welcome() cay.InstanceSpec {
	want := spec()
	want.Snapshot, want.Template, want.Build, want.Limits = shape.Snapshot, shape.Template, shape.Build, shape.Limits
	want.TrafficToken, want.Warm = "traffic", true
	return want
}

// warm takes an instance of the pool.
func warm(t *testing.T, n *Node, want cay.InstanceSpec) cay.Instance {
	t.Helper()
	inst, err := n.Create(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if inst.Spec.Instance == want.Instance || inst.Spec.Sandbox == want.Sandbox {
		t.Fatal("the pool is empty")
	}
	return inst
}

func TestPoolHandsOver(t *testing.T) {
	pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
		fill(t, n, shape, 2)
		if got := n.Instances(); len(got) != 0 {
			t.Errorf("pooled instances are listed: %v", got)
		}
		for id, c := range m.containers {
			if !c.held || !c.spec.Background {
				t.Errorf("instance %s: frozen %v, in the background %v", id, c.held, c.spec.Background)
			}
		}
		if len(m.policies) != 0 {
			t.Errorf("the network is open without an owner: %v", m.policies)
		}
		asked := welcome()
		inst := warm(t, n, asked)
		want := inst.Spec
		secret := "token of " + string(want.Sandbox)
		settled()
		if c := m.containers[want.Instance]; c.held || !c.spec.Background || want.AccessToken != secret ||
			want.TrafficToken != "traffic of "+string(want.Sandbox) || want.Team != asked.Team || want.Warm {
			t.Errorf("handed over: %+v", inst)
		}
		if found, ok := n.Lookup(want.Sandbox); !ok || found.Spec.Instance != want.Instance {
			t.Errorf("Lookup = %+v, %v", found, ok)
		}
		if p := m.policies[int(inst.Addr.As4()[3])]; !p.AllowInternet {
			t.Errorf("network policy: %+v", p)
		}
		told := map[guest.Mode]guest.Init{}
		for i, in := range m.inits {
			if in.SandboxID == string(want.Sandbox) || in.EnvVars["E2B_SANDBOX_ID"] == string(want.Sandbox) {
				told[in.Mode] = in
			}
			if in.Mode == guest.ModeResume && m.tokens[i] != "token of "+string(want.Sandbox) {
				t.Errorf("the hand-over came with token %q", m.tokens[i])
			}
		}
		first, last := told[guest.ModeCreate], told[guest.ModeResume]
		if len(first.MachineID) != 32 || first.AccessToken != "token of "+string(want.Sandbox) || first.EnvVars["A"] != "" {
			t.Errorf("told beforehand: %+v", first)
		}
		if last.AccessToken != secret || last.EnvVars["A"] != "1" || len(last.Entropy) != 32 || string(last.Entropy) == string(first.Entropy) {
			t.Errorf("told at the hand-over: %+v", last)
		}
		if r, mark := readJournal(n.journal(want.Instance)); mark != wholeFile || r.Spec.AccessToken != secret {
			t.Errorf("journal: %q, %+v", mark, r)
		}
		if p := n.Pool(); p.Ready["template"] != 2 || p.Warm != 1 || p.Cold != 2 || p.Memory != 2*30<<20 {
			t.Errorf("two were asked for at once: %+v", p)
		}
	})
}

// A create tells a pooled instance only what it does not know, and waits for its
// guest only then.
func TestPoolTellsNewsOnly(t *testing.T) {
	cases := map[string]struct {
		ask  func(*cay.InstanceSpec)
		told bool
	}{
		"nothing":       {func(*cay.InstanceSpec) {}, false},
		"environment":   {func(s *cay.InstanceSpec) { s.Env = map[string]string{"A": "1"} }, true},
		"without token": {func(s *cay.InstanceSpec) { s.AccessToken = "" }, true},
		"authority":     {func(s *cay.InstanceSpec) { s.Network.Rules = map[string][]cay.HeaderRule{"a.example": nil} }, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
				fill(t, n, shape, 1)
				want := welcome()
				want.Env = nil
				c.ask(&want)
				want = warm(t, n, want).Spec
				settled()
				told := slices.ContainsFunc(m.inits, func(in guest.Init) bool { return in.Mode == guest.ModeResume })
				if told != c.told {
					t.Errorf("told %v", told)
				}
				if r, mark := readJournal(n.journal(want.Instance)); mark != wholeFile || r.Spec.Team != want.Team {
					t.Errorf("journal: %q, %+v", mark, r)
				}
				if found, ok := n.Lookup(want.Sandbox); !ok || found.Spec.AccessToken != want.AccessToken {
					t.Errorf("Lookup = %+v, %v", found, ok)
				}
			})
		})
	}
}

func listed(t *testing.T, m *machine) []cay.InstanceID {
	t.Helper()
	ids, err := m.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// handsOver reports whether the last thing that an agent was told was told at a
// hand-over, not by the pool, which makes the next one meanwhile.
func (m *machine) handsOver() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.inits) > 0 && m.inits[len(m.inits)-1].Mode == guest.ModeResume
}

// A pooled instance that fails at the hand-over costs time, nothing else.
func TestPoolFailsSoftly(t *testing.T) {
	for _, step := range []string{"thaw", "init", "apply"} {
		t.Run(step, func(t *testing.T) {
			pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
				fill(t, n, shape, 1)
				var broke atomic.Bool
				m.on(step, func() error {
					if step == "init" && !m.handsOver() || broke.Swap(true) {
						return nil
					}
					return errors.New("broken")
				})
				want := welcome()
				if _, err := n.Create(t.Context(), want); err != nil {
					t.Fatal(err)
				}
				if _, ok := n.Lookup(want.Sandbox); !ok || !broke.Load() {
					t.Error("it is not found")
				}
				if err := n.Kill(t.Context(), want.Instance, cay.CauseAsked); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A pooled interpreter rehearses before it is frozen. One that cannot is as good.
func TestPoolRehearses(t *testing.T) {
	for _, tc := range []struct {
		name string
		boot cay.Boot
		err  error
		want bool
	}{
		{name: "interpreter", boot: cay.Boot{Ports: []int{guest.InterpPort}}, want: true},
		{name: "an older one", boot: cay.Boot{Ports: []int{guest.InterpPort}}, err: errors.New("404"), want: true},
		{name: "none", boot: cay.Boot{Ports: []int{8080}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
				m.mu.Lock()
				m.saved[shape.Snapshot] = cay.Snapshot{ID: shape.Snapshot, Boot: tc.boot}
				m.mu.Unlock()
				m.on("rehearse", func() error { return tc.err })
				fill(t, n, shape, 1)
				steps := m.happened()
				freeze, rehearse := slices.Index(steps, "freeze"), slices.Index(steps, "rehearse")
				if got := rehearse >= 0; got != tc.want || freeze < rehearse {
					t.Errorf("rehearsed: %v, before it was frozen: %v", got, rehearse < freeze)
				}
				warm(t, n, welcome())
			})
		})
	}
}

func TestPoolForgetsItsDead(t *testing.T) {
	pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
		fill(t, n, shape, 1)
		for _, id := range listed(t, m) {
			m.die(id, cay.Death{Cause: cay.CauseOutOfMemory})
		}
		settled()
		warm(t, n, welcome()) // another one
		noDeath(t, n)
	})
}

func TestPoolKeepsWithinItsMemory(t *testing.T) {
	pooled(t, 100<<20, func(t *testing.T, m *machine, n *Node) {
		for range 10 {
			n.claim(t.Context(), shape)
		}
		settled()
		if p := n.Pool(); p.Ready["template"] != 3 || p.Wanted["template"] != 3 {
			t.Errorf("100 MB hold three of 30: %+v", p)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if p := n.Pool(); p.Ready["template"] != 0 {
			t.Errorf("two hours later: %+v", p)
		}
		nothingLeft(t, m, n)
	})
}

func TestPoolIsEmptied(t *testing.T) {
	full := Room{Memory: 16 << 30, MemoryFree: 600 << 20}
	for _, tc := range []struct {
		name string
		how  func(t *testing.T, m *machine, n *Node)
	}{
		{"template removed", func(t *testing.T, _ *machine, n *Node) {
			if err := n.RemoveSnapshot(t.Context(), shape.Snapshot); err != nil {
				t.Error(err)
			}
		}},
		{"template changed", func(t *testing.T, _ *machine, n *Node) {
			next := shape
			next.Snapshot, next.Build = "snapshot2", "build2"
			fill(t, n, next, 1)
			if err := n.RemoveSnapshot(t.Context(), next.Snapshot); err != nil {
				t.Error(err)
			}
		}},
		{"drained", func(_ *testing.T, _ *machine, n *Node) { n.Drain(false) }},
		{"no memory", func(_ *testing.T, m *machine, _ *Node) { m.has(full); settled() }},
		{"no tasks", func(_ *testing.T, m *machine, _ *Node) { m.has(Room{Tasks: 30000, TasksFree: 1000}); settled() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
				fill(t, n, shape, 3)
				tc.how(t, m, n)
				synctest.Wait()
				nothingLeft(t, m, n)
			})
		})
	}
}

// The pool gives its instances up before a caller is refused.
func TestAdmission(t *testing.T) {
	pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
		fill(t, n, shape, 2)
		m.on("kill", func() error { m.has(Room{Memory: 16 << 30, MemoryFree: 8 << 30}); return nil })
		m.has(Room{Memory: 16 << 30, MemoryFree: 900 << 20})
		create(t, n)
		if p := n.Pool(); p.Ready["template"] != 0 {
			t.Errorf("the pool still has %d", p.Ready["template"])
		}
		m.on("kill", nil)
		m.has(Room{Memory: 16 << 30, MemoryFree: 900 << 20})
		_, err := n.Create(t.Context(), spec())
		var ours *cay.Error
		if !errors.As(err, &ours) || ours.Kind != cay.Unavailable || ours.Code != cay.CodeCapacity || ours.Hint == "" {
			t.Errorf("a full machine said: %+v", err)
		}
		m.has(Room{Tasks: 32768, TasksFree: 3300})
		if _, err := n.Create(t.Context(), spec()); cay.KindOf(err) != cay.Unavailable {
			t.Errorf("a machine without tasks said: %+v", err)
		}
		m.has(Room{})
		create(t, n)
		settled()
		if n.coming != (need{}) {
			t.Errorf("room is kept without a create: %+v", n.coming)
		}
	})
}

func TestPoolWaitsForItsTurn(t *testing.T) {
	pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
		working, on := make(chan struct{}), make(chan struct{})
		m.on("restore", func() error {
			working <- struct{}{}
			<-on
			return nil
		})
		done := make(chan struct{})
		go func() { defer close(done); create(t, n) }()
		<-working
		m.on("restore", nil)
		n.claim(t.Context(), shape)
		settled()
		if got := len(listed(t, m)); got != 0 {
			t.Errorf("the pool made %d while a create waited", got)
		}
		close(on)
		<-done
		settled()
		if got := n.Pool().Ready["template"]; got != 1 {
			t.Errorf("%d ready", got)
		}
	})
}

// A pool that is half full makes its next one when a create and its first
// commands are over, not beside them.
func TestPoolStandsBackForAHandOver(t *testing.T) {
	pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
		fill(t, n, shape, 3)
		asked := time.Now()
		var begun []time.Duration
		m.on("restore", func() error {
			begun = append(begun, time.Since(asked))
			return nil
		})
		m.on("apply", func() error {
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		warm(t, n, welcome())
		settled()
		if len(begun) == 0 || begun[0] < settle {
			t.Errorf("the pool began its next ones %v after a create did, which took 10ms", begun)
		}
	})
}

// An empty pool begins its next one when the creates that emptied it are answered, which
// their context tells: not long after them, and in a burst one after the other.
func TestPoolWaitsForAnswers(t *testing.T) {
	const making = 200 * time.Millisecond
	for name, c := range map[string]struct {
		answered bool // after a moment, or never
		first    time.Duration
	}{
		"soon":  {true, 40 * time.Millisecond},
		"never": {false, settle},
	} {
		t.Run(name, func(t *testing.T) {
			pooled(t, 1<<30, func(t *testing.T, m *machine, n *Node) {
				fill(t, n, shape, 2)
				ctx, answer := context.WithCancel(t.Context())
				defer answer()
				asked := time.Now()
				var begun []time.Duration
				m.on("restore", func() error {
					begun = append(begun, time.Since(asked))
					time.Sleep(making)
					return nil
				})
				for range 2 {
					if _, err := n.Create(ctx, welcome()); err != nil {
						t.Fatal(err)
					}
				}
				if c.answered {
					time.Sleep(c.first)
					answer()
				}
				settled()
				if len(begun) < 2 || begun[0] != c.first || begun[1] >= c.first+making+settle/2 {
					t.Errorf("the pool began its next ones %v after the creates", begun)
				}
			})
		})
	}
}

// TestPoolSurvivesCrashes kills the server at each step of a hand-over.
func TestPoolSurvivesCrashes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		memory  int64
		prepare func(t *testing.T, m *machine, n *Node, id cay.InstanceID)
		pool    int // what is in it afterwards
		running int
	}{
		{"nothing happened", 1 << 30, func(*testing.T, *machine, *Node, cay.InstanceID) {}, 1, 0},
		{"the next one has no pool", 0, func(*testing.T, *machine, *Node, cay.InstanceID) {}, 0, 0},
		{"claimed and awake", 1 << 30, func(t *testing.T, m *machine, n *Node, _ cay.InstanceID) {
			// The pool would fill up again, or not, before the server is killed.
			m.on("restore", func() error { return errors.New("too late") })
			if n.claim(t.Context(), shape) == nil {
				t.Error("the pool is empty")
			}
		}, 1, 0},
		{"in mid hand-over", 1 << 30, func(t *testing.T, _ *machine, n *Node, id cay.InstanceID) {
			if err := os.Remove(filepath.Join(n.journal(id), pooledFile)); err != nil {
				t.Error(err)
			}
		}, 0, 0},
		{"after the hand-over", 1 << 30, func(t *testing.T, _ *machine, n *Node, _ cay.InstanceID) {
			warm(t, n, welcome())
			settled()
		}, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			synctest.Test(t, func(t *testing.T) {
				cfg := m.config()
				cfg.PoolMemory = 1 << 30
				n, err := Open(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				fill(t, n, shape, 1)
				for _, id := range listed(t, m) {
					tc.prepare(t, m, n, id)
				}
				n.Close()
				m.crash()
				m.on("restore", nil)
				cfg.PoolMemory = tc.memory
				if n, err = Open(context.Background(), cfg); err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				if p := n.Pool(); p.Ready["template"] != tc.pool || len(n.Instances()) != tc.running {
					t.Errorf("%d in the pool, %d running", p.Ready["template"], len(n.Instances()))
				}
				if tc.pool+tc.running == 0 {
					nothingLeft(t, m, n)
				}
				noDeath(t, n)
				if tc.pool == 1 { // of use still
					warm(t, n, welcome())
				}
			})
		})
	}
}
