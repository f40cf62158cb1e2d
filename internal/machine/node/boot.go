package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/command"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// choose decides how an instance starts from a snapshot: with its memory, or
// by booting from its files. It boots when the spec asks for that, when there is
// nothing but files, and when no engine here can restore the memory any more: a
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

// Starts says why no start from a snapshot succeeds here: no engine and no processor goes on with
// its memory, and it has no files of its own.
func (n *Node) Starts(_ context.Context, s cay.Snapshot) error {
	_, _, err := n.choose(cay.InstanceSpec{}, s)
	return err
}

// better refuses memory that this machine's processor cannot go on with where another's can:
// here it would start from its files.
func (n *Node) better(ctx context.Context, s cay.Snapshot) error {
	why := n.Fits(ctx, s)
	if why == nil || n.cfg.Elsewhere == nil || !n.cfg.Elsewhere(ctx, s.CPUFeatures) {
		return nil
	}
	return cay.Wrap(cay.Unavailable, why, "another node can go on with it: %s", message(why)).WithCode(cay.CodeProcessor)
}

// Fits says which feature that a snapshot's memory relies on this machine's processor lacks:
// Conflict with CodeProcessor.
func (n *Node) Fits(_ context.Context, s cay.Snapshot) error {
	if s.Kind != cay.MemorySnapshot {
		return nil
	}
	if err := n.cfg.Engine.CanRestore(s); cay.CodeOf(err) == cay.CodeProcessor {
		return err
	}
	return nil
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
		Args:     from.args,
		From:     from.dir,
		Limits:   limits,
		Dir:      filepath.Join(n.journal(id), engineDir),
		Reserved: n.reserved(id),
		Net:      engine.Net{Namespace: inst.slot.Namespace},
		Docker:   from.record.Boot.Docker,
	}
}

// check starts to compare what a start reads of its snapshot with the record.
// It goes on beside the start, which would take as long without it; no request
// reaches an instance before it is done.
func (n *Node) check(ctx context.Context, from source) (done func() error) {
	if from.arrives { // each piece is checked before it is written
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	compare := n.cfg.Snapshots.Check
	if from.loading == engine.Demand {
		compare = n.cfg.Snapshots.CheckOnce
	}
	go func() { result <- compare(ctx, from.record, engine.Reads(from.record, from.cold)) }()
	return sync.OnceValue(func() error {
		defer cancel()
		return <-result
	})
}

// bootTimeout bounds how long what a template serves may take to be up after
// a boot: a kernel imports its libraries then.
const bootTimeout = 2 * time.Minute

// bootIdentity is the body of /init for an agent that has just booted: the
// sandbox's identity, and the settings of its template's build.
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

const (
	// startedWithin bounds how long a template's start command may take to be up
	// after a boot. It is less than a create may take in all.
	startedWithin = 30 * time.Second
	readyTry      = 10 * time.Second // that one try of the ready command may take
	readyPause    = 50 * time.Millisecond
	readyMost     = time.Second
	dialWithin    = 30 * time.Second // no caller tries again, and a host may stand still for seconds
)

// startAgain has a booted instance run the start command of its template, as
// when that was built, and waits until the ready command says that it is up.
// A failure is the template's affair, or that of a user's change to the command:
// the sandbox is whole, and the notice says what it lacks.
func (n *Node) startAgain(ctx context.Context, inst *instance, b cay.Boot) (notice string, err error) {
	in := b.StartContext()
	if b.StartIn == nil { // the agent knows the template's variables, and the sandbox's own go first
		in.Env = nil
	}
	run := func(ctx context.Context, line string, stays bool) error {
		return n.cfg.Shell(ctx, inst.slot, Line{Text: line, Context: in, Token: inst.spec.AccessToken, Stays: stays})
	}
	if b.Start == "" {
		return "", nil
	}
	if err := run(ctx, b.Start, true); err != nil {
		return noticeOf("the template's start command could not be started", err), ctx.Err()
	}
	if b.Ready == "" {
		return "", nil
	}
	within, cancel := context.WithTimeout(ctx, startedWithin)
	defer cancel()
	for pause := readyPause; ; pause = min(2*pause, readyMost) {
		try, stop := context.WithTimeout(within, readyTry)
		err := run(try, b.Ready, false)
		stop()
		if err == nil {
			return "", nil
		}
		select {
		case <-within.Done():
			return noticeOf("the template's ready command did not succeed within "+startedWithin.String(), err), ctx.Err()
		case <-time.After(pause):
		}
	}
}

func joinNotices(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func noticeOf(what string, err error) string {
	var how *command.Exit
	if errors.As(err, &how) {
		return fmt.Sprintf("%s: %.200s", what, how.Status)
	}
	return what
}

// Line is a line for a guest's shell.
type Line struct {
	Text    string
	Context cay.CommandContext
	Token   string // that the agent has
	Stays   bool   // it goes on; the caller waits for its start only
}

// shell runs a line in a real guest, as the build of a template does.
func shell(ctx context.Context, slot vnet.Slot, l Line) error {
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: dialWithin}).DialContext, DisableCompression: true}
	defer transport.CloseIdleConnections()
	agent := command.NewClient(&http.Client{Transport: transport},
		"http://"+net.JoinHostPort(slot.Addr.String(), strconv.Itoa(guest.AgentPort)))
	c := command.Command{
		User: l.Context.User, Dir: l.Context.Dir, Env: l.Context.Env, Token: l.Token,
		Args: []string{"/bin/bash", "-l", "-c", l.Text},
	}
	if l.Stays {
		return command.Start(ctx, agent, c)
	}
	return command.Run(ctx, agent, c)
}

// runCode runs a line of Python in a real guest.
func runCode(ctx context.Context, slot vnet.Slot, code string) error {
	client := toagent.New(slot.Addr)
	defer client.Close()
	return client.Execute(ctx, code)
}

// rehearse has the interpreter of a guest touch what a first execution touches.
func rehearse(ctx context.Context, slot vnet.Slot) error {
	client := toagent.New(slot.Addr)
	defer client.Close()
	return client.Rehearse(ctx)
}

// waitReady waits for GET /health of a port inside.
func waitReady(ctx context.Context, slot vnet.Slot, port int) error {
	client := toagent.New(slot.Addr)
	defer client.Close()
	return client.WaitReady(ctx, port)
}
