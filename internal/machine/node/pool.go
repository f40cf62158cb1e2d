package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// A pool holds instances without an owner: restored, told the ids that
// they will have for life, and frozen. A create takes one when there is one.
//
// Pooled instances are instances like all others (one owner, a journal, a
// slot) but for three things: Lookup does not find them, nothing is open to
// them in the network, and their journal has a mark of its own, which goes
// before anything of them changes. So a crash leaves one that is as good as
// new, or one that no caller was told of.
type pool struct {
	budget int64         // bytes; 0 turns the pool off
	wake   chan struct{} // there may be something to do

	// Below are guarded by the node's mu.
	supplies map[cay.SnapshotID]*supply
	front    int       // restores and saves under way, which go first
	eased    time.Time // when a caller last took an instance, or had it whole
	taken    int       // creates that took an instance and are not answered yet
	lacking  time.Time // since when instances are missing; zero while none is
	short    bool      // the host has no memory to spare
	drained  bool      // no new sandboxes come
	stats    PoolStats
}

// supply is the pool of one snapshot: its instances and the demand for them.
type supply struct {
	shape  cay.InstanceSpec // without ids and without anything of a sandbox
	demand demand
	ready  []*instance // the oldest first
	each   int64       // bytes that one takes
	failed time.Time   // when one could not be made
}

const (
	// settle is how long a pool that is half full waits after a create: its
	// first commands go before the pool. No pool waits longer for the answer of one.
	settle = 150 * time.Millisecond
	// aheadShare is the part of all restores at once beside which the pool may
	// make one more: 1 in 3.
	aheadShare = 3
	// poolTick is how often the pool looks at memory and demand unasked.
	poolTick = 2 * time.Second
	// rehearseWithin bounds how long the pool waits for an interpreter.
	rehearseWithin = 5 * time.Second
	// poolRetry is how long one that could not be made is not tried again.
	poolRetry = 30 * time.Second
)

// PoolStats is what there is to see of a pool.
type PoolStats struct {
	Budget     int64 // bytes
	Memory     int64 // bytes that the ready ones take
	Ready      map[cay.TemplateID]int
	Wanted     map[cay.TemplateID]int
	Warm, Cold int64 // creates from templates so far, from the pool and not
	Short      bool  // emptied: the host's memory is short
}

// Pool tells the state of the pool.
func (n *Node) Pool() PoolStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.pool.stats
	out.Budget, out.Short = n.pool.budget, n.pool.short
	out.Ready, out.Wanted = map[cay.TemplateID]int{}, map[cay.TemplateID]int{}
	targets := n.targets(time.Now())
	for id, s := range n.pool.supplies {
		out.Ready[s.shape.Template] += len(s.ready)
		out.Wanted[s.shape.Template] += targets[id]
		out.Memory += int64(len(s.ready)) * s.each
	}
	return out
}

// claim takes an instance off the pool that is what shape asks for: the
// snapshot of a template with its limits. Nil when there is none, which counts
// as demand for one. It wakes up at once; one that is awake is still as good as
// new. The context is the create's, and ends when that is answered.
func (n *Node) claim(ctx context.Context, shape cay.InstanceSpec) *instance {
	if n.pool.budget <= 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, s := range n.pool.supplies { // of a template that has changed
		if (s.shape.Template == shape.Template || id == shape.Snapshot) && !sameShape(s.shape, shape) {
			n.endPooled(s.ready)
			delete(n.pool.supplies, id)
		}
	}
	s := n.pool.supplies[shape.Snapshot]
	if s == nil {
		s = &supply{shape: shapeOf(shape)}
		n.pool.supplies[shape.Snapshot] = s
	}
	s.demand.ask(time.Now())
	defer n.wakePool()
	if len(s.ready) == 0 || n.closed {
		n.pool.stats.Cold++
		return nil
	}
	inst := s.ready[0]
	s.ready = s.ready[1:]
	n.pool.stats.Warm++
	n.pool.eased = time.Now() // else a restore begins beside this create
	n.pool.taken++
	context.AfterFunc(ctx, n.answered)
	id := inst.spec.Instance // its new owner changes the rest meanwhile
	n.work.Go(func() { inst.woken <- n.cfg.Engine.Thaw(n.ctx, id) })
	return inst
}

// answered notes that a create is over which took an instance.
func (n *Node) answered() {
	n.mu.Lock()
	n.pool.taken--
	n.mu.Unlock()
	n.wakePool()
}

