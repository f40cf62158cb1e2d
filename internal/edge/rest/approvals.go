package rest

import (
	"cmp"
	"context"
	"encoding/base64"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/approvals"
	"github.com/cay-run/cay/internal/trail"
)

const (
	decideRoute     = approvals.LinkRoute + "/{approvalID}/{webhookID}/{signature}"
	maxApprovalWait = 60 // seconds
	maxApprovalTime = 7 * 24 * 3600
)

// ListApprovals lists approvals.
func (o own) ListApprovals(ctx context.Context, r cayv1.ListApprovalsRequestObject) (cayv1.ListApprovalsResponseObject, error) {
	q := approvals.Query{
		Sandbox: cay.SandboxID(value(r.Params.SandboxID, "")), State: cay.ApprovalState(value(r.Params.State, "")), Limit: value(r.Params.Limit, defaultRuns),
	}
	if q.Limit < 1 || q.Limit > maxRuns {
		return nil, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxRuns)
	}
	if r.Params.Cursor != nil {
		at, id, err := readCursor(*r.Params.Cursor)
		if err != nil {
			return nil, err
		}
		q.After = &approvals.Cursor{At: at, ID: cay.ApprovalID(id)}
	}
	limit := q.Limit
	q.Limit++ // says whether there are more
	list, err := o.approvals.List(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	out := cayv1.ListApprovals200JSONResponse{Approvals: []cayv1.Approval{}}
	if len(list) > limit {
		list = list[:limit]
		out.Next = pointer(cursorOf(list[limit-1].CreatedAt, string(list[limit-1].ID)))
	}
	for _, x := range list {
		out.Approvals = append(out.Approvals, wireApproval(x))
	}
	return out, nil
}

// cursorOf is a place in a list by time and id, and readCursor reads it.
func cursorOf(at time.Time, id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(at.UnixMilli(), 10) + " " + id))
}

func readCursor(text string) (at time.Time, id string, err error) {
	plain, err := base64.RawURLEncoding.DecodeString(text)
	ms, id, found := strings.Cut(string(plain), " ")
	n, bad := strconv.ParseInt(ms, 10, 64)
	if err != nil || bad != nil || !found {
		return at, "", cay.Errorf(cay.Invalid, "cursor: is not one that this list gave")
	}
	return time.UnixMilli(n), id, nil
}

// CreateApproval asks for a decision, and may wait for it.
func (o own) CreateApproval(ctx context.Context, r cayv1.CreateApprovalRequestObject) (cayv1.CreateApprovalResponseObject, error) {
	b := *r.Body
	wait, err := approvalWait(b.Wait)
	if err != nil {
		return nil, err
	}
	q := approvals.Question{
		Sandbox: cay.SandboxID(value(b.SandboxID, "")), Kind: cay.CustomApproval, Title: b.Title, Body: value(b.Body, ""),
		Risk: cay.Risk(value(b.Risk, "")),
	}
	if b.Timeout != nil {
		// One beyond the bounds of time.Duration is one beyond ours; none at all is not the usual one.
		q.Within = cmp.Or(time.Duration(min(max(*b.Timeout, -1), maxApprovalTime+1))*time.Second, -1)
	}
	x, err := o.approvals.Request(ctx, callerOf(ctx), q)
	if err == nil && wait > 0 {
		x, err = o.approvals.Wait(ctx, cay.ForTeam(x.Team), x.ID, wait)
	}
	if err != nil {
		return nil, err
	}
	return cayv1.CreateApproval201JSONResponse(wireApproval(x)), nil
}

func approvalWait(n *int) (time.Duration, error) {
	wait := value(n, 0)
	if wait < 0 || wait > maxApprovalWait {
		return 0, cay.Errorf(cay.Invalid, "wait: must be 0 to %d seconds", maxApprovalWait)
	}
	return time.Duration(wait) * time.Second, nil
}

// GetApproval finds an approval, and may wait for its decision.
func (o own) GetApproval(ctx context.Context, r cayv1.GetApprovalRequestObject) (cayv1.GetApprovalResponseObject, error) {
	wait, err := approvalWait(r.Params.Wait)
	if err != nil {
		return nil, err
	}
	x, err := o.approvals.Wait(ctx, callerOf(ctx), cay.ApprovalID(r.ApprovalID), wait)
	if err != nil {
		return nil, err
	}
	return cayv1.GetApproval200JSONResponse(wireApproval(x)), nil
}

// DecideApproval answers an approval.
func (o own) DecideApproval(ctx context.Context, r cayv1.DecideApprovalRequestObject) (cayv1.DecideApprovalResponseObject, error) {
	if r.Body.Approve == nil {
		return nil, cay.Errorf(cay.Invalid, "approve: must be true or false")
	}
	x, err := o.approvals.Decide(ctx, callerOf(ctx), cay.ApprovalID(r.ApprovalID), cay.Decision{
		Approve: *r.Body.Approve, Remember: cay.Remember(value(r.Body.Remember, "")), Note: value(r.Body.Note, ""),
	})
	if err != nil {
		return nil, err
	}
	return cayv1.DecideApproval200JSONResponse(wireApproval(x)), nil
}

