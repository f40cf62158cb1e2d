package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/engine"
	"github.com/cay-run/cay/internal/guest"
	guestcmd "github.com/cay-run/cay/internal/guest/command"
	"github.com/cay-run/cay/internal/vnet"
)

const (
	bootTime = 2 * time.Minute
	warmTime = 5 * time.Minute
	readMost = 8 << 20 // bytes of a script's output
	lineMost = 8 << 10
)

// box is a sandbox that a build works in.
type box struct {
	b        *Builder
	id       cay.InstanceID
	dir      string
	slot     vnet.Slot
	agent    *guest.Client
	protocol int
	http     *http.Client
	url      string
	rpc      processconnect.ProcessClient
	died     chan struct{} // closed when the instance is over
	death    cay.Death     // set before that
	undo     []func() error
}

// boot starts a sandbox from a root image and waits until its agent has its
// settings. Nothing is left of it after an error.
func (b *Builder) boot(ctx context.Context, image, name string, setup cay.Setup, limits cay.Limits) (_ *box, err error) {
	x := &box{b: b, id: cay.NewInstanceID(), died: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(x.explain(err), x.close())
		}
	}()
	x.dir = filepath.Join(b.work, string(x.id))
	reserved := filepath.Join(x.dir, "reserved")
	if err := os.MkdirAll(reserved, 0o755); err != nil {
		return nil, cay.Wrap(cay.Internal, err, "make %s", reserved)
	}
	x.later(func() error { return os.RemoveAll(x.dir) })
	if x.slot, err = b.cfg.Net.Acquire(ctx); err != nil {
		return nil, err
	}
	always := context.WithoutCancel(ctx) // cleaning up goes on when the caller has gone
	x.later(func() error { return b.cfg.Net.Release(always, x.slot) })
	if b.cfg.Names != nil {
		b.cfg.Names.Set(x.slot.Addr, cay.InstanceSpec{Instance: x.id, Network: cay.DefaultNetwork()})
		x.later(func() error { b.cfg.Names.Drop(x.slot.Addr); return nil })
	}
	if err := b.cfg.Net.Apply(ctx, x.slot, cay.DefaultNetwork()); err != nil {
		return nil, err
	}
	if len(setup.Args) == 0 {
		setup.Args = []string{guest.AgentPath}
	}
	if err := b.cfg.Engine.Boot(ctx, engine.BootSpec{
		ID: x.id, Root: image, Digest: name, Args: setup.Args, Limits: limits,
		Dir: x.dir, Reserved: reserved, Net: engine.Net{Namespace: x.slot.Namespace},
	}); err != nil {
		return nil, err
	}
	x.later(func() error { return b.cfg.Engine.Kill(always, x.id) })
	deaths, err := b.cfg.Engine.Watch(x.id)
	if err != nil {
		return nil, err
	}
	go func() {
		x.death = <-deaths
		close(x.died)
	}()
	x.connect()
	return x, x.introduce(ctx, setup, limits)
}

func (x *box) later(f func() error) { x.undo = append(x.undo, f) }

// close ends the sandbox and gives back what it had. It may be called again.
func (x *box) close() error {
	var errs []error
	for i := len(x.undo) - 1; i >= 0; i-- {
		errs = append(errs, x.undo[i]())
	}
	x.undo = nil
	return errors.Join(errs...)
}

// explain says of an error that the sandbox is over, where that is why.
func (x *box) explain(err error) error {
	if x == nil || err == nil {
		return err
	}
	var ours *cay.Error
	patience := time.Duration(0)
	if !errors.As(err, &ours) || ours.Kind == cay.Unavailable {
		patience = time.Second // a broken connection is seen before the death
	}
	select {
	case <-x.died:
	case <-time.After(patience):
		return err
	}
	text := "the sandbox of the build died"
	if x.death.Cause == cay.CauseOutOfMemory {
		text += ": it was out of memory"
	}
	return cay.Wrap(cay.Exhausted, err, "%s", text).WithHint("give the template more memory")
}

func (x *box) connect() {
	x.http = &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, DisableCompression: true,
	}}
	x.url = "http://" + net.JoinHostPort(x.slot.Addr.String(), strconv.Itoa(guest.AgentPort))
	x.rpc = guestcmd.NewClient(x.http, x.url)
	x.agent = guest.NewClient(x.slot.Addr)
}

// disconnect drops all connections, so that no snapshot holds one.
func (x *box) disconnect() {
	x.agent.Close()
	x.http.CloseIdleConnections()
}

