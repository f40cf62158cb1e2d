package build

import (
	"context"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/machine/node"
)

// late is an agent that takes its time to start a command.
type late struct {
	processconnect.UnimplementedProcessHandler
	looked chan struct{} // the ready command was run
	early  bool          // before the start command was
}

func (l *late) Start(ctx context.Context, r *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	begun := &process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 2}}}}
	if slices.Contains(r.Msg.GetProcess().GetArgs(), "look") {
		close(l.looked)
		_ = out.Send(begun)
		return out.Send(&process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{Exited: true}}}})
	}
	select {
	case <-l.looked:
		l.early = true
	case <-time.After(100 * time.Millisecond): // for what must not come
	}
	if err := out.Send(begun); err != nil {
		return err
	}
	<-ctx.Done() // it goes on
	return nil
}

// A template that is ready at once has its start command all the same.
func TestReadyAtOnce(t *testing.T) {
	agent := &late{looked: make(chan struct{})}
	_, handler := processconnect.NewProcessHandler(agent)
	s := httptest.NewServer(handler)
	defer s.Close()
	r := &run{Builder: &Builder{cfg: Config{Times: Times{Ready: time.Minute}}}, log: func(cay.BuildLog) {}}
	x := &box{lease: &node.Lease{}, rpc: processconnect.NewProcessClient(s.Client(), s.URL)}
	if err := r.launch(t.Context(), x, cay.Setup{StartCmd: "serve", ReadyCmd: "look"}); err != nil {
		t.Fatal(err)
	}
	if <-agent.looked; agent.early {
		t.Error("the template was looked at before its start command ran")
	}
}
