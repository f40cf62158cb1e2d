// Package triggers has commands run in sandboxes when a request comes to an
// address, or by the clock. The records of runs are the queue: a request is
// answered when its run is recorded, a run is started by what the records say, and
// a server that starts follows the commands that went on without it.
package triggers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

const (
	// KeepRuns is how long runs are kept that are over, and keepMost how many of a
	// trigger.
	KeepRuns = 7 * 24 * time.Hour
	keepMost = 1000

	// bodiesMost is how many bytes the bodies of a team's runs may have that wait
	// or run.
	bodiesMost = 64 << 20

	defaultTimeout = 10 * time.Minute
	defaultWaiting = 100
	defaultRunning = 4 // of sandboxes that are made for each run

	secretLeast = 8
	secretMost  = 512
	overlap     = 24 * time.Hour // in which the secret before counts too
	envMost     = 32 << 10       // bytes
)

// Sealer encrypts values for a place in the records.
type Sealer interface {
	Seal(plain []byte, place string) string
	Open(text, place string) ([]byte, error)
}

// Sandboxes are the use cases of sandboxes that runs need.
type Sandboxes interface {
	Create(ctx context.Context, who cay.Caller, spec cay.CreateSpec) (cay.Sandbox, error)
	Connect(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration, memory bool) (out cay.Sandbox, resumed bool, err error)
	Get(ctx context.Context, who cay.Caller, id cay.SandboxID) (cay.Sandbox, error)
	Pause(ctx context.Context, who cay.Caller, id cay.SandboxID, kind cay.SnapshotKind, strict bool) error
	Kill(ctx context.Context, who cay.Caller, id cay.SandboxID) error
	TokensOf(s cay.Sandbox) (access, traffic string)
}

// Dial connects to a port of a sandbox that runs.
type Dial func(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error)

