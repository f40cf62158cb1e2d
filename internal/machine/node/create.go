package node

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/trail"
)

// Create makes an instance run: slot, journal, restore, identity. It returns
// when the agent inside knows its identity. On an error nothing is left, and
// the error says which step failed. Where spec welcomes a warm instance, one of
// the pool is handed over if there is one: the answer has its ids, and the
// tokens that go with them. The pool makes no other while ctx lasts, for a moment:
// it ends when the caller has recorded and answered what is created.
func (n *Node) Create(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error) {
	warm := spec.Warm
	spec.Warm = false
	if warm {
		if inst := n.claim(ctx, spec); inst != nil {
			claiming, done := trail.Begin(ctx, trail.NodeClaim)
			err := n.handOver(claiming, inst, n.taken(inst, spec))
			done(err)
			switch {
			case err == nil:
				return inst.public(), nil
			case ctx.Err() != nil:
				return cay.Instance{}, stepFailed(ctx, "take it from the pool", err)
			case isVolumeError(err): // another one would have it too
				return cay.Instance{}, stepFailed(ctx, mountStep, err)
			}
			n.cfg.Log.WarnContext(ctx, "a pooled sandbox was of no use; making another", "instance", inst.spec.Instance, "err", err)
		}
	}
	defer n.ahead()()
	spec.Warm = warm
	return n.create(ctx, spec, n.show)
}

// create makes an instance and hands it over before a goroutine tends it.
func (n *Node) create(ctx context.Context, spec cay.InstanceSpec, done func(*instance)) (cay.Instance, error) {
	inst, err := n.begin(spec)
	if err != nil {
		return cay.Instance{}, err
	}
	defer n.work.Done()
	if err := n.make(ctx, inst, n.startOf(inst)); err != nil {
		if !n.undo(inst) {
			n.cfg.Log.WarnContext(ctx, "a failed create is still being undone", "sandbox", spec.Sandbox, "instance", spec.Instance)
		}
		return cay.Instance{}, err
	}
	done(inst)
	n.work.Go(func() { n.tend(inst) })
	return inst.public(), nil
}

// undo gives back what a failed create has. It reports whether that was done
// before the caller's patience was over; it goes on otherwise.
func (n *Node) undo(inst *instance) bool {
	n.work.Go(func() { n.finish(inst) })
	patience := time.NewTimer(clearPause)
	defer patience.Stop()
	select {
	case <-inst.gone:
		return true
	case <-patience.C:
		return false
	}
}

// begin makes this Create the owner of its ids.
func (n *Node) begin(spec cay.InstanceSpec) (*instance, error) {
	for field, id := range map[string]string{
		"instance": string(spec.Instance), "sandbox": string(spec.Sandbox), "snapshot": string(spec.Snapshot),
	} {
		if !cay.ValidID(id) {
			return nil, cay.Errorf(cay.Invalid, "%s: %q is not an id", field, id)
		}
	}
	inst := newInstance(spec)
	inst.common, inst.spec.Warm = spec.Warm, false
	return inst, n.enlist(inst)
}

// enlist makes the caller the owner of an instance that does not run yet. The
// caller says n.work.Done when another goroutine owns it.
func (n *Node) enlist(inst *instance) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return cay.Errorf(cay.Unavailable, "the server is stopping")
	}
	if _, ok := n.instances[inst.spec.Instance]; ok {
		return cay.Errorf(cay.Conflict, "instance %s exists", inst.spec.Instance)
	}
	n.instances[inst.spec.Instance] = inst
	inst.unused = n.cfg.Snapshots.Use(inst.spec.Snapshot)
	n.work.Add(1)
	return nil
}

// start is the part of an instance's beginning in which a sandbox's, the pool's
// and a borrowed one differ.
type start struct {
	room     func() error // that the disk has for it
	find     func(context.Context) (source, error)
	callInit func(context.Context, source) (guest.InitReply, error)
	mark     string // as what the next node may adopt it; empty where it may not
	failed   func(ctx context.Context, step string, err error) error
}

