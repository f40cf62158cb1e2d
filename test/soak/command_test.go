package soak

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	pb "github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
)

// The kinds of command, by what happens to them.
const (
	piped      = iota // reads a line, answers it, exits with 3
	terminal          // the same with a terminal
	killed            // gets a signal
	abandoned         // loses its client and finds another
	background        // leaves a child that holds its output
	kinds
)

// command is one process of a wave.
type command struct {
	kind   int
	user   string
	client processconnect.ProcessClient
	ctx    context.Context // of the phase; streams have their own

	pid    uint32
	stream stream
	leave  context.CancelFunc
}

// stream is the events of a process, from Start or from Connect.
type stream interface {
	Receive() bool
	Err() error
	Close() error
}

func event(s stream) *pb.ProcessEvent {
	switch s := s.(type) {
	case *connect.ServerStreamForClient[pb.StartResponse]:
		return s.Msg().GetEvent()
	case *connect.ServerStreamForClient[pb.ConnectResponse]:
		return s.Msg().GetEvent()
	}
	return nil
}

func (c *command) selector() *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: c.pid}}
}

// follow takes a new stream and its first event.
func (c *command) follow(s stream) error {
	c.stream = s
	if !s.Receive() {
		return fmt.Errorf("no start event: %w", s.Err())
	}
	if c.pid = event(s).GetStart().GetPid(); c.pid == 0 {
		return fmt.Errorf("first event is %v", event(s))
	}
	return nil
}

func (c *command) start() error {
	script := "read x; echo got $x; exit 3"
	switch c.kind {
	case killed:
		script = "exec sleep 900"
	case background:
		script = "read x; sleep 900 & echo got $x $!; exit 3"
	}
	req := connect.NewRequest(&pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}, Cwd: new("/")},
		Stdin:   new(true),
	})
	if c.kind == terminal {
		req.Msg.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 80, Rows: 24}}
	}
	req.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.user+":")))
	// No deadline: it would bound the process's life.
	ctx, leave := context.WithCancel(context.Background())
	c.leave = leave
	s, err := c.client.Start(ctx, req)
	if err != nil {
		return err
	}
	return c.follow(s)
}

// feed gives the command what it waits for.
func (c *command) feed() error {
	switch c.kind {
	case killed:
		_, err := c.client.SendSignal(c.ctx, connect.NewRequest(&pb.SendSignalRequest{
			Process: c.selector(), Signal: pb.Signal_SIGNAL_SIGKILL,
		}))
		return err
	case abandoned:
		c.leave()
		_ = c.stream.Close() // cancelled
		ctx, leave := context.WithCancel(context.Background())
		c.leave = leave
		s, err := c.client.Connect(ctx, connect.NewRequest(&pb.ConnectRequest{Process: c.selector()}))
		if err != nil {
			return err
		}
		if err := c.follow(s); err != nil {
			return err
		}
	}
	in := &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte("this\n")}}
	if c.kind == terminal {
		in = &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte("this\n")}}
	}
	_, err := c.client.SendInput(c.ctx, connect.NewRequest(&pb.SendInputRequest{Process: c.selector(), Input: in}))
	return err
}

// finish takes all events and says what is wrong with them.
func (c *command) finish() error {
	defer c.leave()
	defer c.stream.Close()
	// A wave that is out of patience ends here too.
	defer context.AfterFunc(c.ctx, c.leave)()
	var out strings.Builder
	var end *pb.ProcessEvent_EndEvent
	for c.stream.Receive() {
		e := event(c.stream)
		out.Write(e.GetData().GetStdout())
		out.Write(e.GetData().GetPty())
		if e.GetEnd() != nil {
			end = e.GetEnd()
		}
	}
	if err := c.stream.Err(); err != nil {
		return err
	}
	if c.kind == killed {
		if end.GetStatus() != "signal: killed" {
			return fmt.Errorf("ended with %v", end)
		}
		return nil
	}
	if end.GetExitCode() != 3 || !strings.Contains(out.String(), "got this") {
		return fmt.Errorf("ended with %v after %q", end, out.String())
	}
	if c.kind == background {
		return c.bury(out.String())
	}
	return nil
}

// bury ends the child that the command left behind.
func (c *command) bury(out string) error {
	var word string
	var pid int
	if _, err := fmt.Sscanf(out, "got %s %d", &word, &pid); err != nil {
		return fmt.Errorf("no child in %q: %w", out, err)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}