// taken is what spec asks for under the ids of a pooled instance.
func (n *Node) taken(inst *instance, spec cay.InstanceSpec) cay.InstanceSpec {
	spec.Sandbox, spec.Instance = inst.spec.Sandbox, inst.spec.Instance
	if spec.AccessToken != "" {
		spec.AccessToken = n.cfg.Token(spec.Sandbox)
	}
	if spec.TrafficToken != "" {
		spec.TrafficToken = n.cfg.Traffic(spec.Sandbox)
	}
	return spec
}

func shapeOf(spec cay.InstanceSpec) cay.InstanceSpec {
	return cay.InstanceSpec{Snapshot: spec.Snapshot, Template: spec.Template, Build: spec.Build, Limits: spec.Limits}
}

func sameShape(a, b cay.InstanceSpec) bool {
	return a.Snapshot == b.Snapshot && a.Template == b.Template && a.Build == b.Build && a.Limits == b.Limits
}

// handOver makes a pooled instance the sandbox that spec says. After an error
// its owner ends it.
func (n *Node) handOver(ctx context.Context, inst *instance, spec cay.InstanceSpec) error {
	done := make(chan error, 1)
	j := job{done: done, do: func(inst *instance) (bool, error) {
		err := n.roomFor("a new sandbox")
		if err == nil {
			err = n.assign(ctx, inst, spec)
		}
		return err != nil, err
	}}
	select {
	case inst.jobs <- j:
		return <-done
	case <-inst.ctx.Done():
		return context.Cause(inst.ctx)
	case <-inst.gone:
		return errors.New("it is gone")
	case <-n.ctx.Done():
		return cay.Errorf(cay.Unavailable, "the server is stopping")
	}
}

// assign gives a pooled instance its place in the world: its journal, its
// network and its identity at once, because each waits for something else. Only
// its owner calls it.
func (n *Node) assign(ctx context.Context, inst *instance, spec cay.InstanceSpec) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(inst.ctx, func() { cancel(context.Cause(inst.ctx)) })()
	defer context.AfterFunc(n.ctx, func() { cancel(cay.Errorf(cay.Unavailable, "the server is stopping")) })()
	begun := time.Now()
	dir := n.journal(spec.Instance)
	if err := unmark(dir); err != nil {
		return diskError(err)
	}
	if err := canMount(spec, source{record: cay.Snapshot{ID: spec.Snapshot, Agent: inst.protocol}}); err != nil {
		return err
	}
	inst.spec, inst.started = spec, begun
	if err := n.mountVolumes(ctx, inst); err != nil { // while it wakes up
		return err
	}
	if err := <-inst.woken; err != nil {
		return err
	}
	done := make(chan error, 2)
	text := inst.record()
	go func() {
		n.cfg.Egress.Set(inst.slot.Addr, spec)
		done <- n.openNetwork(ctx, inst.slot, spec)
	}()
	go func() { done <- replaceJournal(dir, text) }()
	var err error
	if n.hasNews(spec) {
		err = n.introduce(ctx, inst, func(ctx context.Context) (guest.InitReply, error) {
			return n.sendInit(ctx, inst, n.cfg.Token(spec.Sandbox), adoption(spec))
		})
	}
	if err := errors.Join(err, <-done, <-done); err != nil {
		return err
	}
	if err := markAs(dir, wholeFile); err != nil {
		return err
	}
	inst.pooled.Store(false)
	inst.disconnect()
	n.show(inst)
	n.mu.Lock()
	n.pool.eased = time.Now()
	n.mu.Unlock()
	n.cfg.Log.DebugContext(ctx, "sandbox taken from the pool", "sandbox", spec.Sandbox, "took", time.Since(begun))
	return context.Cause(ctx)
}

// hasNews reports whether a pooled instance that becomes a sandbox has anything
// to be told: its ids, its token, its machine id and its seeds it has had since
// it was made, and no client has seen them. One that has nothing to be told is not
// waited for either: it answered when it was frozen, and has done nothing since.
func (n *Node) hasNews(spec cay.InstanceSpec) bool {
	return len(spec.Env) > 0 || spec.AccessToken != n.cfg.Token(spec.Sandbox) || len(spec.Network.Rules) > 0 || len(spec.Volumes) > 0
}

// adoption is what a pooled instance is told when it becomes a sandbox: all
// that it does not know yet. It has drawn its seeds already, no client has seen
// them, and it gets fresh entropy on top.
func adoption(spec cay.InstanceSpec) guest.Init {
	in := identity(spec)
	in.Mode, in.SandboxID, in.TemplateID, in.BuildID, in.MachineID = guest.ModeResume, "", "", "", ""
	return in
}

