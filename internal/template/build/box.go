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
	"strconv"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/guest"
	guestcmd "github.com/cay-run/cay/internal/guest/command"
	"github.com/cay-run/cay/internal/machine/node"
)

const (
	warmTime = 5 * time.Minute
	readMost = 8 << 20 // bytes of a script's output
	lineMost = 8 << 10
)

// box is a borrowed instance that a build works in.
type box struct {
	lease *node.Lease
	mixed bool // it has volumes
	http  *http.Client
	url   string
	rpc   processconnect.ProcessClient
}

// enter boots an instance from a root image and returns when its agent has its
// settings and all ports that the setup names are up. Nothing is left of it
// after an error.
func (r *run) enter(ctx context.Context, image, name string, setup cay.Setup, limits cay.Limits, volumes []cay.VolumeMount) (*box, error) {
	lease, err := r.cfg.Node.Borrow(ctx, node.BootSpec{
		Root: image, Digest: name, Args: setup.Args, Boot: setup.Boot(),
		Team: r.spec.Team, Limits: limits, Network: cay.DefaultNetwork(), Volumes: volumes,
	})
	if err != nil {
		return nil, err
	}
	for _, port := range setup.Ports {
		if err := lease.Ready(ctx, port, warmTime); err != nil {
			lease.Return()
			return nil, err
		}
	}
	x := &box{lease: lease, mixed: len(volumes) > 0, http: &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, DisableCompression: true,
	}}}
	x.url = "http://" + net.JoinHostPort(lease.Addr().String(), strconv.Itoa(guest.AgentPort))
	x.rpc = guestcmd.NewClient(x.http, x.url)
	return x, nil
}

// close gives the instance back. It may be called again.
func (x *box) close() {
	x.disconnect()
	x.lease.Return()
}

// disconnect drops all connections, so that no snapshot holds one.
func (x *box) disconnect() { x.http.CloseIdleConnections() }

// explain says of an error that the instance is over, where that is why.
func (x *box) explain(err error) error {
	if x == nil {
		return err
	}
	return x.lease.Explain(err)
}

// command is a program to run inside.
type command struct {
	user, dir string
	env       map[string]string
	args      []string
	line      func(stream, line string) // gets output; may be nil
	started   func()                    // is called when it runs; may be nil
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
		Started: c.started,
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

// rest stops the services that run inside, so that nothing writes their files
// while they are read, and returns what starts those again. An agent without
// services has none to stop.
func (x *box) rest(ctx context.Context) (wake func(context.Context) error, err error) {
	none := func(context.Context) error { return nil }
	var told struct{ Stopped int }
	status, err := x.post(ctx, guest.RestPath, &told)
	if err != nil || status == http.StatusNotFound || told.Stopped == 0 {
		return none, err
	}
	return func(ctx context.Context) error {
		_, err := x.post(ctx, guest.WakePath, nil)
		return err
	}, nil
}

// post calls a route of the agent's without a body and decodes its answer.
func (x *box) post(ctx context.Context, path string, out any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url+path, nil)
	if err != nil {
		return 0, err
	}
	resp, err := x.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && out != nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, out)
	}
	return resp.StatusCode, err
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
