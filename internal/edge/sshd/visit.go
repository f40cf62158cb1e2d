package sshd

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/edge/doors"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/ticks"
)

// visit is a connection of a client that was let in.
type visit struct {
	server *Server
	conn   ssh.Conn
	who    caller
	by     []cay.Origins   // the parties that ask; none where they are not known
	log    *slog.Logger    // whose lines have the connection's id
	ctx    context.Context // done when the connection is
	cancel context.CancelFunc
	agent  processconnect.ProcessClient
	web    *http.Transport

	channels chan struct{}
	work     sync.WaitGroup
}

func newVisit(s *Server, conn ssh.Conn, who caller, log *slog.Logger) *visit {
	v := &visit{server: s, conn: conn, who: who, log: log, channels: make(chan struct{}, perConn)}
	v.ctx, v.cancel = context.WithCancel(s.ctx)
	v.web = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.cfg.Dial(ctx, who.sandbox, guest.AgentPort)
		},
		MaxResponseHeaderBytes: maxHead,
		DisableCompression:     true,
	}
	v.agent = processconnect.NewProcessClient(&http.Client{Transport: v.web}, "http://agent", agentOptions(v)...)
	return v
}

// each serves the channels of a visit beside each other, within their bound, until the
// client opens no more.
func (v *visit) each(channels <-chan ssh.NewChannel, serve func(ssh.NewChannel)) {
	for c := range channels {
		select {
		case v.channels <- struct{}{}:
		default:
			_ = c.Reject(ssh.ResourceShortage, "too many channels")
			continue
		}
		v.work.Go(func() {
			defer func() { <-v.channels }()
			serve(c)
		})
	}
}

// serve serves a visit to its end.
func (v *visit) serve(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	v.log.Debug("SSH begins", "sandbox", v.who.sandbox, "team", v.who.team)
	v.work.Go(func() { ssh.DiscardRequests(requests) }) // nothing is forwarded from inside to outside
	v.work.Go(v.askAlive)
	v.work.Go(v.keep)
	v.each(channels, v.open)
	v.cancel()
	v.conn.Close()
	v.work.Wait()
	v.web.CloseIdleConnections()
	v.log.Debug("SSH ends", "sandbox", v.who.sandbox)
}

// askAlive ends a connection whose other side is gone without a word.
func (v *visit) askAlive() {
	for range ticks.Every(v.ctx, aliveEvery) {
		late := time.AfterFunc(aliveWithin, func() { v.conn.Close() })
		_, _, err := v.conn.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			return
		}
	}
}

// keep puts the sandbox's end off while a client is connected.
func (v *visit) keep() {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-v.ctx.Done():
			return
		case <-tick.C:
			// A miss is no matter: the next one comes before the end.
			_ = v.server.cfg.Keep(v.ctx, v.who.team, v.who.sandbox)
		}
	}
}

func (v *visit) open(c ssh.NewChannel) {
	switch c.ChannelType() {
	case "session":
		if err := v.server.cfg.Enter(v.ctx, v.who.team, v.who.sandbox); err != nil {
			_ = c.Reject(ssh.ConnectionFailed, publicText(err))
			return
		}
		v.session(c)
	case "direct-tcpip":
		v.forward(c)
	case "direct-streamlocal@openssh.com":
		v.socket(c)
	default:
		_ = c.Reject(ssh.UnknownChannelType, "sessions, ports and sockets are offered")
	}
}

// publicText is the text that a caller gets for an error: never its cause.
func publicText(err error) string {
	if code := cay.CodeOf(err); code == cay.CodeCommandWaits || code == cay.CodeCommandDenied || code == cay.CodeApprovalLimit {
		return err.Error()
	}
	if cay.CodeOf(err) == cay.CodeNodeAway {
		return textAway
	}
	switch cay.KindOf(err) {
	case cay.NotFound:
		return "the sandbox is over"
	case cay.Exhausted, cay.Unavailable:
		return "the sandbox cannot run now"
	}
	return "nothing answers there"
}

// forwarded is what a client says of a port that it wants to reach (RFC 4254,
// 7.2).
type forwarded struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

