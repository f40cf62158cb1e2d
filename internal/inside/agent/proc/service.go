// Package proc serves the processes of a sandbox: it starts them, carries
// their input and output and tells how they ended.
package proc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	pb "github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/inside/agent/life"
	"github.com/cay-run/cay/internal/inside/agent/reap"
	"github.com/cay-run/cay/internal/inside/agent/user"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

// killWait bounds how long SendSignal waits for a killed process to be gone. A
// process in an uninterruptible call dies when that returns.
const killWait = 5 * time.Second

// Config is what a Service works with. Every field but Users must be set.
type Config struct {
	Reaper *reap.Reaper
	Users  user.DB
	// Defaults returns the account and the directory of calls that name none.
	Defaults func() (user, dir string)
	// Env returns the sandbox-wide environment.
	Env func() map[string]string
	// Note, if set, hears of processes that start and end; fields are keys
	// and values by turns. Arguments may hold secrets and are not told.
	Note func(message string, fields ...string)
	// Room, if set, says why no other process may start now, empty where one may,
	// while so many live that calls have started, and so many of them are young.
	Room func(live, young int) string
}

// Service implements process.Process.
type Service struct {
	cfg   Config
	table *table
	line  chan struct{} // holds a value while the first of the starts that wait looks for room
	room  atomic.Int64  // bytes that may still be kept of terminals
}

var _ processconnect.ProcessHandler = (*Service)(nil)

// New returns a service without processes.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, table: newTable(), line: make(chan struct{}, 1)}
	s.room.Store(screensMax)
	return s
}

// Handler returns the service's path prefix and its handler.
func (s *Service) Handler(opts ...connect.HandlerOption) (string, http.Handler) {
	opts = append([]connect.HandlerOption{connect.WithCodec(jsonCodec{})}, opts...)
	path, h := processconnect.NewProcessHandler(s, opts...)
	return path, batched(lives(h))
}

// lifeKey is the context's key of a process's life.
type lifeKey struct{}

// lives takes Connect-Timeout-Ms away from Start, where it bounds not the call
// but the process, and reads 0 as no limit everywhere.
func lives(next http.Handler) http.Handler {
	const header = "Connect-Timeout-Ms"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ms, err := strconv.ParseUint(r.Header.Get(header), 10, 63)
		if err == nil && (ms == 0 || r.URL.Path == processconnect.ProcessStartProcedure) {
			r.Header.Del(header)
			d := time.Duration(min(ms, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
			r = r.WithContext(context.WithValue(r.Context(), lifeKey{}, d))
		}
		next.ServeHTTP(w, r)
	})
}

// List names the processes that run.
func (s *Service) List(context.Context, *connect.Request[pb.ListRequest]) (*connect.Response[pb.ListResponse], error) {
	out := &pb.ListResponse{}
	for _, p := range s.table.list() {
		out.Processes = append(out.Processes, &pb.ProcessInfo{Config: p.config, Pid: p.pid, Tag: p.tag})
	}
	return connect.NewResponse(out), nil
}

// Start runs a process and follows it. The process outlives the call.
func (s *Service) Start(ctx context.Context, req *connect.Request[pb.StartRequest], stream *connect.ServerStream[pb.StartResponse]) error {
	begun, err := s.admit(ctx)
	if err != nil {
		return err
	}
	p, sub, err := s.launch(req.Header(), req.Msg)
	begun()
	if err != nil {
		return err
	}
	defer p.unsubscribe(sub)
	if d, ok := ctx.Value(lifeKey{}).(time.Duration); ok && d > 0 {
		p.life = life.New(d, p.expire)
	}
	go s.run(p)
	return p.follow(ctx, sub, nil, true, wire.Keepalive(req.Header()), func(e *pb.ProcessEvent) error {
		return stream.Send(&pb.StartResponse{Event: e})
	})
}

// run follows a process to its end and notes both.
func (s *Service) run(p *process) {
	note := s.cfg.Note
	if note == nil {
		note = func(string, ...string) {}
	}
	who := []string{"pid", strconv.Itoa(int(p.pid)), "command", p.config.GetCmd()}
	if tag := p.tag; tag != nil {
		who = append(who, "tag", *tag)
	}
	started := time.Now()
	note("process started", who...)
	p.run(func() { s.table.bury(p) })
	who = append(who, "status", p.end.GetStatus(), "duration", time.Since(started).Round(time.Millisecond).String())
	if killer := p.killer.Load(); killer != nil {
		who = append(who, "cause", *killer)
	}
	note("process ended", who...)
}

// A client that follows a terminal asks with ReplayHeader for what it showed before
// (any value). Its answer says in the same header how many bytes of the output that
// follows are that, and in SizeHeader for how many columns and rows they were made,
// as 80x24. Cay's own: E2B's clients ask for nothing and get what comes from now on.
const (
	ReplayHeader = "Cay-Replay"
	SizeHeader   = "Cay-Terminal-Size"
)

