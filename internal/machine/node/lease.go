package node

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/engine"
)

// BootSpec describes an instance that is booted from a root image, for the
// build of a template.
type BootSpec struct {
	Root    string   // path of the root image
	Digest  string   // its name
	Args    []string // of PID 1; none means the agent alone
	Boot    cay.Boot // the processes' settings; a snapshot of the instance records them
	Team    cay.TeamID
	Limits  cay.Limits
	Network cay.NetworkPolicy
	// Volumes are mounted from the start. They are no part of what comes of the
	// instance: its changes have the directories that they lie on, and it cannot be
	// saved.
	Volumes []cay.VolumeMount
}

// Lease is the right of one build to an instance. The instance has the life of
// all others (slot, journal, admission, turns), but it belongs to no sandbox:
// Lookup and Instances do not find it, Deaths does not tell its end, and the
// next node does not adopt it but removes it.
type Lease struct {
	n     *Node
	inst  *instance
	died  chan struct{}
	death cay.Death // set before died is closed
}

const (
	// roomPatience bounds the wait of a build for memory or tasks of the host. A
	// create is refused at once; a build has come a long way, and its client
	// waits for minutes anyway.
	roomPatience = time.Minute
	roomPause    = time.Second
	// returnPatience bounds the wait for the end of an instance that is given
	// back. Its end goes on.
	returnPatience = time.Minute
	// newsPatience bounds the wait for the news of a death.
	newsPatience = time.Second
)

// Borrow boots an instance and returns when its agent has its settings. The
// caller gives it back with Return. After an error nothing is left of it.
func (n *Node) Borrow(ctx context.Context, spec BootSpec) (*Lease, error) {
	defer n.ahead()()
	patience, cancel := context.WithTimeout(ctx, roomPatience)
	defer cancel()
	for {
		l, err := n.lend(ctx, spec)
		var full *cay.Error
		if !errors.As(err, &full) || full.Code != cay.CodeCapacity {
			return l, err
		}
		select {
		case <-patience.Done():
			return nil, err
		case <-time.After(roomPause):
		}
	}
}

func (n *Node) lend(ctx context.Context, spec BootSpec) (*Lease, error) {
	if len(spec.Args) == 0 {
		spec.Args = []string{guest.AgentPath}
	}
	l := &Lease{n: n, died: make(chan struct{})}
	inst := newInstance(cay.InstanceSpec{
		Instance: cay.NewInstanceID(), Team: spec.Team, Limits: spec.Limits, Network: spec.Network,
		Volumes: spec.Volumes,
	})
	l.inst, inst.lease = inst, l
	if err := n.enlist(inst); err != nil {
		return nil, err
	}
	defer n.work.Done()
	if err := n.make(ctx, inst, n.startOfLease(inst, spec)); err != nil {
		if inst.death != nil {
			err = deathError(*inst.death, err)
		}
		if !n.undo(inst) {
			n.cfg.Log.WarnContext(ctx, "an instance of a build is still being ended", "instance", inst.spec.Instance)
		}
		return nil, err
	}
	n.work.Go(func() { n.tend(inst) })
	return l, nil
}

func (n *Node) startOfLease(inst *instance, spec BootSpec) start {
	return start{
		room: func() error { return n.roomFor("a build") },
		find: func(context.Context) (source, error) {
			record := cay.Snapshot{Root: spec.Digest, Limits: spec.Limits, Boot: spec.Boot}
			return source{record: record, root: spec.Root, args: spec.Args, cold: true}, nil
		},
		callInit: func(ctx context.Context, _ source) (guest.InitReply, error) {
			if err := n.awaitPort(ctx, inst, guest.AgentPort, bootTimeout); err != nil {
				return guest.InitReply{}, err
			}
			reply, err := n.sendInit(ctx, inst, "", buildSettings(spec))
			inst.protocol = reply.Protocol
			return reply, err
		},
		failed: func(ctx context.Context, step string, err error) error {
			if off := calledOff(ctx, err, "the build was called off"); off != nil {
				return off
			}
			return failure(err, "boot the sandbox of the build: "+step)
		},
	}
}

// buildSettings are what an agent is told in the instance of a build.
func buildSettings(spec BootSpec) guest.Init {
	in := guest.Init{
		Mode: guest.ModeBuild, TemplateEnv: spec.Boot.Env, Timestamp: time.Now(),
		DefaultUser: spec.Boot.User, DefaultDir: spec.Boot.Dir,
		CPUs: spec.Limits.CPUs, MemoryMB: spec.Limits.MemoryMB, DiskMB: spec.Limits.DiskMB,
		Mounts: guestMounts(spec.Volumes),
	}
	if in.TemplateEnv == nil {
		in.TemplateEnv = map[string]string{}
	}
	if in.DefaultUser == "" {
		in.DefaultUser, in.DefaultDir = guest.User, guest.Home
	}
	return in
}

// awaitPort waits for GET /health of a port inside.
func (n *Node) awaitPort(ctx context.Context, inst *instance, port int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := n.cfg.Ready(ctx, inst.slot, port); err != nil {
		return cay.Wrap(cay.Unavailable, err, "port %d of the new root was not ready within %s", port, limit)
	}
	return nil
}