// startOf is the start of a sandbox, or of an instance for the pool.
func (n *Node) startOf(inst *instance) start {
	mark := wholeFile
	if inst.pooled.Load() {
		mark = pooledFile
	}
	return start{
		room: func() error {
			if inst.spec.Resume {
				return n.roomToResume()
			}
			return n.roomFor("a new sandbox")
		},
		find: func(ctx context.Context) (source, error) {
			from, err := n.find(ctx, &inst.spec)
			from.loading = n.loadingOf(inst, from)
			return from, err
		},
		callInit: func(ctx context.Context, from source) (guest.InitReply, error) { return n.callInit(ctx, inst, from) },
		mark:     mark,
		failed:   stepFailed,
	}
}

// make takes the steps from nothing to an instance that knows what it is, one
// after another.
func (n *Node) make(ctx context.Context, inst *instance, by start) (failed error) {
	ctx, done := trail.Begin(ctx, trail.NodeCreate)
	defer func() { done(failed) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(inst.ctx, func() { cancel(context.Cause(inst.ctx)) })()
	defer context.AfterFunc(n.ctx, func() { cancel(cay.Errorf(cay.Unavailable, "the server is stopping")) })()

	if err := by.room(); err != nil {
		return by.failed(ctx, "look for room on the disk", err)
	}
	pooled := inst.pooled.Load()
	if !pooled {
		if n.cfg.Record != nil { // one that is waited for takes no other's turn
			record, err := n.reach(ctx, inst.spec.Snapshot)
			if err == nil && inst.spec.Elsewhere && !inst.spec.FilesOnly {
				err = n.better(ctx, record)
			}
			if cay.KindOf(err) == cay.Unavailable {
				return by.failed(ctx, "find its snapshot", err)
			}
		}
		end, err := n.turn(ctx)
		if err != nil {
			return by.failed(ctx, "wait for its turn", err)
		}
		defer end()
	}
	from, err := by.find(ctx)
	if err != nil {
		return by.failed(ctx, "find its snapshot", err)
	}
	if err := canMount(inst.spec, from); err != nil {
		return by.failed(ctx, mountStep, err)
	}
	admitted, err := n.admit(ctx, from, pooled)
	if err != nil {
		return err
	}
	defer admitted.done()
	if from.loading == engine.Demand {
		n.mapFiles(inst, admitted.handOver)
	}
	checked := n.check(ctx, from)
	defer func() { cancel(nil); _ = checked() }() // no reader is left
	inst.boot, inst.notice = from.record.Boot, from.notice
	if inst.slot, err = n.cfg.Net.Acquire(ctx); err != nil {
		return by.failed(ctx, "get a network slot", err)
	}
	inst.holds = true
	inst.connect(pooled)
	if !pooled { // a pooled instance gets no policy until it is claimed
		n.cfg.Egress.Set(inst.slot.Addr, inst.spec)
		if err := n.openNetwork(ctx, inst.slot, inst.spec); err != nil {
			return by.failed(ctx, "apply its network policy", err)
		}
	}
	inst.started, inst.protocol = time.Now(), from.record.Agent
	if err := n.prepare(inst); err != nil {
		return by.failed(ctx, "write its journal", err)
	}
	if err := n.mountVolumes(ctx, inst); err != nil {
		return by.failed(ctx, mountStep, err)
	}
	prepared := time.Now()
	restoring, restoredNow := trail.Begin(ctx, trail.NodeRestore)
	err = n.startContainer(restoring, inst, from)
	restoredNow(err)
	if damage := checked(); damage != nil { // then it explains the other error
		return by.failed(ctx, "read its snapshot", damage)
	}
	if err != nil {
		return by.failed(ctx, from.step(), err)
	}
	n.lookAtLoading(ctx, inst.spec.Instance, inst)
	restored := time.Now()
	if inst.died, err = n.cfg.Engine.Watch(inst.spec.Instance); err != nil {
		return by.failed(ctx, "watch it", err)
	}
	callInit := func(ctx context.Context) (guest.InitReply, error) { return by.callInit(ctx, from) }
	if err := n.introduce(ctx, inst, callInit); err != nil {
		return by.failed(ctx, "give it its identity", err)
	}
	if by.mark != "" {
		if err := markAs(n.journal(inst.spec.Instance), by.mark); err != nil {
			return by.failed(ctx, "finish its journal", err)
		}
	}
	n.cfg.Log.DebugContext(ctx, "sandbox made", "sandbox", inst.spec.Sandbox, "instance", inst.spec.Instance,
		"journal", prepared.Sub(inst.started), "restore", restored.Sub(prepared), "identity", time.Since(restored))
	if cause := context.Cause(inst.ctx); cause != nil { // it may not have come through to ctx yet
		cancel(cause)
		return by.failed(ctx, "go on", cause)
	}
	n.learn(inst, from)
	return nil
}

// source is where an instance comes from.
type source struct {
	record    cay.Snapshot
	dir, root string
	cold      bool // booted from its files
	loading   engine.Loading
	arrives   bool     // its files are on their way, and it has no directory yet
	args      []string // of PID 1, where the snapshot does not say
	notice    string   // why, when the caller did not ask for that
}

// step names the start of the guest.
func (s source) step() string {
	if s.cold {
		return "boot it"
	}
	return "restore its snapshot"
}

// find locates a snapshot and its root, and fills in limits that are not set. It
// fetches those that are lacking.
func (n *Node) find(ctx context.Context, spec *cay.InstanceSpec) (source, error) {
	from, err := n.locate(ctx, spec)
	lacking := cay.KindOf(err) == cay.NotFound || // its files
		cay.KindOf(err) == cay.Conflict || from.notice != "" // perhaps its engine
	if n.cfg.Fetch == nil || !lacking {
		return from, err
	}
	if n.cfg.Arrive != nil && !spec.FilesOnly && cay.KindOf(err) == cay.NotFound {
		if from, err := n.arriving(ctx, spec); err != nil || from.arrives {
			return from, err
		}
	}
	if fetched := n.cfg.Fetch(ctx, spec.Snapshot); fetched != nil {
		return source{}, fetched
	}
	return n.locate(ctx, spec)
}

func (n *Node) locate(ctx context.Context, spec *cay.InstanceSpec) (source, error) {
	dir, record, err := n.cfg.Snapshots.Get(spec.Snapshot)
	if err == nil && (spec.FilesOnly || n.cfg.Engine.CanRestore(record) != nil) {
		if err := n.awaitFiles(ctx, spec.Snapshot); err != nil {
			return source{}, err
		}
		dir, record, err = n.cfg.Snapshots.Get(spec.Snapshot)
	}
	if err != nil {
		return source{}, err
	}
	cold, notice, err := n.choose(*spec, record)
	if err != nil {
		return source{}, err
	}
	root, err := n.cfg.Snapshots.Image(record.Root)
	if err != nil {
		return source{}, err
	}
	if spec.Limits == (cay.Limits{}) {
		spec.Limits = record.Limits
	}
	return source{record: record, dir: dir, root: root, cold: cold, notice: notice}, nil
}

// startContainer starts the guest.
func (n *Node) startContainer(ctx context.Context, inst *instance, from source) error {
	if from.cold {
		return n.cfg.Engine.Boot(ctx, n.bootSpec(inst, from))
	}
	if len(inst.spec.Volumes) > 0 {
		if err := n.awaitLocks(ctx, inst.spec.Snapshot); err != nil {
			return err
		}
	}
	return n.cfg.Engine.Restore(ctx, n.restoreSpec(inst, from))
}

// prepare writes the journal and makes the directories that the engine gets.
func (n *Node) prepare(inst *instance) error {
	id := inst.spec.Instance
	if err := os.MkdirAll(n.reserved(id), 0o755); err != nil {
		return diskError(err)
	}
	err := writeJournal(n.journal(id), inst.record())
	if err != nil {
		return diskError(err)
	}
	return nil
}

func (n *Node) restoreSpec(inst *instance, from source) engine.RestoreSpec {
	id := inst.spec.Instance
	return engine.RestoreSpec{
		ID:       id,
		Snapshot: from.record,
		From:     from.dir,
		Root:     from.root,
		Limits:   inst.spec.Limits,
		Dir:      filepath.Join(n.journal(id), engineDir),
		Reserved: n.reserved(id),
		Net:      engine.Net{Namespace: inst.slot.Namespace},

		Background: inst.pooled.Load(),
		Loading:    from.loading,
		WorkingSet: workingSetOf(from.dir, from.record),
		Arriving:   from.arrives,
		Trace:      inst.trace,
		Share:      n.cfg.Sharing.Among(inst.spec.Team, from.record),
	}
}

// introduceTimeout bounds how long a restored agent may stay silent. A host
// under load is slow; a dead guest is noticed at once by its death.
const introduceTimeout = 30 * time.Second

// evidenceWait is how long a failed call waits for the reason.
const evidenceWait = 200 * time.Millisecond

// tokenIn is the token that the agent in a snapshot has, empty for none.
func (n *Node) tokenIn(s cay.Snapshot) string {
	if s.Sandbox == "" || !s.Secure {
		return ""
	}
	return n.cfg.Token(s.Sandbox)
}

// introduce gives the agent its identity, and waits for the programs that a boot
// still has to start. A guest that dies meanwhile ends the wait with the evidence
// of its death.
func (n *Node) introduce(ctx context.Context, inst *instance, callInit func(context.Context) (guest.InitReply, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case d := <-inst.died:
			inst.death = &d
			cancel()
		case <-ctx.Done():
		}
	}()
	reply, err := callInit(ctx)
	if err != nil { // a connection breaks before the death is noticed that broke it
		select {
		case <-watched:
		case <-time.After(evidenceWait):
		}
	}
	cancel()
	<-watched
	switch {
	case inst.death != nil:
		return cay.Errorf(cay.Internal, "it died: %s (%s)", inst.death.Cause, inst.death.Detail)
	case err != nil:
		return err
	case reply.Protocol < 1 || reply.Protocol > guest.Protocol:
		return cay.Errorf(cay.Conflict, "its agent speaks protocol %d, this server %d", reply.Protocol, guest.Protocol).
			WithHint("build the template again with this version of Cay")
	case len(inst.spec.Volumes) > 0 && reply.Protocol < guest.ProtocolMounts: // booted from old files
		return errOldAgent(reply.Protocol)
	}
	return nil
}

