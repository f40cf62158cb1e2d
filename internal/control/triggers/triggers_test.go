package triggers

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// openSeal seals nothing: the tests of internal/server look at what is sealed.
type openSeal struct{}

func (openSeal) Seal(plain []byte, _ string) string  { return string(plain) }
func (openSeal) Open(text, _ string) ([]byte, error) { return []byte(text), nil }

// boxes are sandboxes whose agent says how commands end.
type boxes struct {
	mu      sync.Mutex
	refuse  error         // what creates fail with
	hold    error         // what keeps commands from their start
	exits   []int32       // of commands to come; 0 when there is none
	takes   time.Duration // how long a command takes
	creates []time.Time   // when sandboxes were asked for
	starts  []time.Time   // when commands began
	paused  map[cay.SandboxID]bool
	killed  []cay.SandboxID
	awake   bool                     // those that runs connect to
	keys    map[string]cay.SandboxID // idempotency
	ended   error                    // what a create of a key that made one fails with
}

func (b *boxes) Create(_ context.Context, _ cay.Caller, spec cay.CreateSpec) (cay.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.creates = append(b.creates, time.Now())
	if b.refuse != nil {
		return cay.Sandbox{}, b.refuse
	}
	id := b.keys[spec.IdempotencyKey]
	if id == "" {
		id = cay.NewSandboxID()
		b.keys[spec.IdempotencyKey] = id
	} else if b.ended != nil {
		return cay.Sandbox{}, b.ended
	}
	return cay.Sandbox{ID: id, State: cay.Running}, nil
}

func (b *boxes) Connect(_ context.Context, _ cay.Caller, id cay.SandboxID, _ time.Duration, _ bool) (cay.Sandbox, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cay.Sandbox{ID: id, State: cay.Running}, !b.awake, nil
}

func (b *boxes) Get(_ context.Context, _ cay.Caller, id cay.SandboxID) (cay.Sandbox, error) {
	return cay.Sandbox{ID: id, State: cay.Running}, nil
}

func (b *boxes) Pause(_ context.Context, _ cay.Caller, id cay.SandboxID, _ cay.SnapshotKind, _ bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused[id] = true
	return nil
}

func (b *boxes) Kill(_ context.Context, _ cay.Caller, id cay.SandboxID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killed = append(b.killed, id)
	return nil
}

func (b *boxes) TokensOf(cay.Sandbox) (access, traffic string) { return "", "" }

// agent answers for the sandboxes.
type agent struct {
	processconnect.UnimplementedProcessHandler
	boxes *boxes
}

func (a agent) Start(ctx context.Context, r *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	b := a.boxes
	b.mu.Lock()
	b.starts = append(b.starts, time.Now())
	code := int32(0)
	if len(b.exits) > 0 && r.Msg.GetProcess().GetCmd() == "/bin/bash" {
		code, b.exits = b.exits[0], b.exits[1:]
	}
	takes := b.takes
	b.mu.Unlock()
	if err := out.Send(&process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 7}}}}); err != nil {
		return err
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	return out.Send(&process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{Exited: true, ExitCode: code, Status: "exit status"}}}})
}

// pipes listens for connections within this process.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// world has triggers that work, over records that are real.
func world(t *testing.T, use func(t *testing.T, x *Triggers, b *boxes, who cay.Caller)) {
	worldOf(t, func(*Config) {}, use)
}