// end tells the holder that the instance is over, and how.
func (l *Lease) end(d cay.Death) {
	l.death = d
	close(l.died)
}

// Addr is the address at which the host reaches the instance.
func (l *Lease) Addr() netip.Addr { return l.inst.slot.Addr }

// Died is closed when the instance is over.
func (l *Lease) Died() <-chan struct{} { return l.died }

// deathError is the error of work in an instance of a build that ended under
// it. More memory cures one end only: the others carry the engine's evidence.
func deathError(d cay.Death, err error) error {
	if d.Cause == cay.CauseOutOfMemory {
		return cay.Wrap(cay.Exhausted, err, "the sandbox of the build died: it was out of memory").
			WithHint("give the template more memory")
	}
	text := "the sandbox of the build died: " + string(d.Cause)
	if d.Detail != "" {
		text += " (" + d.Detail + ")"
	}
	return cay.Wrap(cay.Internal, err, "%s", text).WithHint("try again; the server's log says more")
}

// Ready waits until a port inside answers GET /health, or the instance is over.
func (l *Lease) Ready(ctx context.Context, port int, limit time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.died:
			cancel()
		case <-ctx.Done():
		}
	}()
	return l.Explain(l.n.awaitPort(ctx, l.inst, port, limit))
}

// Explain returns the error of work in the instance with the instance's death
// as its reason, where it died. A broken connection comes before the news of
// the death, so an error that may be one waits for that.
func (l *Lease) Explain(err error) error {
	if err == nil {
		return nil
	}
	var ours *cay.Error
	patience := time.Duration(0)
	if !errors.As(err, &ours) || ours.Kind == cay.Unavailable {
		patience = newsPatience
	}
	select {
	case <-l.died:
	default:
		select {
		case <-l.died:
		case <-time.After(patience):
			return err
		}
	}
	if l.death.Cause == cay.CauseAsked { // by its holder
		return err
	}
	return deathError(l.death, err)
}

// Changes streams a tar of the files that differ from the root image, as the
// engine does. No other call on the lease may come before its end.
func (l *Lease) Changes(ctx context.Context) (io.ReadCloser, error) {
	return l.n.cfg.Engine.Changes(ctx, l.inst.spec.Instance)
}

// Save takes a memory snapshot of the instance, which is over then. record
// names the snapshot and its team. It is committed after ready, which may be
// nil, has returned: a root image may still be on its way to the disk.
func (l *Lease) Save(ctx context.Context, record cay.Snapshot, ready func() error) (s cay.Snapshot, err error) {
	n := l.n
	if len(l.inst.spec.Volumes) > 0 { // each sandbox made of it would mount them
		return s, cay.Errorf(cay.Invalid, "an instance with volumes cannot become a template")
	}
	tmp, err := n.cfg.Snapshots.Begin()
	if err != nil {
		return s, err
	}
	defer func() {
		if err := n.cfg.Snapshots.Abort(tmp); err != nil {
			n.cfg.Log.WarnContext(ctx, "an unfinished snapshot could not be removed", "path", tmp, "err", err)
		}
	}()
	err = n.askTurn(ctx, l.inst.spec.Instance, func(inst *instance) (bool, error) {
		var err error
		s, err = n.cfg.Engine.Checkpoint(context.Background(), inst.spec.Instance, tmp, engine.Ends)
		return true, err
	})
	if err == nil && ready != nil {
		err = ready()
	}
	if err != nil {
		return s, err
	}
	l.inst.sign(&s, record)
	if err := n.cfg.Snapshots.Commit(tmp, s); err != nil {
		return s, err
	}
	n.learnTemplate(s.ID, 0)
	return s, nil
}

// Return ends the instance and gives back all that it had. It may be called
// again. An end that takes long goes on after it.
func (l *Lease) Return() {
	l.inst.stop(asked(cay.CauseAsked))
	patience := time.NewTimer(returnPatience)
	defer patience.Stop()
	select {
	case <-l.inst.gone:
	case <-l.n.ctx.Done(): // the next node removes it
	case <-patience.C:
		l.n.cfg.Log.Warn("an instance of a build is still being ended", "instance", l.inst.spec.Instance)
	}
}

// ReadFiles visits the files of a snapshot that was taken of a sandbox, as
// Engine.ReadFiles does. The caller knows that the snapshot stays meanwhile.
func (n *Node) ReadFiles(ctx context.Context, id cay.SnapshotID, visit func(h *tar.Header, body io.Reader) error) error {
	defer n.cfg.Snapshots.Use(id)()
	dir, _, err := n.readableFiles(ctx, id)
	if err != nil {
		return err
	}
	return n.cfg.Engine.ReadFiles(dir, visit)
}

// CanRestore returns nil when sandboxes can start from a snapshot here, or
// Conflict with the reason.
func (n *Node) CanRestore(s cay.Snapshot) error { return n.cfg.Engine.CanRestore(s) }

// EngineHash names the build of the engine that starts new instances. A memory
// snapshot depends on it, so the keys of builds name it.
func (n *Node) EngineHash() string { return n.cfg.Engine.Fingerprint().Hash }
