package node

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/engine"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/vnet"
)

// choose decides how an instance starts from a snapshot: with its memory, or
// by booting from its files. That is done when it was asked for, when there is
// nothing but files, and when nothing here can restore the memory any more: a
// notice says so then.
func (n *Node) choose(spec cay.InstanceSpec, s cay.Snapshot) (cold bool, notice string, err error) {
	if spec.FilesOnly || s.Kind == cay.FilesSnapshot {
		return true, "", n.cfg.Engine.CanBoot(s)
	}
	err = n.cfg.Engine.CanRestore(s)
	if cay.KindOf(err) != cay.Conflict || n.cfg.Engine.CanBoot(s) != nil {
		return false, "", err
	}
	return true, "started from its files, without its memory: " + message(err), nil
}

// bootSpec is a start from a snapshot's files.
func (n *Node) bootSpec(inst *instance, from source) engine.BootSpec {
	id := inst.spec.Instance
	limits := inst.spec.Limits
	limits.DiskMB = from.record.Limits.DiskMB
	return engine.BootSpec{
		ID:       id,
		Root:     from.root,
		Digest:   from.record.Root,
		From:     from.dir,
		Limits:   limits,
		Dir:      filepath.Join(n.journal(id), engineDir),
		Reserved: n.reserved(id),
		Net:      engine.Net{Namespace: inst.slot.Namespace},
	}
}

// check starts to compare what a start reads of its snapshot with the record.
// It goes on beside the start, which would take as long without it; nobody
// reaches an instance before it is done.
func (n *Node) check(ctx context.Context, from source) (done func() error) {
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- n.cfg.Snapshots.Check(ctx, from.record, engine.Reads(from.record, from.cold)) }()
	return sync.OnceValue(func() error {
		defer cancel()
		return <-result
	})
}

// bootTimeout bounds how long what a template serves may take to be up after
// a boot: a kernel imports its libraries then.
const bootTimeout = 2 * time.Minute

// bootIdentity is what an agent is told that knows nothing yet: who it is, and
// what it was told when its template was built.
func bootIdentity(spec cay.InstanceSpec, b cay.Boot) guest.Init {
	in := identity(spec)
	in.Mode = guest.ModeBuild
	in.TemplateEnv, in.DefaultUser, in.DefaultDir = b.Env, b.User, b.Dir
	if in.TemplateEnv == nil {
		in.TemplateEnv = map[string]string{}
	}
	return in
}

// warmUp waits until a booted instance serves what its template does.
func (n *Node) warmUp(ctx context.Context, slot vnet.Slot, b cay.Boot) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for _, port := range b.Ports {
		if err := n.cfg.Ready(ctx, slot, port); err != nil {
			return cay.Wrap(cay.Unavailable, err, "port %d is not up after its start from files", port).
				WithHint("the host may be overloaded; try again")
		}
	}
	return nil
}

// waitReady waits for GET /health of a port inside.
func waitReady(ctx context.Context, slot vnet.Slot, port int) error {
	client := guest.NewClient(slot.Addr)
	defer client.Close()
	return client.WaitReady(ctx, port)
}