// Config is what Triggers need. Sealer and Dial may be nil for a server that has
// no triggers, Log for none.
type Config struct {
	Ledger    *ledger.Ledger
	Store     store.Store
	Sealer    Sealer
	Sandboxes Sandboxes
	Dial      Dial
	// MayStart returns why a command may not start in a sandbox. It may wait, as long
	// as the sandbox has its present instance.
	MayStart func(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error
	// Nodes lead to the sandboxes of other nodes; nil for a machine alone.
	Nodes Nodes
	// Leads reports whether this server, and none beside it, carries runs out; nil for always.
	Leads func() bool
	Log   *slog.Logger
}

// reach is how runs come to their sandboxes.
type reach interface {
	Sandboxes
	Dial(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error)
	MayStart(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error
}

// Triggers are the use cases of triggers, and what runs them.
type Triggers struct {
	ledger    *ledger.Ledger
	store     store.Store
	sealer    Sealer
	here      here
	sandboxes reach
	leads     func() bool
	log       *slog.Logger

	poke chan struct{} // something may be due

	mu      sync.Mutex
	running map[cay.RunID]context.CancelCauseFunc
	teams   map[cay.TeamID]int        // how many of each run
	in      map[cay.SandboxID]*visits // the sandboxes that runs are in
}

// New returns triggers that start nothing before Run.
func New(cfg Config) *Triggers {
	t := &Triggers{
		ledger: cfg.Ledger, store: cfg.Store, sealer: cfg.Sealer, here: here{cfg.Sandboxes, cfg.Dial, cfg.MayStart, cfg.Ledger}, leads: cfg.Leads, log: cfg.Log,
		poke:    make(chan struct{}, 1),
		running: make(map[cay.RunID]context.CancelCauseFunc), teams: make(map[cay.TeamID]int), in: make(map[cay.SandboxID]*visits),
	}
	t.sandboxes = t.here
	if cfg.Nodes != nil {
		t.sandboxes = everywhere{t.here, cfg.Nodes, cfg.Store}
	}
	if t.leads == nil {
		t.leads = func() bool { return true }
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	return t
}

// sealed is what the record of a trigger has encrypted.
type sealed struct {
	Secret string            `json:"secret,omitempty"`
	Before string            `json:"before,omitempty"` // the secret before
	Until  time.Time         `json:"until,omitzero"`   // when that ends
	Env    map[string]string `json:"env,omitempty"`
}

func placeOf(x cay.Trigger) string { return "trigger " + string(x.ID) }

func (t *Triggers) seal(x *cay.Trigger, s sealed) error {
	plain, err := json.Marshal(s)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record trigger %s", x.ID)
	}
	x.Sealed = t.sealer.Seal(plain, placeOf(*x))
	return nil
}

func (t *Triggers) open(x cay.Trigger) (s sealed, err error) {
	plain, err := t.sealer.Open(x.Sealed, placeOf(x))
	if err == nil {
		err = json.Unmarshal(plain, &s)
	}
	return s, err
}

// newSecret returns a secret of 32 random characters.
func newSecret() string { return rand.Text() + rand.Text()[:6] }

// Change is what a client asks of a trigger. A nil field stays as it is, or is as
// usual.
type Change struct {
	Name                            *string
	Enabled                         *bool
	Template, Command, User, Dir    *string
	Sandbox                         *cay.SandboxID
	Metadata, Env                   map[string]string
	Timeout                         *time.Duration
	After                           *cay.AfterRun
	Proof                           *cay.HookProof
	Secret                          *string
	Events                          []string
	Filters                         []cay.HookFilter
	Cron, Zone                      *string
	MaxRunning, MaxWaiting, Retries *int
}

// apply puts a change into a trigger and names what it changes.
func (c Change) apply(x *cay.Trigger) (changed []string) {
	note := func(name string, is bool) {
		if is {
			changed = append(changed, name)
		}
	}
	set(note, "name", &x.Name, c.Name)
	set(note, "enabled", &x.Enabled, c.Enabled)
	set(note, "template", &x.Action.Template, c.Template)
	set(note, "sandbox", &x.Action.Sandbox, c.Sandbox)
	set(note, "command", &x.Action.Command, c.Command)
	set(note, "user", &x.Action.User, c.User)
	set(note, "dir", &x.Action.Dir, c.Dir)
	set(note, "timeout", &x.Action.Timeout, c.Timeout)
	set(note, "after", &x.Action.After, c.After)
	set(note, "proof", &x.Proof, c.Proof)
	set(note, "cron", &x.Cron, c.Cron)
	set(note, "zone", &x.Zone, c.Zone)
	set(note, "maxRunning", &x.MaxRunning, c.MaxRunning)
	set(note, "maxWaiting", &x.MaxWaiting, c.MaxWaiting)
	set(note, "retries", &x.Retries, c.Retries)
	if c.Metadata != nil {
		note("metadata", !maps.Equal(x.Action.Metadata, c.Metadata))
		x.Action.Metadata = c.Metadata
	}
	if c.Events != nil {
		note("events", !slices.Equal(x.Events, c.Events))
		x.Events = c.Events
	}
	if c.Filters != nil {
		same := func(a, b cay.HookFilter) bool { return a.Path == b.Path && slices.Equal(a.Values, b.Values) }
		note("filters", !slices.EqualFunc(x.Filters, c.Filters, same))
		x.Filters = c.Filters
	}
	note("secret", c.Secret != nil)
	note("env", c.Env != nil)
	return changed
}

// set replaces a field by a value that is asked for.
func set[T comparable](note func(string, bool), name string, field, value *T) {
	if value != nil {
		note(name, *field != *value)
		*field = *value
	}
}

// usual fills in what a new trigger does not say.
func usual(x *cay.Trigger, c Change) {
	if c.Timeout == nil {
		x.Action.Timeout = defaultTimeout
	}
	if c.After == nil {
		x.Action.After = cay.KillAfterRun
		if x.Action.Sandbox != "" {
			x.Action.After = cay.PauseAfterRun
		}
	}
	if c.MaxRunning == nil {
		x.MaxRunning = defaultRunning
		if x.Action.Sandbox != "" || x.Kind == cay.ScheduleTrigger {
			x.MaxRunning = 1
		}
	}
	if c.MaxWaiting == nil {
		x.MaxWaiting = defaultWaiting
		if x.Kind == cay.ScheduleTrigger {
			x.MaxWaiting = 1
		}
	}
}

// Create makes a trigger. A hook without a secret gets one, which Create returns,
// this once.
func (t *Triggers) Create(ctx context.Context, who cay.Caller, kind cay.TriggerKind, c Change) (cay.Trigger, string, error) {
	if err := t.mayWrite(ctx, who); err != nil {
		return cay.Trigger{}, "", err
	}
	at := ledger.Now()
	x := cay.Trigger{
		ID: cay.NewTriggerID(), Team: who.Team, Kind: kind, Enabled: true, Makers: parties(nil, who),
		CreatedAt: at, UpdatedAt: at, Version: 1,
	}
	c.apply(&x)
	usual(&x, c)
	if err := t.check(ctx, who, x, c); err != nil {
		return x, "", err
	}
	made := ""
	if kind == cay.HookTrigger && c.Secret == nil {
		made = newSecret()
		c.Secret = &made
	}
	var s sealed
	if err := c.seal(&s, at); err != nil {
		return x, "", err
	}
	if err := t.seal(&x, s); err != nil {
		return x, "", err
	}
	if err := schedule(&x, at); err != nil {
		return x, "", err
	}
	err := t.store.Tx(ctx, func(tx store.Store) error {
		if err := tx.AddTrigger(ctx, x, cay.MaxTriggers); err != nil {
			return err
		}
		return tx.AddEvents(ctx, ledger.NewEvent(who, cay.Sandbox{Team: x.Team}, cay.TriggerAdded, cay.ReasonAsked,
			"trigger", string(x.ID), "name", x.Name, "kind", string(x.Kind)))
	})
	switch cay.KindOf(err) {
	case cay.Exhausted:
		err = cay.Wrap(cay.Exhausted, err, "the team has %d triggers, which is the most", cay.MaxTriggers).WithCode(cay.CodeTriggerLimit).WithHint("remove one")
	case cay.Conflict:
		err = nameTaken(err, x.Name)
	}
	if err != nil {
		return x, "", err
	}
	t.ledger.Wake(x.Team)
	t.look()
	return x, made, nil
}

// makersMost is how many parties a trigger has: of more the last ones.
const makersMost = 100

// parties are some parties and a caller, who is the last of them.
func parties(some []cay.Origins, who cay.Caller) []cay.Origins {
	by := who.Origins()
	if by == (cay.Origins{}) {
		return some
	}
	out := append(slices.DeleteFunc(slices.Clone(some), func(o cay.Origins) bool { return o == by }), by)
	return out[max(0, len(out)-makersMost):]
}

func nameTaken(err error, name string) error {
	return cay.Wrap(cay.Conflict, err, "name: the team has a trigger %q already", name).WithCode(cay.CodeNameTaken)
}

// mayWrite refuses callers that may not make and change triggers: those that could
// not do themselves what runs do. A run is the team's: it has none of the bounds
// and the budgets of a key.
func (t *Triggers) mayWrite(ctx context.Context, who cay.Caller) error {
	if err := who.May(cay.WriteSandboxes | cay.ExecSandboxes); err != nil {
		return err
	}
	if !t.works() {
		return cay.Errorf(cay.Unsupported, "this server has no triggers")
	}
	bounded := who.Bounds != nil
	if who.Key != "" && !bounded {
		budgets, err := t.store.Budgets(ctx, who.Team)
		if err != nil {
			return err
		}
		bounded = slices.ContainsFunc(budgets, func(b cay.Budget) bool { return b.Key == who.Key })
	}
	if bounded {
		return cay.Errorf(cay.Denied, "this key is bounded, and the runs of a trigger are not").WithCode(cay.CodeBounds).
			WithHint("use a key without bounds and without a budget of its own")
	}
	return nil
}

// check says what is wrong with a trigger as a change leaves it.
func (t *Triggers) check(ctx context.Context, who cay.Caller, x cay.Trigger, c Change) error {
	if err := x.Check(); err != nil {
		return err
	}
	if x.Kind == cay.ScheduleTrigger && c.Secret != nil {
		return cay.Errorf(cay.Invalid, "secret: is for hooks")
	}
	if (c.Template != nil || c.Sandbox != nil) && x.Action.Sandbox != "" {
		_, err := t.sandboxes.Get(ctx, who, x.Action.Sandbox)
		return err
	}
	if c.Template != nil {
		_, err := t.ledger.FindTemplate(ctx, who.Team, x.Action.Template)
		return err
	}
	return nil
}

// works reports whether this server has triggers.
func (t *Triggers) works() bool { return t.sealer != nil && t.here.dial != nil }

// seal puts what a change has of secrets into those of a trigger.
func (c Change) seal(s *sealed, now time.Time) error {
	if c.Secret != nil {
		if n := len(*c.Secret); n < secretLeast || n > secretMost {
			return cay.Errorf(cay.Invalid, "secret: must have %d to %d bytes", secretLeast, secretMost)
		}
		if s.Secret == *c.Secret {
			return cay.Errorf(cay.Invalid, "secret: is the present one")
		}
		if s.Secret != "" {
			s.Before, s.Until = s.Secret, now.Add(overlap)
		}
		s.Secret = *c.Secret
	}
	if c.Env != nil {
		if err := checkEnv(c.Env); err != nil {
			return err
		}
		s.Env = c.Env
	}
	return nil
}

func checkEnv(env map[string]string) error {
	sum := 0
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return cay.Errorf(cay.Invalid, "env: %.80q is no variable: its name must not be empty, and have no = and no NUL", name)
		}
		if strings.HasPrefix(name, ownPrefix) {
			return cay.Errorf(cay.Invalid, "env: %.80q: names that begin with %s are those of the run", name, ownPrefix)
		}
		sum += len(name) + len(value)
	}
	if sum > envMost {
		return cay.Errorf(cay.Invalid, "env: has %d bytes, and may have %d", sum, envMost)
	}
	return nil
}

