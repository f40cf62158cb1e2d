package triggers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/guest/command"
	"github.com/cay-run/cay/internal/ticks"
)

const (
	// ownPrefix begins the variables that a command gets of its run.
	ownPrefix = "CAY_"
	// margin is how much longer a sandbox lives than its command may take.
	margin = time.Minute
	// againMost is how many sandboxes of an attempt may be lost before its command begins.
	againMost = 10
	// callWithin bounds a call of the agent's that answers at once.
	callWithin = 30 * time.Second
	// lostMost is how often a command is looked for again when the connection to it
	// breaks.
	lostMost = 3
	lostWait = time.Second
)

// attempt is one try of a run.
type attempt struct {
	t       *Triggers
	trigger cay.Trigger
	run     cay.Run
	number  int  // of the attempt
	resumed bool // an earlier server began its command
	entered bool // it has a sandbox, which is to be left
	output  tail
}

// exitError is how a command ended that did not succeed.
type exitError struct {
	code int
	why  string // in a sentence; empty where the code says all
}

func (e *exitError) Error() string { return e.why }

// runner is the caller that runs act as: a part of this server that works for the
// team, with the name of the trigger in the audit log.
func runner(x cay.Trigger) cay.Caller {
	return cay.Caller{Team: x.Team, Name: "trigger " + x.Name, Scopes: cay.TeamScopes}
}

// tag is the name by which an attempt's command is found again.
func (a *attempt) tag() string {
	return "cay.run:" + string(a.run.ID) + "." + strconv.Itoa(a.number)
}

// make gets a sandbox and runs the command in it. The caller leaves the sandbox, once
// the end is recorded: the next server follows the command until then.
func (a *attempt) make(ctx context.Context) (err error) {
	if a.trigger, err = a.t.store.TriggerOf(ctx, a.run.Trigger); err != nil {
		return err
	}
	secrets, err := a.t.open(a.trigger)
	if err != nil {
		return err
	}
	team, err := a.t.store.Team(ctx, a.run.Team)
	if err == nil {
		err = team.Open()
	}
	if err != nil {
		return err
	}
	box, woke, err := a.sandbox(ctx)
	if err != nil {
		return err
	}
	if !a.entered {
		a.entered = true
		a.t.enter(box.ID, woke)
	}
	if !a.resumed || a.run.Sandbox != box.ID {
		a.run.Sandbox, a.run.Woke = box.ID, woke
		if err := a.put(ctx); err != nil {
			return err
		}
	}
	if !a.resumed {
		if err := a.mayStart(ctx, secrets.Env); err != nil {
			return err
		}
	}
	g := a.t.guestOf(box)
	defer g.close()
	return a.command(ctx, g, secrets.Env)
}

// mayStart returns why the command may not start.
func (a *attempt) mayStart(ctx context.Context, env map[string]string) error {
	do := a.trigger.Action
	// The variables of the run are of no matter: a decision is about the trigger's command.
	err := a.t.sandboxes.MayStart(ctx, a.run.Sandbox, cay.Start{Command: shellOf(do.Command), User: do.User, Dir: do.Dir, Env: env}, slices.Concat(a.trigger.Makers, a.run.Askers)...)
	if code := cay.CodeOf(err); code == cay.CodeCommandWaits || code == cay.CodeCommandDenied {
		return &exitError{-1, err.Error()}
	}
	return err
}

// put records what has become of the attempt so far.
func (a *attempt) put(ctx context.Context) error {
	return a.t.store.PutRun(ctx, a.run, cay.RunRunning, a.number)
}

// sandbox gets the sandbox of an attempt, which has time for the command. It
// tells whether the sandbox slept.
func (a *attempt) sandbox(ctx context.Context) (box cay.Sandbox, woke bool, err error) {
	who, do := runner(a.trigger), a.trigger.Action
	switch {
	case a.resumed:
		box, _, err = a.still(ctx)
		return box, a.run.Woke, err
	case do.Sandbox != "":
		return a.t.sandboxes.Connect(ctx, who, do.Sandbox, do.Timeout+margin, true)
	}
	metadata := map[string]string{"cay.trigger": a.trigger.Name, "cay.run": string(a.run.ID)}
	for name, value := range do.Metadata {
		metadata[name] = value
	}
	spec := cay.CreateSpec{Template: do.Template, Timeout: do.Timeout + margin, OnTimeout: cay.KillOnTimeout, Secure: true, Metadata: metadata}
	key := fmt.Sprintf("run %s %d", a.run.ID, a.number) // a server that dies now makes no second one
	for again := 1; ; again++ {
		spec.IdempotencyKey = key
		box, err = a.t.sandboxes.Create(ctx, who, spec)
		if cay.CodeOf(err) != cay.CodeKeyEnded || again > againMost || !a.isLost(ctx, key) {
			return box, false, err
		}
		key = fmt.Sprintf("run %s %d again %d", a.run.ID, a.number, again)
	}
}