// worldOf is world with other settings.
func worldOf(t *testing.T, set func(*Config), use func(t *testing.T, x *Triggers, b *boxes, who cay.Caller)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		records := storetest.OpenSealed(t, filepath.Join(t.TempDir(), "cay.db"), openSeal{})
		team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: ledger.Now()}
		if err := records.AddTeam(ctx, team); err != nil {
			t.Fatal(err)
		}
		kind := cay.Template{ID: cay.NewTemplateID(), Team: team.ID, Names: []string{"base"}, CreatedAt: ledger.Now(), UpdatedAt: ledger.Now()}
		if err := records.AddTemplate(ctx, kind); err != nil {
			t.Fatal(err)
		}
		b := &boxes{paused: map[cay.SandboxID]bool{}, keys: map[string]cay.SandboxID{}}
		lines := pipes{make(chan net.Conn), make(chan struct{})}
		mux := http.NewServeMux()
		mux.Handle(processconnect.NewProcessHandler(agent{boxes: b}))
		mux.HandleFunc("POST /files", func(http.ResponseWriter, *http.Request) {})
		web := &http.Server{Handler: mux}
		var work sync.WaitGroup
		work.Go(func() { _ = web.Serve(lines) })
		cfg := Config{
			Ledger: ledger.New(ledger.Config{Store: records}), Store: records, Sealer: openSeal{}, Sandboxes: b,
			Dial: func(context.Context, cay.SandboxID, int) (net.Conn, error) {
				ours, theirs := net.Pipe()
				lines.conns <- theirs
				return ours, nil
			},
			MayStart: func(context.Context, cay.SandboxID, cay.Start, ...cay.Origins) error {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.hold
			},
		}
		set(&cfg)
		x := New(cfg)
		work.Go(func() { x.Work(ctx) })
		use(t, x, b, cay.ForTeam(team.ID))
		stop()
		close(lines.done)
		web.Close()
		work.Wait()
		records.Close()
	})
}

func of[T any](v T) *T { return &v }

func runsOf(t *testing.T, x *Triggers, who cay.Caller) []cay.Run {
	t.Helper()
	list, err := x.Runs(t.Context(), who, RunQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestSchedules(t *testing.T) {
	world(t, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
		begun := time.Now() // midnight of 2000-01-01, UTC
		made, _, err := x.Create(t.Context(), who, cay.ScheduleTrigger, Change{
			Name: of("hourly"), Template: of("base"), Command: of("true"), Cron: of("30 * * * *"), Zone: of("Asia/Kolkata"), // half an hour beside the others
		})
		if err != nil || !made.Next.Equal(begun.Add(time.Hour)) {
			t.Fatalf("%v, %v", made.Next, err)
		}
		time.Sleep(5*time.Hour + time.Minute)
		synctest.Wait()
		list := runsOf(t, x, who)
		if len(list) != 5 {
			t.Fatalf("%d runs in five hours", len(list))
		}
		for i, run := range list {
			if at := begun.Add(time.Duration(5-i) * time.Hour); run.State != cay.RunSucceeded || run.QueuedAt.Sub(at).Abs() > time.Second || run.Delivery != "at "+ledger.Stamp(at) {
				t.Errorf("run %d: %+v", i, run)
			}
		}
		if _, err := x.Update(t.Context(), who, "hourly", Change{Enabled: of(false)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Hour)
		if n := len(runsOf(t, x, who)); n != 5 {
			t.Errorf("%d runs, of one that is turned off since", n)
		}
	})
}

// A schedule whose runs take longer than its interval has one wait, and says
// which it skipped.
func TestSchedulesThatOverlap(t *testing.T) {
	world(t, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
		b.takes = 150 * time.Second
		if _, _, err := x.Create(t.Context(), who, cay.ScheduleTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Cron: of("* * * * *")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Minute + 10*time.Second)
		synctest.Wait()
		count := map[cay.RunState]int{}
		for _, run := range runsOf(t, x, who) {
			count[run.State]++
		}
		if count[cay.RunSkipped] < 3 || count[cay.RunSucceeded] != 3 || count[cay.RunRunning] != 1 || count[cay.RunWaiting] != 1 {
			t.Errorf("after ten minutes: %v", count)
		}
		if len(b.starts) != 4 {
			t.Errorf("%d commands began", len(b.starts))
		}
	})
}

func TestRetries(t *testing.T) {
	world(t, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
		b.exits = []int32{1, 2, 0}
		if _, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Proof: of(cay.BearerProof), Retries: of(5)}); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		run, err := x.Start(t.Context(), who, "a", Body{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		run, err = x.Run(t.Context(), who, run.ID)
		if err != nil || run.State != cay.RunSucceeded || run.Attempt != 3 || run.Sealed != "" {
			t.Errorf("%+v, %v", run, err)
		}
		var waits []time.Duration
		for _, at := range b.starts {
			waits = append(waits, at.Sub(begun).Round(time.Second))
		}
		if len(waits) != 3 || waits[1] != 10*time.Second || waits[2] != 30*time.Second {
			t.Errorf("commands began after %v", waits)
		}
		if len(b.keys) != 3 {
			t.Errorf("%d sandboxes were made for three attempts", len(b.keys))
		}
	})
}