// Triggers lists a team's triggers, oldest first.
func (t *Triggers) Triggers(ctx context.Context, who cay.Caller) ([]cay.Trigger, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	return t.store.Triggers(ctx, who.Team)
}

// Trigger finds a team's trigger, by id or name.
func (t *Triggers) Trigger(ctx context.Context, who cay.Caller, ref string) (cay.Trigger, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Trigger{}, err
	}
	return t.trigger(ctx, who.Team, ref)
}

func (t *Triggers) trigger(ctx context.Context, team cay.TeamID, ref string) (cay.Trigger, error) {
	x, err := t.store.Trigger(ctx, team, ref)
	if cay.KindOf(err) == cay.NotFound {
		err = cay.Wrap(cay.NotFound, err, "trigger %.80q not found", ref)
	}
	return x, err
}

// EnvOf names the variables that the command of a trigger gets of it, sorted.
func (t *Triggers) EnvOf(x cay.Trigger) ([]string, error) {
	s, err := t.open(x)
	return slices.Sorted(maps.Keys(s.Env)), err
}

// Update changes a trigger. Runs that wait are started as it says by then.
func (t *Triggers) Update(ctx context.Context, who cay.Caller, ref string, c Change) (cay.Trigger, error) {
	if err := t.mayWrite(ctx, who); err != nil {
		return cay.Trigger{}, err
	}
	x, err := t.trigger(ctx, who.Team, ref)
	if err != nil {
		return x, err
	}
	return t.change(ctx, who, x, c)
}