// isLost reports whether the sandbox of a create was lost with its machine: nothing began
// in it, so that the attempt may have another.
func (a *attempt) isLost(ctx context.Context, key string) bool {
	_, id, err := a.t.store.CreatedWith(ctx, a.run.Team, key, a.run.QueuedAt.Add(-margin))
	if err != nil {
		return false
	}
	box, err := a.t.store.Sandbox(ctx, a.run.Team, id)
	return err == nil && box.Cause == cay.CauseHostLost
}

// command runs the command of an attempt, or follows the one that an earlier
// server began.
func (a *attempt) command(ctx context.Context, g *guestClient, env map[string]string) error {
	c := command.Command{Tag: a.tag(), Token: g.token, Output: a.output.add}
	if a.resumed {
		return a.follow(ctx, g, c, true, errAway)
	}
	begun := false
	c.Started = func() { begun = true }
	var body Body
	plain, err := a.t.sealer.Open(a.run.Sealed, placeOfRun(a.run))
	if err == nil {
		err = json.Unmarshal(plain, &body)
	}
	if err != nil {
		return cay.Wrap(cay.Internal, err, "the record of run %s is damaged", a.run.ID)
	}
	do := a.trigger.Action
	path := "/tmp/cay-run-" + string(a.run.ID)
	if err := g.write(ctx, path, do.User, body.Bytes); err != nil {
		return err
	}
	if do.After != cay.KillAfterRun {
		defer g.forget(path, do.User)
	}
	c.User, c.Dir, c.Args = do.User, do.Dir, shellOf(do.Command)
	c.Env = map[string]string{
		"CAY_PAYLOAD": path, "CAY_PAYLOAD_TYPE": body.Type, "CAY_EVENT": a.run.Event, "CAY_DELIVERY": a.run.Delivery,
		"CAY_RUN": string(a.run.ID), "CAY_TRIGGER": a.trigger.Name, "CAY_ATTEMPT": strconv.Itoa(a.number),
	}
	for name, value := range env {
		c.Env[name] = value
	}
	a.run.BegunAt = ledger.Now()
	if err := a.put(ctx); err != nil {
		a.run.BegunAt = time.Time{}
		return err
	}
	if !a.t.stillLeads(ctx) {
		return context.Cause(ctx)
	}
	within, cancel := context.WithTimeout(ctx, do.Timeout) // the agent ends it then, without this server too
	defer cancel()
	err = command.Run(within, g.agent, c)
	return a.follow(ctx, g, c, begun, err)
}

// shellOf has a login shell run a line.
func shellOf(line string) []string { return []string{"/bin/bash", "-l", "-c", line} }

// errAway stands for a connection that an earlier server had.
var errAway = errors.New("the server was away")

// follow says how a command ended, by the error that following it ended with. A
// connection that breaks is no end: the command is looked for again. begun tells
// whether the agent said that it runs.
func (a *attempt) follow(ctx context.Context, g *guestClient, c command.Command, begun bool, err error) error {
	deadline := a.run.BegunAt.Add(a.trigger.Action.Timeout)
	for tries := 0; ; tries++ {
		var exit *command.Exit
		switch {
		case errors.Is(context.Cause(ctx), errCancelled):
			g.kill(c, begun)
			return errCancelled
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return nil
		case errors.As(err, &exit):
			return a.exit(exit, deadline)
		case !time.Now().Before(deadline):
			g.kill(c, begun)
			return &exitError{-1, a.late()}
		case connect.CodeOf(err) == connect.CodeInvalidArgument || connect.CodeOf(err) == connect.CodeUnauthenticated:
			return &exitError{-1, "the command could not be started: " + cay.Fit(messageOf(err), 300)}
		case connect.CodeOf(err) == connect.CodeNotFound || tries == lostMost:
			return a.gone(ctx)
		}
		_, waited, lost := a.still(ctx)
		if lost != nil {
			if ctx.Err() != nil {
				continue
			}
			return lost
		}
		if waited || cay.CodeOf(err) == cay.CodeNodeAway { // the node may come back, until it is gone
			tries = 0
		}
		if tries > 0 && !ticks.Wait(ctx, lostWait) {
			continue
		}
		within, cancel := context.WithDeadline(ctx, deadline)
		err = command.Follow(within, g.agent, c)
		cancel()
	}
}

func messageOf(err error) string {
	var e *connect.Error
	if errors.As(err, &e) {
		return e.Message()
	}
	return err.Error()
}

