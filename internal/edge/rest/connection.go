package rest

import (
	"context"

	"github.com/cay-run/cay/api/rest/cayv1"
)

// ListConnections lists what a sandbox tried to reach.
func (o own) ListConnections(ctx context.Context, r cayv1.ListConnectionsRequestObject) (cayv1.ListConnectionsResponseObject, error) {
	list, err := o.sandboxes.Connections(ctx, callerOf(ctx), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	out := make(cayv1.ListConnections200JSONResponse, 0, len(list))
	for _, c := range list {
		out = append(out, cayv1.Connection{
			At: c.At.UTC(), Allowed: c.Allowed, Rule: c.Rule, Protocol: c.Protocol, Name: pointer(c.Name),
			Address: c.Address, Sent: c.Sent, Received: c.Received, TookMs: c.Took.Milliseconds(), Open: c.Open,
		})
	}
	return out, nil
}