// A command that waits for a decision, or is refused, does not start, and its run says so.
func TestCommandsThatAreAskedAbout(t *testing.T) {
	for _, code := range []string{cay.CodeCommandWaits, cay.CodeCommandDenied} {
		world(t, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
			b.hold = cay.Errorf(cay.Denied, "a person is asked about it").WithCode(code)
			if _, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Proof: of(cay.BearerProof)}); err != nil {
				t.Fatal(err)
			}
			run, err := x.Start(t.Context(), who, "a", Body{})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			run, err = x.Run(t.Context(), who, run.ID)
			if err != nil || run.State != cay.RunFailed || !strings.Contains(run.Error, b.hold.Error()) || len(b.starts) > 0 {
				t.Errorf("%s: %+v, %v; %d commands began", code, run, err, len(b.starts))
			}
		})
	}
}

// A sandbox that is lost with its machine before the command begins costs no run: the
// attempt gets another one. One that a client ended does.
func TestLostBeforeItBegins(t *testing.T) {
	for _, try := range []struct {
		name  string
		ended error
		cause cay.Cause
		want  cay.RunState
		boxes int
	}{
		{"lost", cay.Errorf(cay.Conflict, "it has ended").WithCode(cay.CodeKeyEnded), cay.CauseHostLost, cay.RunSucceeded, 2},
		{"killed", cay.Errorf(cay.Conflict, "it has ended").WithCode(cay.CodeKeyEnded), cay.CauseAsked, cay.RunFailed, 1},
		{"unknown until it is gone", cay.Errorf(cay.Conflict, "its end could not be recorded").WithCode(cay.CodeKeyUnknown), "", cay.RunSucceeded, 1},
	} {
		t.Run(try.name, func(t *testing.T) {
			var records store.Store
			worldOf(t, func(cfg *Config) { records = cfg.Store }, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
				b.hold = cay.Errorf(cay.Unavailable, "its node does not answer")
				if _, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Proof: of(cay.BearerProof)}); err != nil {
					t.Fatal(err)
				}
				run, err := x.Start(t.Context(), who, "a", Body{})
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				b.mu.Lock()
				for key, id := range b.keys {
					made := cay.Sandbox{ID: id, Team: who.Team, State: cay.Running, StartedAt: ledger.Now(), Once: cay.Once{Key: key}}
					if err := records.AddSandbox(t.Context(), made); err != nil {
						t.Error(err)
					}
					made.State, made.Cause, made.EndedAt = cay.Killed, try.cause, ledger.Now()
					if err := records.UpdateSandbox(t.Context(), made); err != nil {
						t.Error(err)
					}
				}
				b.hold, b.ended = nil, try.ended
				b.mu.Unlock()
				if try.cause == "" { // its node is gone, and the create is made anew
					time.Sleep(time.Minute)
					b.mu.Lock()
					b.ended = nil
					b.mu.Unlock()
				}
				time.Sleep(time.Hour / 2)
				synctest.Wait()
				run, err = x.Run(t.Context(), who, run.ID)
				if err != nil || run.State != try.want || run.Attempt != 1 || len(b.keys) != try.boxes {
					t.Errorf("%+v, %v, in %d sandboxes", run, err, len(b.keys))
				}
			})
		})
	}
}

// standing records that a command begins, and stands still then.
type standing struct {
	store.Store
	begins func()
}

func (s standing) PutRun(ctx context.Context, run cay.Run, from cay.RunState, attempt int) error {
	err := s.Store.PutRun(ctx, run, from, attempt)
	if err == nil && run.State == cay.RunRunning && !run.BegunAt.IsZero() {
		s.begins()
	}
	return err
}

