package rest

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
)

// Check is one thing of the machine that was looked at, as cay doctor tells it.
type Check struct{ Name, Status, Detail, Hint string }

// AdminGetChecks looks the server's machine over.
func (o own) AdminGetChecks(ctx context.Context, r cayv1.AdminGetChecksRequestObject) (cayv1.AdminGetChecksResponseObject, error) {
	if err := o.isNode(ctx, r.Params.NodeID); err != nil {
		return nil, err
	}
	out := cayv1.AdminGetChecks200JSONResponse{}
	for _, c := range o.checks(ctx) {
		out = append(out, cayv1.MachineCheck{Name: c.Name, Status: cayv1.MachineCheckStatus(c.Status), Detail: c.Detail, Hint: pointer(c.Hint)})
	}
	return out, nil
}

// AdminVerifyAudit reads the whole audit log and says whether it is whole.
func (o own) AdminVerifyAudit(ctx context.Context, _ cayv1.AdminVerifyAuditRequestObject) (cayv1.AdminVerifyAuditResponseObject, error) {
	if err := callerOf(ctx).May(cay.Admin); err != nil {
		return nil, err
	}
	if o.audit == nil {
		return nil, errNoAudit
	}
	v, err := o.audit.Verify(ctx)
	if err != nil {
		return nil, err
	}
	out := cayv1.AdminVerifyAudit200JSONResponse{Rows: v.Rows, First: v.First, Last: v.Last, Signed: v.Signed, Heads: v.Heads, Key: v.Key}
	if v.Broken != nil {
		out.Broken = &struct {
			Seq int64  `json:"seq"`
			Why string `json:"why"`
		}{v.Broken.Seq, v.Broken.Why}
	}
	return out, nil
}