// wakePool has the pool look for something to do.
func (n *Node) wakePool() {
	select {
	case n.pool.wake <- struct{}{}:
	default:
	}
}

// ahead says that a caller waits for an instance; the pool stands back until
// the returned function is called.
func (n *Node) ahead() (done func()) {
	n.mu.Lock()
	n.pool.front++
	n.mu.Unlock()
	return func() {
		n.mu.Lock()
		n.pool.front--
		n.mu.Unlock()
		n.wakePool()
	}
}

// keepPool fills and empties the pool until the node closes.
func (n *Node) keepPool() {
	tick := time.NewTicker(poolTick)
	defer tick.Stop()
	for {
		shape, wait := n.trim()
		if shape != nil {
			n.restock(*shape)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-n.ctx.Done():
			timer.Stop()
			return
		case <-tick.C:
			n.lookAtMemory()
		case <-n.pool.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// trim ends what is too much and says what to make next, if now is the time
// for it, or when to look again.
func (n *Node) trim() (next *cay.InstanceSpec, wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	targets := n.targets(now)
	var neediest *supply
	most := 0
	for id, s := range n.pool.supplies {
		if over := len(s.ready) - targets[id]; over > 0 {
			n.endPooled(s.ready[:over])
			s.ready = s.ready[over:]
		}
		if targets[id] == 0 && len(s.ready) == 0 && s.demand.want(now) == 0 {
			delete(n.pool.supplies, id)
		}
		if missing := targets[id] - len(s.ready); missing > most && now.Sub(s.failed) > poolRetry {
			neediest, most = s, missing
		}
	}
	if neediest == nil || n.closed {
		n.pool.lacking = time.Time{}
		return nil, time.Hour
	}
	if n.pool.lacking.IsZero() {
		n.pool.lacking = now
	}
	quiet, lacking := now.Sub(n.pool.eased), now.Sub(n.pool.lacking)
	switch {
	case n.pool.taken > 0 && lacking < settle: // once, and not again for each create of a burst
		return nil, settle - lacking
	case n.pool.front*aheadShare >= cap(n.restores): // the end of one wakes the pool
		return nil, time.Hour
	case quiet < settle && len(neediest.ready) >= most:
		return nil, settle - quiet
	}
	return &neediest.shape, 0
}

// targets is how many of each to have. The caller holds n.mu.
func (n *Node) targets(now time.Time) map[cay.SnapshotID]int {
	if n.pool.short || n.pool.drained {
		return nil
	}
	var all []claimant
	for id, s := range n.pool.supplies {
		all = append(all, claimant{id, s.demand.want(now), max(s.each, 1)})
	}
	return share(all, n.pool.budget)
}

// endPooled ends instances of the pool. The caller holds n.mu and has taken them
// off their supply.
func (n *Node) endPooled(list []*instance) {
	for _, inst := range list {
		inst.stop(asked(cay.CauseAsked))
	}
}

// restock makes one more.
func (n *Node) restock(shape cay.InstanceSpec) {
	begun := time.Now()
	inst, err := n.stock(shape)
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.pool.supplies[shape.Snapshot]
	switch {
	case err != nil && s != nil && n.ctx.Err() == nil: // else it was not wanted any more
		n.cfg.Log.Warn("the pool cannot be filled", "template", shape.Template, "err", err)
		s.failed = time.Now()
	case err != nil:
	case s == nil || !sameShape(s.shape, shape) || n.pool.short || n.pool.drained: // changed meanwhile
		n.endPooled([]*instance{inst})
	default:
		s.demand.made(time.Since(begun))
		s.each = max(s.each, inst.size)
		s.ready = append(s.ready, inst)
	}
}

// stock makes an instance for the pool and freezes it.
func (n *Node) stock(shape cay.InstanceSpec) (*instance, error) {
	spec := shape
	spec.Sandbox, spec.Instance = cay.NewSandboxID(), cay.NewInstanceID()
	spec.AccessToken = n.cfg.Token(spec.Sandbox) // only this node talks to it
	inst, err := n.begin(spec)
	if err != nil {
		return nil, err
	}
	defer n.work.Done()
	inst.pooled.Store(true)
	if err := n.make(n.ctx, inst, n.startOf(inst)); err != nil {
		n.undo(inst)
		return nil, err
	}
	n.rehearse(inst)
	n.awaitIdle(inst)
	n.freeze(inst)
	n.work.Go(func() { n.tend(inst) })
	return inst, nil
}

// rehearse has the interpreter of a new instance touch the memory that its first
// execution needs: it is slow at first, and here no client waits for it. One
// without it is as good, but for that.
func (n *Node) rehearse(inst *instance) {
	if !slices.Contains(inst.boot.Ports, guest.InterpPort) {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, rehearseWithin)
	defer cancel()
	if err := n.cfg.Rehearse(ctx, inst.slot); err != nil && n.ctx.Err() == nil {
		n.cfg.Log.Debug("a pooled interpreter did not rehearse", "instance", inst.spec.Instance, "err", err)
	}
}

// awaitIdle waits until a new instance has nothing more to do, and sees how much
// memory it takes then. Work that is left would run while a caller waits.
func (n *Node) awaitIdle(inst *instance) {
	const look, idle, most = 25 * time.Millisecond, time.Millisecond, time.Second
	before := time.Duration(-1)
	for begun := time.Now(); time.Since(begun) < most; time.Sleep(look) {
		u, err := n.cfg.Engine.Usage(n.ctx, inst.spec.Instance)
		if err != nil {
			return
		}
		inst.size = n.sizeOf(u)
		if before >= 0 && u.CPUTime-before < idle {
			return
		}
		before = u.CPUTime
	}
}

// sizeOf is the memory that an instance takes, with the part that is kept free of
// what it may still load.
func (n *Node) sizeOf(u cay.Usage) int64 {
	return u.MemoryUsed + reserveOf(u.MemoryPending, n.cfg.LoadReserve)
}

// freeze stops a pooled instance. Where that cannot be, it idles.
func (n *Node) freeze(inst *instance) {
	if err := n.cfg.Engine.Freeze(n.ctx, inst.spec.Instance); err != nil && n.ctx.Err() == nil {
		n.cfg.Log.Debug("a pooled sandbox idles unfrozen", "instance", inst.spec.Instance, "err", err)
	}
}

// unstock takes a pooled instance that ends off its supply.
func (n *Node) unstock(inst *instance) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.pool.supplies[inst.spec.Snapshot]
	if s == nil {
		return
	}
	for i, other := range s.ready {
		if other == inst {
			s.ready = append(s.ready[:i:i], s.ready[i+1:]...)
			return
		}
	}
}

// forget empties the pool of a snapshot that is about to go, and waits.
func (n *Node) forget(ctx context.Context, id cay.SnapshotID) {
	n.mu.Lock()
	s := n.pool.supplies[id]
	delete(n.pool.supplies, id)
	var list []*instance
	if s != nil {
		list = s.ready
		n.endPooled(list)
	}
	n.mu.Unlock()
	await(ctx, list)
}

// Drain empties the pool and keeps it so, or with off fills it again.
func (n *Node) Drain(off bool) {
	n.mu.Lock()
	changed := n.pool.drained == off
	n.pool.drained = !off
	n.mu.Unlock()
	if changed {
		n.wakePool()
	}
}

// giveUp empties the whole pool, and waits. It reports whether there was
// anything in it.
func (n *Node) giveUp(ctx context.Context) bool {
	n.mu.Lock()
	var list []*instance
	for _, s := range n.pool.supplies {
		list = append(list, s.ready...)
		s.ready = nil
	}
	n.endPooled(list)
	n.mu.Unlock()
	await(ctx, list)
	return len(list) > 0
}

func await(ctx context.Context, list []*instance) {
	for _, inst := range list {
		select {
		case <-inst.gone:
		case <-ctx.Done():
			return
		}
	}
}

// readopt puts an instance of an earlier node's pool back into this one's. How
// often it was asked for is not known: that it was there stands for that.
func (n *Node) readopt(inst *instance) {
	inst.pooled.Store(true)
	inst.connect(true)
	if u, err := n.cfg.Engine.Usage(n.ctx, inst.spec.Instance); err == nil {
		inst.size = n.sizeOf(u)
	}
	n.freeze(inst) // it may have been too young for that
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.pool.supplies[inst.spec.Snapshot]
	if s == nil {
		s = &supply{shape: shapeOf(inst.spec)}
		n.pool.supplies[inst.spec.Snapshot] = s
	}
	s.demand.ask(time.Now())
	s.each = max(s.each, inst.size)
	s.ready = append(s.ready, inst)
}