func (t *Triggers) change(ctx context.Context, who cay.Caller, x cay.Trigger, c Change) (cay.Trigger, error) {
	wasDue := x.Enabled
	changed := c.apply(&x)
	if err := t.check(ctx, who, x, c); err != nil {
		return x, err
	}
	if len(changed) == 0 {
		return x, nil
	}
	now := ledger.Now()
	s, err := t.open(x)
	if err == nil {
		err = c.seal(&s, now)
	}
	if err == nil {
		err = t.seal(&x, s)
	}
	if err == nil && (c.Cron != nil || c.Zone != nil || x.Enabled != wasDue) {
		err = schedule(&x, now)
	}
	if err != nil {
		return x, err
	}
	x.Version, x.UpdatedAt, x.Makers = x.Version+1, now, parties(x.Makers, who)
	err = t.store.Tx(ctx, func(tx store.Store) error {
		if err := tx.UpdateTrigger(ctx, x); err != nil {
			return err
		}
		return tx.AddEvents(ctx, ledger.NewEvent(who, cay.Sandbox{Team: x.Team}, cay.TriggerChanged, cay.ReasonAsked,
			"trigger", string(x.ID), "name", x.Name, "changed", strings.Join(changed, " ")))
	})
	if cay.KindOf(err) == cay.Conflict && slices.Contains(changed, "name") {
		if _, taken := t.store.Trigger(ctx, x.Team, x.Name); taken == nil {
			err = nameTaken(err, x.Name)
		}
	}
	if err != nil {
		return x, err
	}
	t.ledger.Wake(x.Team)
	t.look()
	return x, nil
}

