package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/calls"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/internal/guest"
)

const (
	shell       = "/bin/bash"
	maxEnv      = 64 // variables of a session
	maxEnvBytes = 16 << 10
	maxCommand  = 128 << 10
	pieceSize   = 32 << 10
	endWithin   = 5 * time.Second // for a process without a follower
	noStatus    = 255             // what ssh itself ends with when something broke
)

// session is a channel in which one program runs.
type session struct {
	v    *visit
	ch   ssh.Channel
	env  map[string]string
	size *process.PTY_Size // nil without a terminal

	mu      sync.Mutex
	pid     uint32 // 0 before it runs
	started bool
	resized *process.PTY_Size // asked for before it ran
	ends    sync.WaitGroup
}

// The payloads of requests (RFC 4254, 6).
type (
	ptyRequest struct {
		Term          string
		Columns, Rows uint32
		Width, Height uint32
		Modes         string
	}
	windowChange  struct{ Columns, Rows, Width, Height uint32 }
	envRequest    struct{ Name, Value string }
	textRequest   struct{ Text string }
	statusRequest struct{ Status uint32 }
)

// session serves a channel to its end.
func (v *visit) session(c ssh.NewChannel) {
	ch, requests, err := c.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	s := &session{v: v, ch: ch, env: map[string]string{}}
	for r := range requests {
		ok, run := s.request(r)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
		if run != nil {
			s.ends.Go(func() {
				s.run(*run)
				ch.Close() // ends requests
			})
		}
	}
	s.hangUp()
	s.ends.Wait()
}

// request answers one request; run is what is to be started now.
func (s *session) request(r *ssh.Request) (ok bool, run *program) {
	switch r.Type {
	case "env":
		return s.setEnv(r.Payload), nil
	case "pty-req":
		return s.setTerminal(r.Payload), nil
	case "window-change":
		return s.resize(r.Payload), nil
	case "signal":
		return s.signal(r.Payload), nil
	case "shell", "exec", "subsystem":
		p := s.program(r.Type, r.Payload)
		if p == nil || s.started {
			return false, nil
		}
		s.started = true
		return true, p
	}
	return false, nil
}

func (s *session) setEnv(payload []byte) bool {
	var e envRequest
	if ssh.Unmarshal(payload, &e) != nil || s.started || len(s.env) >= maxEnv || len(payload) > maxEnvBytes ||
		e.Name == "" || strings.ContainsAny(e.Name, "=\x00") || strings.ContainsRune(e.Value, 0) {
		return false
	}
	s.env[e.Name] = e.Value
	return true
}

// maxCells bounds a terminal: its cells are allocated inside.
const maxCells = 10_000

func sizeOf(columns, rows uint32) *process.PTY_Size {
	return &process.PTY_Size{Cols: min(max(columns, 1), maxCells), Rows: min(max(rows, 1), maxCells)}
}

func (s *session) setTerminal(payload []byte) bool {
	var p ptyRequest
	if ssh.Unmarshal(payload, &p) != nil || s.started {
		return false
	}
	s.size = sizeOf(p.Columns, p.Rows)
	if p.Term != "" && len(p.Term) < maxUser && !strings.ContainsRune(p.Term, 0) {
		s.env["TERM"] = p.Term
	}
	return true
}

func (s *session) resize(payload []byte) bool {
	var w windowChange
	if ssh.Unmarshal(payload, &w) != nil || s.size == nil {
		return false
	}
	s.mu.Lock()
	s.resized = sizeOf(w.Columns, w.Rows)
	pid := s.pid
	s.mu.Unlock()
	if pid != 0 {
		s.tellSize(pid)
	}
	return true
}

func (s *session) tellSize(pid uint32) {
	s.mu.Lock()
	size := s.resized
	s.mu.Unlock()
	if size == nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.v.ctx, endWithin)
	defer cancel()
	_, _ = s.v.agent.Update(ctx, connect.NewRequest(&process.UpdateRequest{ // it may be over
		Process: selector(pid), Pty: &process.PTY{Size: size},
	}))
}

// signals are those that the agent can send.
var signals = map[string]process.Signal{
	"TERM": process.Signal_SIGNAL_SIGTERM, "KILL": process.Signal_SIGNAL_SIGKILL,
}

func (s *session) signal(payload []byte) bool {
	var t textRequest
	if ssh.Unmarshal(payload, &t) != nil {
		return false
	}
	n, known := signals[t.Text]
	s.mu.Lock()
	pid := s.pid
	s.mu.Unlock()
	return known && pid != 0 && s.send(pid, n)
}

func (s *session) send(pid uint32, n process.Signal) bool {
	ctx, cancel := context.WithTimeout(s.v.server.ctx, endWithin)
	defer cancel()
	_, err := s.v.agent.SendSignal(ctx, connect.NewRequest(&process.SendSignalRequest{Process: selector(pid), Signal: n}))
	return err == nil
}

// hangUp ends a program whose caller is gone: a terminal's at once, because
// only that ends a shell, and others in their own way.
func (s *session) hangUp() {
	s.mu.Lock()
	pid := s.pid
	s.mu.Unlock()
	switch {
	case pid == 0:
	case s.size != nil:
		s.send(pid, process.Signal_SIGNAL_SIGKILL)
	default:
		s.send(pid, process.Signal_SIGNAL_SIGTERM)
	}
}

// program is what a session runs.
type program struct {
	path string
	args []string
}

// program is what a request wants run; nil for what is not offered.
func (s *session) program(kind string, payload []byte) *program {
	if kind == "shell" {
		if s.size == nil {
			return &program{shell, []string{"-l"}}
		}
		return &program{shell, []string{"-i", "-l"}}
	}
	var t textRequest
	switch {
	case ssh.Unmarshal(payload, &t) != nil || len(t.Text) > maxCommand || strings.ContainsRune(t.Text, 0):
		return nil
	case kind == "exec":
		return &program{shell, []string{"-c", t.Text}}
	case t.Text == "sftp":
		return &program{guest.AgentPath, []string{guest.SFTPFlag}}
	}
	return nil
}

