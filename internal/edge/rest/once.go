package rest

import (
	"context"

	"github.com/cay-run/cay/api/rest/cayv1"
)

// GetIdempotencyKey finds the sandbox that a create with a key made.
func (o own) GetIdempotencyKey(ctx context.Context, r cayv1.GetIdempotencyKeyRequestObject) (cayv1.GetIdempotencyKeyResponseObject, error) {
	b, err := o.sandboxes.CreatedWith(ctx, callerOf(ctx), r.Key)
	if err != nil {
		return nil, err
	}
	return cayv1.GetIdempotencyKey200JSONResponse{
		SandboxID: string(b.ID), State: string(b.State), Reason: pointer(string(b.Cause)), StartedAt: b.StartedAt,
	}, nil
}
