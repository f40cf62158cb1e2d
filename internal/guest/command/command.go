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
	Output    func(stdout, stderr []byte) // gets what it writes; may be nil
}

// Exit is how a command ended that did not succeed.
type Exit struct{ Status string }

func (e *Exit) Error() string { return e.Status }

// NewClient returns a client of the agent at a URL.
func NewClient(client *http.Client, url string) processconnect.ProcessClient {
	return processconnect.NewProcessClient(client, url, connect.WithReadMaxBytes(readMost))
}

func start(ctx context.Context, agent processconnect.ProcessClient, c Command) (*connect.ServerStreamForClient[process.StartResponse], error) {
	request := connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: c.Args[0], Args: c.Args[1:], Envs: c.Env, Cwd: &c.Dir},
	})
	request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.User+":")))
	if c.Token != "" {
		request.Header().Set("X-Access-Token", c.Token)
	}
	return agent.Start(ctx, request)
}

// Run runs a command to its end. The error is *Exit where the command failed,
// a *connect.Error where it could not be started. A deadline of ctx ends the
// command; with none, the command goes on when ctx ends.
func Run(ctx context.Context, agent processconnect.ProcessClient, c Command) error {
	stream, err := start(ctx, agent, c)
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		event := stream.Msg().GetEvent()
		if data := event.GetData(); data != nil && c.Output != nil {
			c.Output(data.GetStdout(), data.GetStderr())
		}
		if end := event.GetEnd(); end != nil {
			if end.GetExitCode() == 0 && end.GetExited() {
				return nil
			}
			return &Exit{end.GetStatus()}
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
