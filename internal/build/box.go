package build

import (
	"bytes"
	"context"
	"encoding/base64"
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

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/engine"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/vnet"
)

const (
	bootTime = 2 * time.Minute
	warmTime = 5 * time.Minute
	readMost = 8 << 20 // bytes of one message of the agent's
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
	x.rpc = processconnect.NewProcessClient(x.http, x.url, connect.WithReadMaxBytes(readMost))
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
		DefaultUser: setup.User, DefaultDir: setup.Dir,
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
type exit struct{ status string }

func (e *exit) Error() string { return e.status }

// run runs a command to its end. The error is *exit where the command failed,
// a *connect.Error where it could not be started. A deadline of ctx ends the
// command; with none, the command goes on when ctx ends.
func (x *box) run(ctx context.Context, c command) error {
	request := connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: c.args[0], Args: c.args[1:], Envs: c.env, Cwd: &c.dir},
	})
	request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.user+":")))
	stream, err := x.rpc.Start(ctx, request)
	if err != nil {
		return err
	}
	defer stream.Close()
	out, errs := lines{stream: "stdout", to: c.line}, lines{stream: "stderr", to: c.line}
	defer out.flush()
	defer errs.flush()
	for stream.Receive() {
		event := stream.Msg().GetEvent()
		out.write(event.GetData().GetStdout())
		errs.write(event.GetData().GetStderr())
		if end := event.GetEnd(); end != nil {
			if end.GetExitCode() == 0 && end.GetExited() {
				return nil
			}
			return &exit{end.GetStatus()}
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
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
		return "", cay.Errorf(cay.Invalid, "%s: %.500s", failed.status, text)
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