// Rotate gives a hook another secret, which it makes and returns if it is told
// none. For a day, requests with the one before are accepted as well.
func (t *Triggers) Rotate(ctx context.Context, who cay.Caller, ref, secret string) (string, error) {
	if err := t.mayWrite(ctx, who); err != nil {
		return "", err
	}
	x, err := t.trigger(ctx, who.Team, ref)
	if err != nil {
		return "", err
	}
	made := ""
	if secret == "" {
		made = newSecret()
		secret = made
	}
	_, err = t.change(ctx, who, x, Change{Secret: &secret})
	return made, err
}

// Remove forgets a trigger with its runs. A command that runs goes on, and is not
// followed any more.
func (t *Triggers) Remove(ctx context.Context, who cay.Caller, ref string) error {
	if err := t.mayWrite(ctx, who); err != nil {
		return err
	}
	x, err := t.trigger(ctx, who.Team, ref)
	if err != nil {
		return err
	}
	err = t.store.Tx(ctx, func(tx store.Store) error {
		if err := tx.RemoveTrigger(ctx, x.Team, x.ID); err != nil {
			return err
		}
		return tx.AddEvents(ctx, ledger.NewEvent(who, cay.Sandbox{Team: x.Team}, cay.TriggerRemoved, cay.ReasonAsked, "trigger", string(x.ID), "name", x.Name))
	})
	if err == nil {
		t.ledger.Wake(x.Team)
	}
	return err
}

// RunQuery says which runs to list.
type RunQuery = store.RunQuery

// RunCursor is a place in a list of runs.
type RunCursor = store.RunCursor

// Runs lists runs of the last week, the newest first.
func (t *Triggers) Runs(ctx context.Context, who cay.Caller, q RunQuery) ([]cay.Run, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	q.Team = who.Team
	return t.store.Runs(ctx, q)
}

// Run finds a team's run.
func (t *Triggers) Run(ctx context.Context, who cay.Caller, id cay.RunID) (cay.Run, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Run{}, err
	}
	return t.run(ctx, who.Team, id)
}

func (t *Triggers) run(ctx context.Context, team cay.TeamID, id cay.RunID) (cay.Run, error) {
	r, err := t.store.Run(ctx, team, id)
	if cay.KindOf(err) == cay.NotFound {
		err = cay.Wrap(cay.NotFound, err, "run %.60q not found: runs are kept for 7 days", string(id))
	}
	return r, err
}

// Start has a trigger run now, with a body of the caller's.
func (t *Triggers) Start(ctx context.Context, who cay.Caller, ref string, body Body) (cay.Run, error) {
	if err := t.mayWrite(ctx, who); err != nil {
		return cay.Run{}, err
	}
	x, err := t.trigger(ctx, who.Team, ref)
	if err != nil {
		return cay.Run{}, err
	}
	if !x.Enabled {
		return cay.Run{}, cay.Errorf(cay.Conflict, "trigger %q is turned off", x.Name).WithCode(cay.CodeTriggerOff).WithHint("turn it on first")
	}
	run, _, err := t.queue(ctx, who, x, request{delivery: "by hand " + string(cay.NewRunID()), event: "manual", body: body, askers: parties(nil, who)})
	return run, err
}

// Cancel ends a run: one that waits is not started, the command of one that runs
// is killed.
func (t *Triggers) Cancel(ctx context.Context, who cay.Caller, id cay.RunID) error {
	if err := t.mayWrite(ctx, who); err != nil {
		return err
	}
	run, err := t.run(ctx, who.Team, id)
	if err != nil {
		return err
	}
	// A run whose end is recorded may still be leaving its sandbox.
	ended := run.State.Over()
	if run.State == cay.RunWaiting {
		was := run.Attempt
		over(&run, cay.RunCancelled, "")
		err = t.store.PutRun(ctx, run, cay.RunWaiting, was)
		if cay.KindOf(err) != cay.Conflict { // else it has just been started
			return err
		}
	}
	t.mu.Lock()
	cancel := t.running[id]
	t.mu.Unlock()
	if cancel == nil || ended {
		return cay.Errorf(cay.Conflict, "run %s is over", id)
	}
	cancel(errCancelled)
	return nil
}