// run runs a program to its end and tells its status.
func (s *session) run(p program) {
	if err := s.v.mayStart(s.asStart(p)); err != nil {
		fmt.Fprintf(s.ch.Stderr(), "cay: %s\r\n", strings.Map(printable, publicText(err)))
		_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(statusRequest{noStatus}))
		return
	}
	if s.v.server.cfg.Used != nil {
		s.v.server.cfg.Used(s.v.ctx, s.v.who.sandbox)
	}
	status, err := s.follow(p)
	if err != nil {
		if s.v.ctx.Err() == nil {
			s.v.log.Debug("an SSH session broke", "sandbox", s.v.who.sandbox, "err", err)
			fmt.Fprintf(s.ch.Stderr(), "cay: %s\r\n", sessionError(err))
		}
		status = noStatus
	}
	_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(statusRequest{status}))
}

// asStart is what a person is asked about. Files over SFTP are no command.
func (s *session) asStart(p program) cay.Start {
	if p.path == guest.AgentPath {
		return cay.Start{}
	}
	return cay.Start{Command: append([]string{p.path}, p.args...), Unseen: s.size != nil, User: s.v.who.user, Env: s.env}
}

// sessionError is the text that a caller gets when a program could not be
// started or followed. The agent's own text speaks of the sandbox alone, so it
// is shown.
func sessionError(err error) string {
	var e *connect.Error
	if errors.As(err, &e) && connect.IsWireError(err) {
		return strings.Map(printable, e.Message())
	}
	return "the sandbox does not answer, or is over"
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return ' '
	}
	return r
}

// follow starts a program, feeds it, and passes on what it writes.
func (s *session) follow(p program) (status uint32, err error) {
	ctx, cancel := context.WithCancel(s.v.ctx)
	defer cancel()
	input := true
	request := &process.StartRequest{
		Process: &process.ProcessConfig{Cmd: p.path, Args: p.args, Envs: s.env}, Stdin: &input,
	}
	if s.size != nil {
		request.Pty = &process.PTY{Size: s.size}
	}
	stream, err := s.v.agent.Start(ctx, connect.NewRequest(request))
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	for stream.Receive() {
		e := stream.Msg().GetEvent()
		if start := e.GetStart(); start != nil && s.begun(start.GetPid()) {
			s.tellSize(start.GetPid())
			s.ends.Go(func() { s.feed(ctx, start.GetPid()) })
		}
		if end := e.GetEnd(); end != nil {
			s.mu.Lock()
			s.pid = 0
			s.mu.Unlock()
			return statusOf(end), nil
		}
		if err := s.write(e.GetData()); err != nil {
			return 0, err
		}
	}
	if err := stream.Err(); err != nil {
		return 0, err
	}
	return 0, io.ErrUnexpectedEOF
}

// begun notes the program's number, once: the guest may say anything.
func (s *session) begun(pid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.pid == 0
	s.pid = pid
	return first
}

func (s *session) write(d *process.ProcessEvent_DataEvent) error {
	for _, b := range [][]byte{d.GetStdout(), d.GetPty()} {
		if len(b) > 0 {
			if _, err := s.ch.Write(b); err != nil {
				return err
			}
		}
	}
	if b := d.GetStderr(); len(b) > 0 {
		_, err := s.ch.Stderr().Write(b)
		return err
	}
	return nil
}

// statusOf is a program's exit status as a shell would tell it.
func statusOf(end *process.ProcessEvent_EndEvent) uint32 {
	if code := end.GetExitCode(); code >= 0 {
		return uint32(code)
	}
	for name, n := range map[string]uint32{"killed": 9, "terminated": 15, "hangup": 1, "interrupt": 2, "segmentation": 11, "aborted": 6} {
		if strings.Contains(end.GetStatus(), name) {
			return 128 + n
		}
	}
	return noStatus
}

// feed passes on what the caller sends, until it ends or the program does.
func (s *session) feed(ctx context.Context, pid uint32) {
	stream := s.v.agent.StreamInput(ctx)
	err := stream.Send(&process.StreamInputRequest{Event: &process.StreamInputRequest_Start{
		Start: &process.StreamInputRequest_StartEvent{Process: selector(pid)},
	}})
	piece := make([]byte, pieceSize)
	for err == nil {
		var n int
		n, err = s.ch.Read(piece)
		if n == 0 {
			continue
		}
		input := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: piece[:n]}}
		if s.size != nil {
			input.Input = &process.ProcessInput_Pty{Pty: piece[:n]}
		}
		sent := stream.Send(&process.StreamInputRequest{Event: &process.StreamInputRequest_Data{
			Data: &process.StreamInputRequest_DataEvent{Input: input},
		}})
		if sent != nil { // it is over; later bytes have no reader
			_, _ = io.Copy(io.Discard, s.ch)
			return
		}
	}
	_, _ = stream.CloseAndReceive()
	if s.size == nil && ctx.Err() == nil {
		_, _ = s.v.agent.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: selector(pid)}))
	}
}

func selector(pid uint32) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

// agentOptions put the sandbox's token and the user on every call.
func agentOptions(v *visit) []connect.ClientOption {
	set := func(h http.Header) {
		if token := v.server.cfg.Token(v.who.sandbox); token != "" {
			h.Set("X-Access-Token", token)
		}
		calls.As(h, v.who.user)
	}
	return []connect.ClientOption{calls.WithHeader(set), connect.WithReadMaxBytes(maxMessage)}
}