// Connect follows a process from now on, or tells the end of one that ended a
// moment ago.
func (s *Service) Connect(ctx context.Context, req *connect.Request[pb.ConnectRequest], stream *connect.ServerStream[pb.ConnectResponse]) error {
	p, err := s.table.find(req.Msg.GetProcess(), true)
	if err != nil {
		return err
	}
	replay := req.Header().Get(ReplayHeader) != ""
	sub, shown := p.subscribe(replay)
	defer p.unsubscribe(sub)
	if replay && p.tty != nil {
		stream.ResponseHeader().Set(ReplayHeader, strconv.Itoa(len(shown)))
		if size := sizeOf(p.tty.file); size != "" {
			stream.ResponseHeader().Set(SizeHeader, size)
		}
	}
	return p.follow(ctx, sub, shown, false, wire.Keepalive(req.Header()), func(e *pb.ProcessEvent) error {
		return stream.Send(&pb.ConnectResponse{Event: e})
	})
}

// Update resizes a process's terminal.
func (s *Service) Update(_ context.Context, req *connect.Request[pb.UpdateRequest]) (*connect.Response[pb.UpdateResponse], error) {
	p, err := s.table.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if req.Msg.Pty != nil {
		if p.tty == nil {
			return nil, connect.NewError(connect.CodeInternal, errors.New("tty not started for process"))
		}
		if err := resize(p.tty.file, req.Msg.GetPty().GetSize()); err != nil {
			return nil, connect.NewError(connect.CodeInternal, err)
		}
	}
	return connect.NewResponse(&pb.UpdateResponse{}), nil
}

// StreamInput feeds the process that the first message names.
func (s *Service) StreamInput(ctx context.Context, stream *connect.ClientStream[pb.StreamInputRequest]) (*connect.Response[pb.StreamInputResponse], error) {
	var p *process
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().(type) {
		case *pb.StreamInputRequest_Start:
			var err error
			if p, err = s.table.find(e.Start.GetProcess(), false); err != nil {
				return nil, err
			}
		case *pb.StreamInputRequest_Data:
			if p == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("input came before the process was named"))
			}
			if err := p.feed(ctx, e.Data.GetInput()); err != nil {
				return nil, err
			}
		case *pb.StreamInputRequest_Keepalive:
		default:
			return nil, connect.NewError(connect.CodeUnimplemented, errors.New("unknown input event"))
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.StreamInputResponse{}), nil
}

// SendInput feeds a process once.
func (s *Service) SendInput(ctx context.Context, req *connect.Request[pb.SendInputRequest]) (*connect.Response[pb.SendInputResponse], error) {
	p, err := s.table.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if err := p.feed(ctx, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.SendInputResponse{}), nil
}

// feed writes input where it belongs.
func (p *process) feed(ctx context.Context, in *pb.ProcessInput) error {
	var err error
	switch to := in.GetInput().(type) {
	case *pb.ProcessInput_Stdin:
		if err = errNoInput; p.stdin != nil {
			err = p.stdin.write(ctx, to.Stdin)
		}
	case *pb.ProcessInput_Pty:
		if err = errors.New("tty not started for process"); p.tty != nil {
			err = p.tty.write(ctx, to.Pty)
		}
	default:
		return connect.NewError(connect.CodeUnimplemented, errors.New("unknown kind of input"))
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err
	default:
		return connect.NewError(connect.CodeInternal, fmt.Errorf("write to process: %w", err))
	}
}

// SendSignal signals a process. A killed one is gone when it returns.
func (s *Service) SendSignal(ctx context.Context, req *connect.Request[pb.SendSignalRequest]) (*connect.Response[pb.SendSignalResponse], error) {
	p, err := s.table.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	sig := req.Msg.GetSignal()
	if sig != pb.Signal_SIGNAL_SIGKILL && sig != pb.Signal_SIGNAL_SIGTERM {
		return nil, connect.NewError(connect.CodeUnimplemented, fmt.Errorf("signal %v is not supported", sig))
	}
	if err := p.child.Signal(syscall.Signal(sig)); err != nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found: %w", p.pid, err))
	}
	if sig == pb.Signal_SIGNAL_SIGKILL {
		select {
		case <-p.child.Done():
		case <-time.After(killWait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return connect.NewResponse(&pb.SendSignalResponse{}), nil
}

// CloseStdin ends a process's standard input.
func (s *Service) CloseStdin(_ context.Context, req *connect.Request[pb.CloseStdinRequest]) (*connect.Response[pb.CloseStdinResponse], error) {
	p, err := s.table.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	switch {
	case p.tty != nil:
		return nil, connect.NewError(connect.CodeUnknown, errors.New("a process with a terminal has no stdin to close: send it ctrl-D"))
	case p.stdin != nil:
		if err := p.stdin.close(); err != nil {
			return nil, connect.NewError(connect.CodeUnknown, err)
		}
	}
	return connect.NewResponse(&pb.CloseStdinResponse{}), nil
}

// Blame notes why one of these pids is about to be killed, in the end event of
// every process that this service started and that is among them: the victim
// itself and those it descends from.
func (s *Service) Blame(pids []int, reason string) {
	for _, p := range s.table.list() {
		if slices.Contains(pids, int(p.pid)) {
			p.killer.Store(&reason)
		}
	}
}