// A server that leads stands still after it has recorded that a command begins, until
// another one leads and has followed the attempt: it begins nothing any more. Where it goes
// on to lead, the command begins once.
func TestALeaderStandsStill(t *testing.T) {
	for _, lost := range []bool{true, false} {
		var leads atomic.Bool
		leads.Store(true)
		var second Config
		var other sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		begins := sync.OnceFunc(func() {
			leads.Store(false)
			if lost {
				other.Go(func() { New(second).Work(ctx) })
			}
			time.Sleep(90 * time.Second)
		})
		worldOf(t, func(cfg *Config) {
			second = *cfg
			cfg.Store, cfg.Leads = standing{cfg.Store, begins}, leads.Load
		}, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
			if _, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Proof: of(cay.BearerProof), Retries: of(1)}); err != nil {
				t.Fatal(err)
			}
			run, err := x.Start(t.Context(), who, "a", Body{})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Second) // it knows then that it leads, or its context ends
			leads.Store(!lost)
			time.Sleep(time.Minute)
			synctest.Wait()
			run, err = x.Run(t.Context(), who, run.ID)
			want := 1
			if lost {
				want = 2
			}
			if err != nil || run.State != cay.RunSucceeded || run.Attempt != want || len(b.starts) != 1 {
				t.Errorf("with the lead lost %v: %+v, %v; commands began at %v", lost, run, err, b.starts)
			}
			stop()
			other.Wait()
		})
	}
}

// away records nothing for a while once a command has ended.
type away struct {
	store.Store
	over func() error
}

func (a away) PutRun(ctx context.Context, run cay.Run, from cay.RunState, attempt int) error {
	if run.State.Over() {
		if err := a.over(); err != nil {
			return err
		}
	}
	return a.Store.PutRun(ctx, run, from, attempt)
}

// The sandbox of a run lives until the run's end is recorded: a server that dies between
// leaves a run that the next one can follow.
func TestASandboxOutlivesItsRun(t *testing.T) {
	var sandboxes *boxes
	fails := 3
	worldOf(t, func(cfg *Config) {
		sandboxes = cfg.Sandboxes.(*boxes)
		cfg.Store = away{cfg.Store, func() error {
			sandboxes.mu.Lock()
			defer sandboxes.mu.Unlock()
			if len(sandboxes.killed) > 0 {
				t.Error("the sandbox is gone before the run's end is recorded")
			}
			if fails--; fails >= 0 {
				return cay.Errorf(cay.Internal, "the records are away")
			}
			return nil
		}}
	}, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
		if _, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Proof: of(cay.BearerProof)}); err != nil {
			t.Fatal(err)
		}
		run, err := x.Start(t.Context(), who, "a", Body{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if run, err = x.Run(t.Context(), who, run.ID); err != nil || run.State != cay.RunSucceeded || len(b.starts) != 1 || len(b.killed) != 1 {
			t.Errorf("%+v, %v; %d commands began, %d sandboxes ended", run, err, len(b.starts), len(b.killed))
		}
	})
}

// A server that follows the run of an earlier one pauses the sandbox that the run woke, and
// no other: its users work in it.
func TestAFollowedRunPausesWhatItWoke(t *testing.T) {
	for _, woke := range []bool{true, false} {
		var second Config
		worldOf(t, func(cfg *Config) { second = *cfg }, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
			id := cay.NewSandboxID()
			made, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Sandbox: of(id), After: of(cay.PauseAfterRun), Command: of("true"), Proof: of(cay.BearerProof)})
			if err != nil {
				t.Fatal(err)
			}
			run := cay.Run{ID: cay.NewRunID(), Team: who.Team, Trigger: made.ID, Delivery: "d", State: cay.RunWaiting, QueuedAt: ledger.Now(), DueAt: ledger.Now().Add(time.Hour)}
			if _, _, err := second.Store.QueueRun(t.Context(), run, 10, 1<<20); err != nil {
				t.Fatal(err)
			}
			run.State, run.Attempt, run.BegunAt, run.Sandbox, run.Woke = cay.RunRunning, 1, ledger.Now(), id, woke
			if err := second.Store.PutRun(t.Context(), run, cay.RunWaiting, 0); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var other sync.WaitGroup
			other.Go(func() { New(second).Work(ctx) })
			time.Sleep(time.Minute)
			synctest.Wait()
			run, err = x.Run(t.Context(), who, run.ID)
			if err != nil || run.State != cay.RunFailed || run.Error == string(cay.Internal) || b.paused[id] != woke {
				t.Errorf("woken %v: paused %v; %+v, %v", woke, b.paused[id], run, err)
			}
			stop()
			other.Wait()
		})
	}
}

