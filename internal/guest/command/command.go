// Package command runs commands in a guest, from its host, through the agent's
// process service.
package command

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"

	"connectrpc.com/connect"

	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
)

// readMost bounds one message of the agent's: the guest is hostile.
const readMost = 8 << 20

// Command is a program to run inside.
type Command struct {
	User, Dir string
	Env       map[string]string
	Args      []string
	Token     string                      // that the agent has, if any
	Tag       string                      // a name by which Follow finds it; may be empty
	Started   func()                      // is called when it runs; may be nil
	Output    func(stdout, stderr []byte) // gets what it writes; may be nil
}

// Exit is how a command ended that did not succeed. Code is -1 where a signal
// ended it.
type Exit struct {
	Status string
	Code   int
}

func (e *Exit) Error() string { return e.Status }

// Client calls the process service of an agent.
type Client = processconnect.ProcessClient

// NewClient returns a client of the agent at a URL.
func NewClient(client *http.Client, url string) processconnect.ProcessClient {
	return processconnect.NewProcessClient(client, url, connect.WithReadMaxBytes(readMost))
}

func start(ctx context.Context, agent processconnect.ProcessClient, c Command) (*connect.ServerStreamForClient[process.StartResponse], error) {
	request := connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: c.Args[0], Args: c.Args[1:], Envs: c.Env, Cwd: &c.Dir},
	})
	if c.Tag != "" {
		request.Msg.Tag = &c.Tag
	}
	if c.User != "" {
		request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.User+":")))
	}
	present(request.Header(), c)
	return agent.Start(ctx, request)
}

func present(h http.Header, c Command) {
	if c.Token != "" {
		h.Set("X-Access-Token", c.Token)
	}
}

// Run runs a command to its end. The error is *Exit where the command failed,
// a *connect.Error where it could not be started. A deadline of ctx ends the
// command; with none, the command goes on when ctx ends.
func Run(ctx context.Context, agent processconnect.ProcessClient, c Command) error {
	stream, err := start(ctx, agent, c)
	if err != nil {
		return err
	}
	return follow(stream, c, (*process.StartResponse).GetEvent)
}

// Follow follows the command with the tag of c, which is the newest of that tag,
// from now on to its end, as Run does. An agent knows a command for half a minute
// after its end; a *connect.Error of CodeNotFound says that it knows none.
func Follow(ctx context.Context, agent processconnect.ProcessClient, c Command) error {
	request := connect.NewRequest(&process.ConnectRequest{Process: byTag(c.Tag)})
	present(request.Header(), c)
	stream, err := agent.Connect(ctx, request)
	if err != nil {
		return err
	}
	return follow(stream, c, (*process.ConnectResponse).GetEvent)
}

// Kill ends the command with the tag of c. A *connect.Error of CodeNotFound says
// that there is none.
func Kill(ctx context.Context, agent processconnect.ProcessClient, c Command) error {
	request := connect.NewRequest(&process.SendSignalRequest{Process: byTag(c.Tag), Signal: process.Signal_SIGNAL_SIGKILL})
	present(request.Header(), c)
	_, err := agent.SendSignal(ctx, request)
	return err
}

func byTag(tag string) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: tag}}
}

// follow passes on what a stream tells of a command, to its end.
func follow[T any](stream *connect.ServerStreamForClient[T], c Command, eventOf func(*T) *process.ProcessEvent) error {
	defer func() { _ = stream.Close() }() // what it tells is told by Err
	for stream.Receive() {
		event := eventOf(stream.Msg())
		if event.GetStart() != nil && c.Started != nil {
			c.Started()
		}
		if data := event.GetData(); data != nil && c.Output != nil {
			c.Output(data.GetStdout(), data.GetStderr())
		}
		if end := event.GetEnd(); end != nil {
			if end.GetExitCode() == 0 && end.GetExited() {
				return nil
			}
			return &Exit{end.GetStatus(), int(end.GetExitCode())}
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// Start starts a command that goes on, whatever becomes of ctx.
func Start(ctx context.Context, agent processconnect.ProcessClient, c Command) error {
	// The agent would take a deadline of ctx for one of the command.
	plain, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	stream, err := start(plain, agent, c)
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		if stream.Msg().GetEvent().GetStart() != nil {
			return nil
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}