func wireApproval(x cay.Approval) cayv1.Approval {
	out := cayv1.Approval{
		ID: string(x.ID), SandboxID: pointer(string(x.Sandbox)), Kind: cayv1.ApprovalKind(x.Kind), Subject: pointer(x.Subject),
		Title: x.Title, Body: pointer(x.Body), Risk: cayv1.ApprovalRisk(x.Risk), State: cayv1.ApprovalState(x.State), AskedBy: wireActor(x.Asked),
		CreatedAt: x.CreatedAt, ExpiresAt: x.ExpiresAt, DecidedAt: moment(x.DecidedAt), Note: pointer(x.Note),
	}
	if x.Decided.Kind != "" {
		by := wireActor(x.Decided)
		out.DecidedBy = &by
	}
	if x.Remember != "" {
		remember := cayv1.ApprovalRemember(x.Remember)
		out.Remember = &remember
	}
	return out
}

func wireActor(a cay.Actor) cayv1.AuditActor {
	return cayv1.AuditActor{Kind: string(a.Kind), ID: a.ID, Name: a.Name}
}

// mountDecide adds the pages of links that decide. A GET changes nothing: programs
// that look a link over in advance decide nothing.
func (s *server) mountDecide(r chi.Router) {
	r.Get(decideRoute, s.showApproval)
	r.With(http.NewCrossOriginProtection().Handler).Post(decideRoute, s.decideByLink)
}

func linkOf(r *http.Request) approvals.Link {
	return approvals.Link{
		Approval: cay.ApprovalID(chi.URLParam(r, "approvalID")), Webhook: cay.WebhookID(chi.URLParam(r, "webhookID")), Signature: chi.URLParam(r, "signature"),
	}
}

// showApproval shows what a link decides.
func (s *server) showApproval(w http.ResponseWriter, r *http.Request) {
	x, err := s.approvals.ByLink(r.Context(), linkOf(r))
	if err != nil {
		s.failPage(w, r, err)
		return
	}
	showPage(w, http.StatusOK, approvalPage, x)
}

// decideByLink takes the answer of the page.
func (s *server) decideByLink(w http.ResponseWriter, r *http.Request) {
	answer := r.PostFormValue("answer")
	if answer != "approve" && answer != "deny" {
		s.failPage(w, r, cay.Errorf(cay.Invalid, "answer: must be approve or deny"))
		return
	}
	link, from := linkOf(r), trail.OriginOf(r.Context())
	x, err := s.approvals.DecideByLink(r.Context(), link, from, cay.Decision{
		Approve: answer == "approve", Remember: cay.Remember(r.PostFormValue("remember")), Note: strings.ReplaceAll(r.PostFormValue("note"), "\r\n", "\n"),
	})
	if followed := trail.Of(r.Context()); followed != nil {
		followed.Team = x.Team
	}
	if err != nil {
		s.failPage(w, r, err)
		return
	}
	showPage(w, http.StatusOK, approvalPage, x)
}

var approvalPage = template.Must(template.New("approval").Parse(pageHead + `<style>pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #8888;padding:.5rem;font-size:.9rem}dt{float:left;width:7rem;color:#777}dd{margin-left:7rem;overflow-wrap:anywhere}input,select{font:inherit}</style>
<h1>{{if eq .State "pending"}}Approve this?{{else}}This is {{.State}}{{end}}</h1>
<p>The words in quotation marks and in the box are those of the party that asks.</p>
<p>“<b>{{.Title}}</b>”</p>{{with .Body}}<pre>{{.}}</pre>{{end}}
<dl><dt>Kind</dt><dd>{{.Kind}}</dd>{{with .Subject}}<dt>Subject</dt><dd>{{.}}</dd>{{end}}{{with .Sandbox}}<dt>Sandbox</dt><dd>{{.}}</dd>{{end}}
<dt>Asked by</dt><dd>{{.Asked.Kind}} {{.Asked.Name}} {{.Asked.ID}}</dd><dt>Risk</dt><dd>{{.Risk}}</dd>
<dt>Ends</dt><dd>{{.ExpiresAt.Format "2006-01-02 15:04:05 UTC"}}</dd>{{if .Decided.Kind}}<dt>Decided by</dt><dd>{{.Decided.Kind}} {{.Decided.Name}}</dd>{{end}}</dl>
{{if eq .State "pending"}}<form method="post">{{if .Subject}}<p>Remember <select name="remember"><option value="once">for this time</option>
<option value="hour">for an hour</option><option value="sandbox">for the sandbox's life</option></select></p>{{end}}
<p><input name="note" maxlength="300" placeholder="A note, if any"></p>
<button name="answer" value="approve">Approve</button> <button name="answer" value="deny">Deny</button></form>{{end}}`))