// A wait that is cut, by a pause or the server's stop, is no decision: the same
// attempt is made later.
func TestAWaitThatIsCut(t *testing.T) {
	for what, cut := range map[string]error{
		"a pause":           cay.Errorf(cay.Unavailable, "the sandbox was paused"),
		"the server's stop": cay.Errorf(cay.Denied, "a person is asked about it").WithCode(cay.CodeCommandWaits),
	} {
		world(t, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
			b.hold = cut
			if cay.CodeOf(cut) == cay.CodeCommandWaits {
				x.ledger.EndStreams()
			}
			if _, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Proof: of(cay.BearerProof)}); err != nil {
				t.Fatal(err)
			}
			run, err := x.Start(t.Context(), who, "a", Body{})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if run, err = x.Run(t.Context(), who, run.ID); err != nil || run.State != cay.RunWaiting || len(b.starts) > 0 {
				t.Errorf("%s: %+v, %v; %d commands began", what, run, err, len(b.starts))
			}
			b.mu.Lock()
			b.hold = nil
			b.mu.Unlock()
			time.Sleep(time.Minute)
			synctest.Wait()
			run, err = x.Run(t.Context(), who, run.ID)
			if err != nil || run.State != cay.RunSucceeded || run.Attempt != 1 || len(b.keys) != 1 {
				t.Errorf("%s: %+v, %v, in %d sandboxes", what, run, err, len(b.keys))
			}
		})
	}
}

// A run waits for a place for an hour; a refusal that waiting cures not ends it.
func TestRunsWithoutAPlace(t *testing.T) {
	for _, try := range []struct {
		name   string
		refuse error
		freed  time.Duration // when there is a place
		want   cay.RunState
		tries  int
	}{
		{"a place comes", cay.Errorf(cay.Exhausted, "the team has its sandboxes"), 5 * time.Minute, cay.RunSucceeded, 0},
		{"none comes", cay.Errorf(cay.Unavailable, "the machine is full"), 0, cay.RunFailed, 0},
		{"no template", cay.Errorf(cay.NotFound, "template not found"), 0, cay.RunFailed, 1},
	} {
		t.Run(try.name, func(t *testing.T) {
			world(t, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
				b.refuse = try.refuse
				if _, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Proof: of(cay.BearerProof)}); err != nil {
					t.Fatal(err)
				}
				run, err := x.Start(t.Context(), who, "a", Body{})
				if err != nil {
					t.Fatal(err)
				}
				if try.freed > 0 {
					time.Sleep(try.freed)
					b.mu.Lock()
					b.refuse = nil
					b.mu.Unlock()
				}
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				run, err = x.Run(t.Context(), who, run.ID)
				if err != nil || run.State != try.want {
					t.Errorf("%+v, %v", run, err)
				}
				if n := len(b.creates); try.tries > 0 && n != try.tries || n > 40 {
					t.Errorf("%d tries", n)
				}
				if run.State == cay.RunFailed && !strings.Contains(run.Error, try.refuse.Error()) {
					t.Errorf("it says %q", run.Error)
				}
			})
		})
	}
}