func (a *attempt) late() string {
	return fmt.Sprintf("the command took longer than %d seconds, and was killed", int(a.trigger.Action.Timeout/time.Second))
}

// exit says how a command ended.
func (a *attempt) exit(e *command.Exit, deadline time.Time) error {
	switch {
	case e.Code < 0 && !time.Now().Before(deadline):
		return &exitError{-1, a.late()}
	case e.Code < 0:
		return &exitError{-1, "the command ended by a " + cay.Fit(e.Status, 100)}
	}
	return &exitError{code: e.Code}
}

// still finds the sandbox of a command that was begun. One that is on its way to another
// node, or not to be looked up, is waited for, which waited tells, until the command's
// time is over.
func (a *attempt) still(ctx context.Context) (box cay.Sandbox, waited bool, err error) {
	deadline := a.run.BegunAt.Add(a.trigger.Action.Timeout)
	for {
		box, err = a.t.sandboxes.Get(ctx, runner(a.trigger), a.run.Sandbox)
		later := err == nil && box.Moving || cay.KindOf(err) == cay.Unavailable
		switch {
		case err == nil && box.State == cay.Running:
			return box, waited, nil
		case !later || !time.Now().Before(deadline):
			return box, waited, a.gone(ctx)
		}
		if waited = true; !ticks.Wait(ctx, lostWait) {
			return box, waited, ctx.Err()
		}
	}
}

// gone says what is known of a command that is not found any more.
func (a *attempt) gone(ctx context.Context) error {
	box, err := a.t.sandboxes.Get(ctx, runner(a.trigger), a.run.Sandbox)
	switch {
	case cay.KindOf(err) == cay.NotFound || err == nil && box.State == cay.Killed:
		return &unknownError{"the sandbox ended while the command ran"}
	case err == nil && box.State != cay.Running:
		return &unknownError{fmt.Sprintf("the sandbox was %s while the command ran", box.State)}
	}
	return &unknownError{"the connection to the command was lost, and it ended meanwhile: its status is not known"}
}

// unknownError is the end of a command whose status is not known.
type unknownError struct{ why string }

func (e *unknownError) Error() string { return e.why }

// leave leaves the sandbox of an attempt as the trigger says.
func (a *attempt) leave(run context.Context, id cay.SandboxID) {
	if !a.entered {
		return
	}
	last, woke := a.t.exit(id)
	if cause := context.Cause(run); cause != nil && !errors.Is(cause, errCancelled) {
		return // the server stops, and the command goes on
	}
	if !a.t.stillLeads(run) {
		return // the one that leads does
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	who, do := runner(a.trigger), a.trigger.Action
	var err error
	switch {
	case do.Sandbox == "" && do.After == cay.KillAfterRun:
		err = a.t.sandboxes.Kill(ctx, who, id)
	case do.Sandbox == "" && do.After == cay.PauseAfterRun, do.After == cay.PauseAfterRun && woke && last:
		err = a.t.sandboxes.Pause(ctx, who, id, cay.MemorySnapshot, false)
	}
	if err != nil && cay.KindOf(err) != cay.NotFound {
		a.t.log.WarnContext(ctx, "cannot leave the sandbox of a run as its trigger says", "run", a.run.ID, "sandbox", id, "after", do.After, "err", err)
	}
}

// visits counts the runs that are in a sandbox.
type visits struct {
	runs int
	woke bool // one of them woke it
}

func (t *Triggers) enter(id cay.SandboxID, woke bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.in[id]
	if in == nil {
		in = &visits{}
		t.in[id] = in
	}
	in.runs++
	in.woke = in.woke || woke
}

// exit reports whether no other run is in a sandbox, and whether one woke it.
func (t *Triggers) exit(id cay.SandboxID) (last, woke bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.in[id]
	in.runs--
	if in.runs == 0 {
		delete(t.in, id)
	}
	return in.runs == 0, in.woke
}

// tail keeps the last bytes that a command wrote.
type tail struct {
	mu  sync.Mutex
	b   []byte
	cut bool
}

func (t *tail) add(stdout, stderr []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(append(t.b, stdout...), stderr...)
	if over := len(t.b) - cay.MaxRunOutput; over > cay.MaxRunOutput {
		t.b, t.cut = append(t.b[:0], t.b[over:]...), true
	}
}

// text is what was kept, as text that every database takes.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.b
	if over := len(b) - cay.MaxRunOutput; over > 0 {
		b, t.cut = b[over:], true
	}
	text := strings.ReplaceAll(strings.ToValidUTF8(string(b), "\uFFFD"), "\x00", "\uFFFD")
	if t.cut {
		text = "…" + text
	}
	return text
}