// forward joins a channel to a port of the sandbox.
func (v *visit) forward(c ssh.NewChannel) {
	var to forwarded
	if ssh.Unmarshal(c.ExtraData(), &to) != nil || to.Port == 0 || to.Port > 65535 {
		_ = c.Reject(ssh.ConnectionFailed, "there is no such port")
		return
	}
	if !v.isSelf(to.Host) {
		_ = c.Reject(ssh.Prohibited, "only the sandbox's own ports are reached, as localhost")
		return
	}
	if err := doors.Closed(int(to.Port)); err != nil {
		_ = c.Reject(ssh.Prohibited, err.Error())
		return
	}
	if start, starts := doors.Forward(int(to.Port), v.who.user); starts {
		if err := v.mayStart(start); err != nil {
			_ = c.Reject(ssh.Prohibited, publicText(err))
			return
		}
	}
	conn, err := v.dial(int(to.Port))
	if err != nil {
		_ = c.Reject(ssh.ConnectionFailed, publicText(err))
		return
	}
	defer conn.Close()
	ch, requests, err := c.Accept()
	if err != nil {
		return
	}
	v.work.Go(func() { ssh.DiscardRequests(requests) })
	defer context.AfterFunc(v.ctx, func() { conn.Close() })()
	join(ch, &half{Conn: conn})
}

// socketed is what a client says of a socket that it wants to reach.
type socketed struct {
	Path         string
	Reserved     string
	ReservedPort uint32
}

// maxSocketPath is the kernel's bound for a socket's path.
const maxSocketPath = 107

// socket joins a channel to a Unix socket inside, through a program there: it is
// reached as the user, and nothing of the host's can be meant.
func (v *visit) socket(c ssh.NewChannel) {
	var to socketed
	if ssh.Unmarshal(c.ExtraData(), &to) != nil || !path.IsAbs(to.Path) || len(to.Path) > maxSocketPath || strings.ContainsRune(to.Path, 0) {
		_ = c.Reject(ssh.ConnectionFailed, "there is no such socket")
		return
	}
	if err := v.server.cfg.Enter(v.ctx, v.who.team, v.who.sandbox); err != nil {
		_ = c.Reject(ssh.ConnectionFailed, publicText(err))
		return
	}
	ch, requests, err := c.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	s := &session{v: v, ch: ch, started: true}
	s.ends.Go(func() {
		if v.server.cfg.Used != nil {
			v.server.cfg.Used(v.ctx, v.who.sandbox)
		}
		_, _ = s.follow(program{guest.AgentPath, []string{guest.JoinFlag, to.Path}}) // the caller sees the end
		ch.Close()
	})
	ssh.DiscardRequests(requests)
	s.hangUp()
	s.ends.Wait()
}

// dial connects to a port, and wakes the sandbox if that is what it takes.
func (v *visit) dial(port int) (net.Conn, error) {
	conn, err := v.server.cfg.Dial(v.ctx, v.who.sandbox, port)
	if cay.KindOf(err) != cay.NotFound {
		return conn, err
	}
	if err := v.server.cfg.Enter(v.ctx, v.who.team, v.who.sandbox); err != nil {
		return nil, err
	}
	return v.server.cfg.Dial(v.ctx, v.who.sandbox, port)
}

// isSelf reports whether a host means the sandbox itself.
func (v *visit) isSelf(host string) bool {
	if host == "localhost" || host == string(v.who.sandbox) {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && (a.Unmap().IsLoopback() || a.IsUnspecified())
}

// mayStart returns why a client may not start a program. It waits for the decision
// where a person is asked.
func (v *visit) mayStart(s cay.Start) error {
	if v.server.cfg.MayStart == nil || len(s.Command) == 0 {
		return nil
	}
	return v.server.cfg.MayStart(v.ctx, v.who.sandbox, s, v.by...)
}

// half ends what is sent on a connection that can, and breaks others.
type half struct{ net.Conn }

func (h *half) CloseWrite() error {
	if c, ok := h.Conn.(halfCloser); ok {
		return c.CloseWrite()
	}
	return h.Conn.Close()
}
