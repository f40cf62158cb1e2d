package client

import (
	"context"
	"errors"
	"io"
	"net/http"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/calls"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
)

// Command says what to run.
type Command struct {
	Path string // of the program, looked up in the sandbox's PATH
	Args []string
	Env  map[string]string
	Dir  string // empty means the user's home
	User string // empty means the sandbox's usual one
	// Stdin keeps standard input open for Process.Write and CloseStdin.
	Stdin bool
	// TTY gives it a terminal of that size; all output is then Stdout's.
	TTY *Size
	// Stdout and Stderr get the output while it comes; nil discards it.
	Stdout, Stderr io.Writer
}

// Size is that of a terminal.
type Size struct{ Columns, Rows uint32 }

// Exit is how a process ended.
type Exit struct {
	Code   int    // -1 when a signal ended it
	Status string // e.g. "exit status 1" or "signal: killed"
}

// Result is what a command that has ended leaves.
type Result struct {
	Exit
	Stdout, Stderr []byte
}

// Process is a process that runs in a sandbox.
type Process struct {
	PID uint32

	cmd    Command
	client processconnect.ProcessClient
	stream *connect.ServerStreamForClient[process.StartResponse]
	box    *Sandbox
}

// Run runs a command to its end and returns what it wrote. Writers in cmd get
// the output too.
func (s *Sandbox) Run(ctx context.Context, cmd Command) (Result, error) {
	var out, errs buffer
	cmd.Stdout, cmd.Stderr = tee(&out, cmd.Stdout), tee(&errs, cmd.Stderr)
	p, err := s.Start(ctx, cmd)
	if err != nil {
		return Result{}, err
	}
	exit, err := p.Wait()
	return Result{Exit: exit, Stdout: out.b, Stderr: errs.b}, err
}

type buffer struct{ b []byte }

func (b *buffer) Write(p []byte) (int, error) {
	b.b = append(b.b, p...)
	return len(p), nil
}

func tee(b *buffer, w io.Writer) io.Writer {
	if w == nil {
		return b
	}
	return io.MultiWriter(b, w)
}

// Start starts a command. Wait must follow. A deadline of ctx bounds the
// process's life; cancelling ctx only stops following it.
func (s *Sandbox) Start(ctx context.Context, cmd Command) (*Process, error) {
	client := processconnect.NewProcessClient(s.client.cfg.HTTP, s.client.cfg.SandboxURL,
		s.as(cmd.User))
	request := &process.StartRequest{
		Process: &process.ProcessConfig{Cmd: cmd.Path, Args: cmd.Args, Envs: cmd.Env},
		Stdin:   &cmd.Stdin,
	}
	if cmd.Dir != "" {
		request.Process.Cwd = &cmd.Dir
	}
	if cmd.TTY != nil {
		request.Pty = cmd.TTY.wire()
	}
	stream, err := client.Start(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, s.rpcError(ctx, err)
	}
	p := &Process{cmd: cmd, client: client, stream: stream, box: s}
	for stream.Receive() {
		if start := stream.Msg().GetEvent().GetStart(); start != nil {
			p.PID = start.GetPid()
			return p, nil
		}
	}
	err = stream.Err()
	stream.Close()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return nil, s.rpcError(ctx, err)
}

// Process returns a process of the sandbox that is not followed, for its input
// and its end.
func (s *Sandbox) Process(pid uint32) *Process {
	return &Process{PID: pid, box: s, client: processconnect.NewProcessClient(s.client.cfg.HTTP, s.client.cfg.SandboxURL, s.as(""))}
}

func (z Size) wire() *process.PTY {
	return &process.PTY{Size: &process.PTY_Size{Cols: z.Columns, Rows: z.Rows}}
}

