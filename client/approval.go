package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Approval is a question that a party other than the asking one decides.
type Approval struct {
	ID        string      `json:"id"`
	SandboxID string      `json:"sandboxID,omitempty"`
	Kind      string      `json:"kind"`              // custom, egress, secret or tool
	Subject   string      `json:"subject,omitempty"` // such as a host
	Title     string      `json:"title"`
	Body      string      `json:"body,omitempty"`
	Risk      string      `json:"risk"`
	State     string      `json:"state"` // pending, approved, denied or expired
	AskedBy   AuditActor  `json:"askedBy"`
	CreatedAt time.Time   `json:"createdAt"`
	ExpiresAt time.Time   `json:"expiresAt"`
	DecidedBy *AuditActor `json:"decidedBy,omitempty"`
	DecidedAt time.Time   `json:"decidedAt,omitzero"`
	Note      string      `json:"note,omitempty"`
	Remember  string      `json:"remember,omitempty"` // once, hour or sandbox
}

// Pending reports whether an approval waits for its decision.
func (a Approval) Pending() bool { return a.State == "pending" }

// NewApproval is a question.
type NewApproval struct {
	Title     string
	Body      string
	Risk      string // low, medium or high; empty for medium
	SandboxID string // that it is about; empty for none
	Timeout   time.Duration
	Wait      time.Duration // that the answer waits for a decision, a minute at most
}

const approvalsPath = "/cay/v1/approvals"

func ofApproval(id, what string) string { return approvalsPath + "/" + url.PathEscape(id) + what }

// AskApproval asks for a decision.
func (c *Client) AskApproval(ctx context.Context, q NewApproval) (Approval, error) {
	in := map[string]any{"title": q.Title}
	for name, text := range map[string]string{"body": q.Body, "risk": q.Risk, "sandboxID": q.SandboxID} {
		if text != "" {
			in[name] = text
		}
	}
	for name, d := range map[string]time.Duration{"timeout": q.Timeout, "wait": q.Wait} {
		if d != 0 {
			in[name] = int(d / time.Second)
		}
	}
	var out Approval
	_, err := c.call(ctx, http.MethodPost, approvalsPath, in, &out)
	return out, err
}

// Approval finds an approval. It waits so long for a decision, a minute at most.
func (c *Client) Approval(ctx context.Context, id string, wait time.Duration) (Approval, error) {
	query := ""
	if wait > 0 {
		query = "?wait=" + strconv.Itoa(int(wait/time.Second))
	}
	var out Approval
	_, err := c.call(ctx, http.MethodGet, ofApproval(id, query), nil, &out)
	return out, err
}

// ApprovalOptions say which approvals to list.
type ApprovalOptions struct {
	SandboxID string // empty for all
	State     string // empty for any
	Limit     int    // at most 100; 0 for the server's usual
}

// Approvals lists the approvals of the last month, the newest first.
func (c *Client) Approvals(ctx context.Context, o ApprovalOptions) ([]Approval, error) {
	query := url.Values{}
	for name, value := range map[string]string{"sandboxID": o.SandboxID, "state": o.State} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if o.Limit > 0 {
		query.Set("limit", strconv.Itoa(o.Limit))
	}
	var out struct {
		Approvals []Approval `json:"approvals"`
	}
	_, err := c.call(ctx, http.MethodGet, approvalsPath+"?"+query.Encode(), nil, &out)
	return out.Approvals, err
}

// DecideApproval answers an approval. Remember is once, hour or sandbox; empty for
// once.
func (c *Client) DecideApproval(ctx context.Context, id string, approve bool, remember, note string) (Approval, error) {
	in := map[string]any{"approve": approve}
	for name, text := range map[string]string{"remember": remember, "note": note} {
		if text != "" {
			in[name] = text
		}
	}
	var out Approval
	_, err := c.call(ctx, http.MethodPost, ofApproval(id, "/decide"), in, &out)
	return out, err
}