// callInit calls the agent of a new instance.
func (n *Node) callInit(ctx context.Context, inst *instance, from source) (guest.InitReply, error) {
	token, in := n.tokenIn(from.record), identity(inst.spec)
	if from.cold {
		token, in = "", bootIdentity(inst.spec, from.record.Boot)
	}
	reply, err := n.sendInit(ctx, inst, token, in)
	if err == nil && from.cold {
		err = n.warmUp(ctx, inst.slot, from.record.Boot)
	}
	if err == nil && from.cold && !inst.spec.Resume {
		// The files have the marks of the sandbox before.
		reply, err = n.sendInit(ctx, inst, inst.spec.AccessToken, identity(inst.spec))
	}
	if err == nil && from.cold {
		var notice string
		notice, err = n.startAgain(ctx, inst, from.record.Boot)
		inst.notice = joinNotices(inst.notice, notice)
	}
	return reply, err
}

// sendInit calls an agent's /init, which it is to answer soon.
func (n *Node) sendInit(ctx context.Context, inst *instance, token string, in guest.Init) (out guest.InitReply, err error) {
	ctx, done := trail.Begin(ctx, trail.AgentInit)
	defer func() { done(err) }()
	if n.cfg.TrustAlways || len(inst.spec.Network.Rules) > 0 { // most images have it already
		in.CABundle = n.cfg.Authority
	}
	ctx, cancel := context.WithTimeout(ctx, introduceTimeout)
	defer cancel()
	reply, err := n.cfg.Init(ctx, inst.line, token, in)
	if errors.Is(err, context.DeadlineExceeded) {
		err = cay.Wrap(cay.Unavailable, err, "its agent did not answer within %s", introduceTimeout).
			WithHint("the host may be overloaded; try again")
	}
	if cay.KindOf(err) == cay.NoSpace && disk.Full(n.cfg.Dir) != "" { // the host's, whatever the guest says of its own
		err = cay.Wrap(cay.NoSpace, err, "the disk of %s is full", n.cfg.Dir).WithHint("%s", disk.Cure)
	}
	return reply, err
}