// Wait passes the output on until the process ends. An error of a writer ends
// the wait, not the process.
func (p *Process) Wait() (Exit, error) {
	defer p.stream.Close()
	for p.stream.Receive() {
		event := p.stream.Msg().GetEvent()
		if end := event.GetEnd(); end != nil {
			return Exit{Code: int(end.GetExitCode()), Status: end.GetStatus()}, nil
		}
		data := event.GetData()
		if err := write(p.cmd.Stdout, data.GetStdout(), data.GetPty()); err != nil {
			return Exit{}, err
		}
		if err := write(p.cmd.Stderr, data.GetStderr()); err != nil {
			return Exit{}, err
		}
	}
	err := p.stream.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return Exit{}, p.box.rpcError(context.Background(), err)
}

func write(w io.Writer, chunks ...[]byte) error {
	for _, chunk := range chunks {
		if w == nil || len(chunk) == 0 {
			continue
		}
		if _, err := w.Write(chunk); err != nil {
			return err
		}
	}
	return nil
}

func (p *Process) selector() *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: p.PID}}
}

// Input sends bytes to the process's terminal or standard input.
func (p *Process) Input(ctx context.Context, b []byte) error {
	input := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: b}}
	if p.cmd.TTY != nil {
		input.Input = &process.ProcessInput_Pty{Pty: b}
	}
	_, err := p.client.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: p.selector(), Input: input}))
	return p.box.rpcError(ctx, err)
}

// CloseStdin ends the process's standard input.
func (p *Process) CloseStdin(ctx context.Context) error {
	_, err := p.client.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: p.selector()}))
	return p.box.rpcError(ctx, err)
}

// Resize tells the process's terminal its new size.
func (p *Process) Resize(ctx context.Context, size Size) error {
	_, err := p.client.Update(ctx, connect.NewRequest(&process.UpdateRequest{Process: p.selector(), Pty: size.wire()}))
	return p.box.rpcError(ctx, err)
}

// Terminate asks the process to end.
func (p *Process) Terminate(ctx context.Context) error {
	return p.signal(ctx, process.Signal_SIGNAL_SIGTERM)
}

// Kill ends the process.
func (p *Process) Kill(ctx context.Context) error {
	return p.signal(ctx, process.Signal_SIGNAL_SIGKILL)
}

func (p *Process) signal(ctx context.Context, s process.Signal) error {
	_, err := p.client.SendSignal(ctx, connect.NewRequest(&process.SendSignalRequest{Process: p.selector(), Signal: s}))
	return p.box.rpcError(ctx, err)
}

// maxMessage bounds what one message of a guest, which may be hostile, takes in
// memory: a listing of 200,000 files, which is the agent's bound.
const maxMessage = 64 << 20

// as puts the sandbox's headers on every call, and the user's name.
func (s *Sandbox) as(user string) connect.ClientOption {
	return connect.WithClientOptions(connect.WithReadMaxBytes(maxMessage), calls.WithHeader(func(h http.Header) {
		s.header(h)
		calls.As(h, user)
	}))
}

var kinds = map[connect.Code]cay.Kind{
	connect.CodeInvalidArgument:    cay.Invalid,
	connect.CodeUnauthenticated:    cay.Unauthenticated,
	connect.CodePermissionDenied:   cay.Denied,
	connect.CodeNotFound:           cay.NotFound,
	connect.CodeAlreadyExists:      cay.Conflict,
	connect.CodeFailedPrecondition: cay.Conflict,
	connect.CodeResourceExhausted:  cay.Exhausted,
	connect.CodeUnimplemented:      cay.Unsupported,
	connect.CodeUnavailable:        cay.Unavailable,
	connect.CodeCanceled:           cay.Unavailable,
}

// rpcError makes a *cay.Error of what a call ended with.
func (s *Sandbox) rpcError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var e *connect.Error
	if !errors.As(err, &e) || errors.Is(err, io.ErrUnexpectedEOF) {
		return s.gone(cay.Wrap(cay.Unavailable, err, "the connection broke"))
	}
	if e.Code() == connect.CodeDeadlineExceeded { // the caller's own travels with the call, and the agent saw it pass first
		return context.DeadlineExceeded
	}
	kind, known := kinds[e.Code()]
	if !known {
		kind = cay.Internal
	}
	return s.gone(&cay.Error{Kind: kind, Code: e.Meta().Get(calls.ErrorCode), Msg: e.Message()})
}
