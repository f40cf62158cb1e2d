package mcp

import (
	"context"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

const (
	// usualWait is how long a call waits for a decision, a little less than many
	// clients wait for a tool; mostWait is the most.
	usualWait = 45 * time.Second
	mostWait  = 60 * time.Second
)

type askIn struct {
	Title   string `json:"title" jsonschema:"the question in one line, which a person says yes or no to"`
	Body    string `json:"body,omitempty" jsonschema:"what exactly you are about to do: the command, the request, the diff"`
	Risk    string `json:"risk,omitempty" jsonschema:"low, medium or high; medium when left out"`
	Sandbox string `json:"sandbox_id,omitempty" jsonschema:"the sandbox that it is about; none when left out"`
	Timeout int    `json:"timeout,omitempty" jsonschema:"seconds until no decision is a no; 900 when left out"`
	Wait    *int   `json:"wait,omitempty" jsonschema:"seconds that this call waits for the decision, 0 to 60; 45 when left out"`
}

type statusIn struct {
	Approval string `json:"approval_id" jsonschema:"as request_approval gave it"`
	Wait     *int   `json:"wait,omitempty" jsonschema:"seconds that this call waits for the decision, 0 to 60; 45 when left out"`
}

type approvalOut struct {
	Approval string    `json:"approval_id"`
	State    string    `json:"state"`
	Note     string    `json:"note,omitempty"`
	Expires  time.Time `json:"expires_at"`
}

func (f *Face) addApprovals(s *sdk.Server) {
	add(f, s, tool{"request_approval", "Ask a person", "Asks a person to approve something before you do it, and waits a while for the decision. Go on only when the state is approved; no answer in time is a no. You cannot decide yourself.", adds}, requestApproval)
	add(f, s, tool{"approval_status", "Wait for a decision", "Tells whether an approval is pending, approved, denied or expired, and waits a while for a decision that is pending.", reads}, approvalStatus)
}

// waitOf is how long a call waits.
func waitOf(given *int) (time.Duration, error) {
	switch {
	case given == nil:
		return usualWait, nil
	case *given < 0 || *given > int(mostWait/time.Second):
		return 0, cay.Errorf(cay.Invalid, "wait: must be 0 to %d seconds", int(mostWait/time.Second))
	}
	return time.Duration(*given) * time.Second, nil
}

func requestApproval(ctx context.Context, c *call, in askIn) (out approvalOut, err error) {
	c.box = in.Sandbox
	wait, err := waitOf(in.Wait)
	if err != nil {
		return out, err
	}
	x, err := c.api.AskApproval(ctx, client.NewApproval{
		Title: in.Title, Body: in.Body, Risk: in.Risk, SandboxID: in.Sandbox, Timeout: time.Duration(in.Timeout) * time.Second, Wait: wait,
	})
	if err != nil {
		return out, err
	}
	return c.told(x), nil
}

func approvalStatus(ctx context.Context, c *call, in statusIn) (out approvalOut, err error) {
	wait, err := waitOf(in.Wait)
	if err != nil {
		return out, err
	}
	x, err := c.api.Approval(ctx, in.Approval, wait)
	if err != nil {
		return out, err
	}
	c.box = x.SandboxID
	return c.told(x), nil
}

// told says to the model what became of its question.
func (c *call) told(x client.Approval) approvalOut {
	switch x.State {
	case "approved":
		c.say("approved: you may go on.")
	case "denied":
		c.say("denied: do not do it.")
	case "expired":
		c.say("expired: no decision came in time, which is a no.")
	default:
		c.say("pending: no decision yet. Call approval_status with approval_id %s to wait on; until it is approved, do not do it.", x.ID)
	}
	if x.Note != "" {
		c.say("note of the person: %s", cut(x.Note, maxText))
	}
	return approvalOut{x.ID, x.State, x.Note, x.ExpiresAt}
}
