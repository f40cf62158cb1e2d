package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// address is the abstract socket at which the agent answers systemctl. It is part
// of the network namespace of the sandbox; the kernel says who calls.
const address = "@cay/services"

const (
	maxRequest = 64 << 10
	maxCallers = 64
	askWithin  = 10 * time.Second // for a request to come whole
)

// request is one call of systemctl.
type request struct {
	Verb    string   `json:"verb"`
	Units   []string `json:"units,omitempty"`
	Signal  int      `json:"signal,omitempty"`
	NoBlock bool     `json:"noBlock,omitempty"`
}

// reply is the answer.
type reply struct {
	Error string `json:"error,omitempty"`
	Units []Info `json:"units,omitempty"`
}

// Info is what there is to say of a unit.
type Info struct {
	Name, Description, Kind, Load, Enabled, Active, Sub string
	Result, Said, Fragment, Source, Type, Error         string
	DropIns                                             []string
	Since                                               time.Time
	MainPID, Restarts, ExitCode, Exited                 int
	Processes                                           []int
	CanReload                                           bool
	Sets                                                map[string]string // of the file, for show
}

// readers are what every account may ask.
var readers = map[string]bool{"info": true, "list": true}

// Serve answers systemctl until ctx ends.
func (m *Manager) Serve(ctx context.Context) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // the end of the listener is what is wanted
	defer stop()
	places := make(chan struct{}, maxCallers)
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return ctx.Err()
		}
		if err != nil {
			continue
		}
		places <- struct{}{}
		go func() {
			defer func() { conn.Close(); <-places }()
			m.answer(conn)
		}()
	}
}

func (m *Manager) answer(conn *net.UnixConn) {
	uid, err := caller(conn)
	if err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(askWithin))
	var q request
	if err := json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&q); err != nil {
		return
	}
	out := reply{Error: "Interactive authentication required: services are root's, try sudo."}
	if uid == 0 || readers[q.Verb] {
		out = m.carryOut(q)
	}
	_ = json.NewEncoder(conn).Encode(out) // the caller may have gone
}

// caller is the account at the other end, as the agent's user namespace has it.
func caller(conn *net.UnixConn) (uid uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(controlErr, err); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

func (m *Manager) carryOut(q request) reply {
	for _, name := range q.Units {
		if !validName(fullName(name)) {
			return reply{Error: fmt.Sprintf("%q is no name of a unit", name)}
		}
	}
	var do func() error
	switch q.Verb {
	case "info":
		var out reply
		for _, name := range q.Units {
			out.Units = append(out.Units, m.info(name))
		}
		return out
	case "list":
		return reply{Units: m.list()}
	case "start":
		do = func() error { return m.Start(q.Units...) }
	case "stop":
		do = func() error { return m.Stop(q.Units...) }
	case "restart":
		do = func() error { return m.Restart(q.Units...) }
	case "reload":
		do = func() error { return m.Reload(q.Units...) }
	case "kill":
		do = func() error { return m.Kill(syscall.Signal(q.Signal), q.Units...) }
	case "reset-failed":
		do = func() error { m.ResetFailed(q.Units...); return nil }
	case "daemon-reload":
		do = func() error { m.ReloadUnits(); return nil }
	default:
		return reply{Error: "unknown verb " + q.Verb}
	}
	if q.NoBlock {
		go func() { _ = do() }() // the journal has how it went
		return reply{}
	}
	if err := do(); err != nil {
		return reply{Error: err.Error()}
	}
	return reply{}
}

// info describes a unit.
func (m *Manager) info(name string) Info {
	name = fullName(name)
	u := m.lib.load(name)
	out := Info{
		Name: u.name, Kind: u.kind, Load: u.load, Description: u.description(), Fragment: u.path, Source: u.script, DropIns: u.extra,
		Enabled: m.lib.isEnabled(name), Active: inactive, Sub: "dead", Sets: map[string]string{},
	}
	if u.err != nil {
		out.Error = u.err.Error()
	}
	if c, err := u.service(); err == nil && u.kind == "service" {
		out.Type, out.CanReload = c.kind, len(c.exec["ExecReload"]) > 0 || c.kind == "notify-reload"
	} else if err != nil && u.kind == "service" && u.load == loaded {
		out.Error = err.Error()
	}
	for section, keys := range u.set {
		if section != "Install" {
			for key := range keys {
				out.Sets[key] = u.expand(u.set.last(section, key))
			}
		}
	}
	m.mu.Lock()
	s := m.units[u.name]
	if s != nil {
		out.Active, out.Sub, out.Result, out.Said, out.Since = s.active, s.sub, s.result, s.said, s.since
		out.Restarts, out.ExitCode, out.Exited = s.restarts, s.exitCode, s.exited
	}
	var r *activation
	if s != nil && s.run != nil {
		r = s.run
		out.MainPID = r.pid
	}
	m.mu.Unlock()
	if r != nil {
		out.Processes = m.members(r)
	}
	if slices.Contains(always, u.name) {
		out.Active, out.Sub = active, "active"
		if out.Load == notFound {
			out.Load = loaded
		}
	}
	return out
}

// list describes the units that were started, and those that are enabled.
func (m *Manager) list() []Info {
	names := map[string]bool{}
	m.mu.Lock()
	for n, s := range m.units {
		if s.active != inactive || s.unit != nil && s.unit.load == loaded {
			names[n] = true
		}
	}
	m.mu.Unlock()
	for _, n := range m.lib.atBoot() {
		names[m.lib.load(n).name] = true
	}
	var out []Info
	for n := range names {
		out = append(out, m.info(n))
	}
	return out
}

// ask calls the agent.
func ask(q request) (reply, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return reply{}, err
	}
	var out reply
	err = json.NewDecoder(conn).Decode(&out)
	return out, err
}