// introduce waits for the agent and tells it what processes start with.
func (x *box) introduce(ctx context.Context, setup cay.Setup, limits cay.Limits) error {
	if err := x.waitReady(ctx, guest.AgentPort, bootTime); err != nil {
		return err
	}
	in := guest.Init{
		Mode: guest.ModeBuild, TemplateEnv: setup.Env, Timestamp: time.Now(),
		DefaultUser: setup.User, DefaultDir: setup.Dir, CABundle: x.b.cfg.Authority,
		CPUs: limits.CPUs, MemoryMB: limits.MemoryMB, DiskMB: limits.DiskMB,
	}
	if in.TemplateEnv == nil {
		in.TemplateEnv = map[string]string{}
	}
	if in.DefaultUser == "" {
		in.DefaultUser, in.DefaultDir = guest.User, guest.Home
	}
	reply, err := x.agent.Init(ctx, "", in)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "the agent in the new root did not take its settings")
	}
	x.protocol = reply.Protocol
	for _, port := range setup.Ports {
		if err := x.waitReady(ctx, port, warmTime); err != nil {
			return err
		}
	}
	return nil
}

func (x *box) waitReady(ctx context.Context, port int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	go func() {
		select {
		case <-x.died:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := x.agent.WaitReady(ctx, port); err != nil {
		return cay.Wrap(cay.Unavailable, err, "port %d of the new root was not ready within %s", port, limit)
	}
	return nil
}

// command is a program to run inside.
type command struct {
	user, dir string
	env       map[string]string
	args      []string
	line      func(stream, line string) // gets output; may be nil
}

// exit is how a command ended that did not succeed.
type exit = guestcmd.Exit

// run runs a command to its end, as guestcmd.Run does.
func (x *box) run(ctx context.Context, c command) error {
	out, errs := lines{stream: "stdout", to: c.line}, lines{stream: "stderr", to: c.line}
	defer out.flush()
	defer errs.flush()
	return guestcmd.Run(ctx, x.rpc, guestcmd.Command{
		User: c.user, Dir: c.dir, Env: c.env, Args: c.args,
		Output: func(stdout, stderr []byte) {
			out.write(stdout)
			errs.write(stderr)
		},
	})
}

// shell runs a script as root and returns what it wrote; arguments are $1 and
// so on.
func (x *box) shell(ctx context.Context, script string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	err := x.run(ctx, command{
		user: "root", dir: "/", args: append([]string{"/bin/sh", "-e", "-c", script, "cay"}, args...),
		line: func(stream, line string) {
			to := &out
			if stream == "stderr" {
				to = &errs
			}
			if to.Len() < readMost {
				to.WriteString(line + "\n")
			}
		},
	})
	var failed *exit
	if errors.As(err, &failed) {
		text := bytes.TrimSpace(errs.Bytes())
		return "", cay.Errorf(cay.Invalid, "%s: %.500s", failed.Status, text)
	}
	return string(bytes.TrimSpace(out.Bytes())), err
}

// unpack has the agent unpack a tar into a directory; all of it belongs to the
// user.
func (x *box) unpack(ctx context.Context, user, dir string, archive io.Reader) error {
	q := url.Values{"path": {dir}, "username": {user}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url+"/files/tar?"+q.Encode(), archive)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-tar")
	resp, err := x.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil || resp.StatusCode == http.StatusOK {
		return err
	}
	var told struct{ Message string }
	if json.Unmarshal(text, &told) != nil || told.Message == "" {
		told.Message = fmt.Sprintf("the agent answered %d", resp.StatusCode)
	}
	return cay.Errorf(cay.Invalid, "%.500s", told.Message)
}

// lines cuts a stream into lines.
type lines struct {
	stream string
	to     func(stream, line string)
	part   []byte
}

func (l *lines) write(p []byte) {
	if l.to == nil {
		return
	}
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.part = append(l.part, p...)
			if len(l.part) > lineMost {
				l.flush()
			}
			return
		}
		l.part = append(l.part, p[:i]...)
		p = p[i+1:]
		l.flush()
	}
}

// flush passes a line on. Of what a progress bar wrote, the last counts.
func (l *lines) flush() {
	if len(l.part) == 0 {
		return
	}
	line := bytes.TrimRight(l.part, "\r")
	if i := bytes.LastIndexByte(line, '\r'); i >= 0 {
		line = line[i+1:]
	}
	if l.to != nil && len(line) > 0 {
		l.to(l.stream, string(line))
	}
	l.part = l.part[:0]
}