// identity is what an instance is told: a fresh clone gets an identity of its
// own, a resumed instance keeps its identity and its random seeds.
func identity(spec cay.InstanceSpec) guest.Init {
	env := maps.Clone(spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	env["E2B_SANDBOX"] = "true"
	env["E2B_SANDBOX_ID"] = string(spec.Sandbox)
	env["E2B_TEMPLATE_ID"] = string(spec.Template)
	mode := guest.ModeCreate
	if spec.Resume {
		mode = guest.ModeResume
	}
	entropy := make([]byte, 32)
	rand.Read(entropy)                                          // never fails: it ends the program instead
	machine := sha256.Sum256([]byte("machine " + spec.Sandbox)) // one a sandbox, for life
	return guest.Init{
		Mode:        mode,
		SandboxID:   string(spec.Sandbox),
		TemplateID:  string(spec.Template),
		BuildID:     string(spec.Build),
		EnvVars:     env,
		AccessToken: spec.AccessToken,
		Timestamp:   time.Now(),
		MachineID:   hex.EncodeToString(machine[:16]),
		Entropy:     entropy,
		CPUs:        spec.Limits.CPUs,
		MemoryMB:    spec.Limits.MemoryMB,
		DiskMB:      spec.Limits.DiskMB,
		Mounts:      guestMounts(spec.Volumes),
	}
}

// callAgent calls a real agent. Only a failed dial is tried again: a request
// that was sent may have given the agent its token already.
func callAgent(ctx context.Context, client *toagent.Client, token string, in guest.Init) (guest.InitReply, error) {
	for {
		reply, err := client.Init(ctx, token, in)
		var op *net.OpError
		if err == nil || ctx.Err() != nil || !errors.As(err, &op) || op.Op != "dial" {
			return reply, err
		}
		select {
		case <-ctx.Done():
			return guest.InitReply{}, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// stepFailed says which step of a create failed. When the create was called
// off, that is the reason and not what broke on the way.
func stepFailed(ctx context.Context, step string, err error) error {
	if off := calledOff(ctx, err, "the sandbox was not created"); off != nil {
		return off
	}
	out := failure(err, "create sandbox: "+step)
	if out.Code != "" {
		return out
	}
	switch out.Kind {
	case cay.Internal, cay.Unavailable:
		return out.WithCode(cay.CodeCreateFailed)
	case cay.Exhausted: // by the sandbox itself, no limit of its team
		out.Kind = cay.Internal
	}
	return out.WithCode(cay.CodeCreateRefused)
}

// calledOff is the error of work that ended because its context did, or nil.
func calledOff(ctx context.Context, err error, what string) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, context.DeadlineExceeded) {
		return nil
	}
	kind := cay.KindOf(cause)
	if kind == cay.Internal { // killed while it was made
		kind = cay.Conflict
	}
	return cay.Wrap(kind, err, "%s: %v", what, cause)
}

// failure is an error with the step that it is of, and the hint that it has.
func failure(err error, step string) *cay.Error {
	out := cay.Wrap(cay.KindOf(err), err, "%s: %v", step, message(err))
	var known *cay.Error
	if errors.As(err, &known) {
		out.Hint, out.Code = known.Hint, known.Code
	}
	return out
}

// message is the part of an error that callers may see.
func message(err error) string {
	var known *cay.Error
	if errors.As(err, &known) && known.Msg != "" {
		return known.Msg
	}
	return "see the server's log"
}