// Many runs of one team leave places for others, and each runs once.
func TestManyRunsAtOnce(t *testing.T) {
	world(t, func(t *testing.T, x *Triggers, b *boxes, who cay.Caller) {
		b.takes = 10 * time.Second
		if _, _, err := x.Create(t.Context(), who, cay.HookTrigger, Change{Name: of("a"), Template: of("base"), Command: of("true"), Proof: of(cay.BearerProof), MaxRunning: of(64), MaxWaiting: of(200)}); err != nil {
			t.Fatal(err)
		}
		for range 40 {
			if _, err := x.Start(t.Context(), who, "a", Body{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		x.mu.Lock()
		if n := x.teams[who.Team]; n != teamAtOnce {
			t.Errorf("%d runs of a team at once", n)
		}
		x.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, run := range runsOf(t, x, who) {
			if run.State != cay.RunSucceeded || run.Attempt != 1 {
				t.Errorf("%+v", run)
			}
		}
		if len(b.starts) != 40 {
			t.Errorf("%d commands began", len(b.starts))
		}
	})
}

func TestLike(t *testing.T) {
	for _, try := range []struct {
		text, pattern string
		want          bool
	}{
		{"main", "main", true}, {"main", "mai", false}, {"", "", true}, {"", "*", true}, {"refs/heads/release-1.2", "refs/heads/release-*", true},
		{"refs/heads/release", "refs/heads/release-*", false}, {"abcabc", "*abc", true}, {"ab", "ab*b", false}, {"abb", "ab*b", true},
		{"a.b.c", "a*b*c", true}, {"a.c.b", "a*b*c", false}, {"x", "**", true}, {"aXbXc", "a*X*X*c", true}, {"aXc", "a*X*X*c", false},
	} {
		if got := like(try.text, try.pattern); got != try.want {
			t.Errorf("like(%q, %q) = %v", try.text, try.pattern, got)
		}
	}
}

// FuzzTell reads bodies of strangers: nothing of them may end the server, or take
// long.
func FuzzTell(f *testing.F) {
	for _, seed := range []string{
		`{"type":"a","event":{"type":"b"},"labels":[{"name":"x"}]}`, "payload=%7B%22type%22%3A1%7D", "a=b&a=c&%zz", `[[[[1,2],[3]]]]`, `"text"`, "\x00\xff", `{"*":{"*":1}}`, "1e999999999",
	} {
		f.Add("application/json", seed, "labels.*.name", "x*y")
		f.Add("application/x-www-form-urlencoded", seed, "*.*.*.*", "*")
	}
	f.Fuzz(func(t *testing.T, kind, body, path, pattern string) {
		h := http.Header{"Content-Type": {kind}, "X-Github-Event": {body}, "Webhook-Id": {body}}
		for _, by := range cay.HookProofs() {
			if prove(by, []string{"a secret"}, h, []byte(body), time.Now()) == nil {
				t.Errorf("%s took a request without a proof", by)
			}
			r := tell(by, h, []byte(body))
			filter := cay.HookFilter{Path: path, Values: []string{pattern}}
			if x := (cay.Trigger{Proof: by, Filters: []cay.HookFilter{filter}}); ignored(x, r) == "" && r.document == nil && r.event != ping {
				// A body that is no document has the value null at no path.
				t.Errorf("%q passes a filter of %q", body, path)
			}
			for _, name := range []string{short(r.event), short(r.delivery)} {
				if len(name) > 2*nameMost || strings.ContainsRune(name, 0) {
					t.Errorf("a name of %d bytes", len(name))
				}
			}
		}
	})
}

func TestShortNamesStayApart(t *testing.T) {
	long := strings.Repeat("a", 5000)
	if short(long+"x") == short(long+"y") {
		t.Error("two long names are one")
	}
	if got := short("a\x00b\nc"); got != "a b c" {
		t.Errorf("got %q", got)
	}
}

// A time that a change of the clock skips does not come; one that comes twice is
// two runs.
func TestChangesOfTheClock(t *testing.T) {
	for _, try := range []struct {
		cron, zone, after string
		want              []string
	}{
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"}},
		{"30 2 * * *", "", "2026-10-24T12:00:00Z", []string{"2026-10-25T02:30:00Z", "2026-10-26T02:30:00Z"}},
		{"0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"0 9 * * mon-fri", "America/New_York", "2026-11-27T15:00:00Z", []string{"2026-11-30T14:00:00Z", "2026-12-01T14:00:00Z"}},
	} {
		at, err := time.Parse(time.RFC3339, try.after)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range try.want {
			if at, err = nextAfter(cay.Trigger{Cron: try.cron, Zone: try.zone}, at); err != nil || at.Format(time.RFC3339) != want {
				t.Errorf("%s in %s: %s, %v; want %s", try.cron, try.zone, at.Format(time.RFC3339), err, want)
			}
		}
	}
}
