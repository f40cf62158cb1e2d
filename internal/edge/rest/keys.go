package rest

import (
	"context"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/accounts"
)

const maxKeysPage = 1000

// ListAPIKeys lists a team's keys, page by page.
func (o own) ListAPIKeys(ctx context.Context, r cayv1.ListAPIKeysRequestObject) (cayv1.ListAPIKeysResponseObject, error) {
	limit := int(value(r.Params.Limit, maxKeysPage))
	if limit < 1 || limit > maxKeysPage {
		return nil, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxKeysPage)
	}
	list, err := o.accounts.Keys(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	if after := value(r.Params.NextToken, ""); after != "" {
		i := slices.IndexFunc(list, func(k cay.APIKey) bool { return string(k.ID) == after })
		if i < 0 {
			return nil, cay.Errorf(cay.Invalid, "nextToken: is of no page, or its key was removed").WithHint("begin with the first page")
		}
		list = list[i+1:]
	}
	out := cayv1.ListAPIKeys200JSONResponse{Body: []cayv1.APIKey{}}
	if len(list) > limit {
		list = list[:limit]
		out.Headers.XNextToken = pointer(string(list[limit-1].ID))
	}
	for _, k := range list {
		out.Body = append(out.Body, wireAPIKey(k))
	}
	return out, nil
}

// CreateAPIKey makes a key.
func (o own) CreateAPIKey(ctx context.Context, r cayv1.CreateAPIKeyRequestObject) (cayv1.CreateAPIKeyResponseObject, error) {
	key, record, err := o.accounts.CreateKey(ctx, callerOf(ctx), accounts.NewKey{
		Name: r.Body.Name, Scopes: value(r.Body.Scopes, nil), ExpiresAt: value(r.Body.ExpiresAt, time.Time{}),
		Bounds: cay.KeyBounds{Templates: value(r.Body.Templates, nil), Metadata: value(r.Body.Metadata, nil)},
	})
	if err != nil {
		return nil, err
	}
	out := wireAPIKey(record)
	out.Key = &key
	return cayv1.CreateAPIKey201JSONResponse(out), nil
}

// GetAPIKey tells of a key.
func (o own) GetAPIKey(ctx context.Context, r cayv1.GetAPIKeyRequestObject) (cayv1.GetAPIKeyResponseObject, error) {
	k, err := o.accounts.Key(ctx, callerOf(ctx), cay.KeyID(r.KeyID))
	if err != nil {
		return nil, err
	}
	return cayv1.GetAPIKey200JSONResponse(wireAPIKey(k)), nil
}

// UpdateAPIKey changes a key's name or its end.
func (o own) UpdateAPIKey(ctx context.Context, r cayv1.UpdateAPIKeyRequestObject) (cayv1.UpdateAPIKeyResponseObject, error) {
	change := accounts.KeyChange{Name: r.Body.Name, ExpiresAt: r.Body.ExpiresAt}
	if value(r.Body.NeverExpires, false) {
		if change.ExpiresAt != nil {
			return nil, cay.Errorf(cay.Invalid, "neverExpires: contradicts expiresAt")
		}
		change.ExpiresAt = new(time.Time)
	}
	k, err := o.accounts.UpdateKey(ctx, callerOf(ctx), cay.KeyID(r.KeyID), change)
	if err != nil {
		return nil, err
	}
	return cayv1.UpdateAPIKey200JSONResponse(wireAPIKey(k)), nil
}

// RemoveAPIKey removes a key.
func (o own) RemoveAPIKey(ctx context.Context, r cayv1.RemoveAPIKeyRequestObject) (cayv1.RemoveAPIKeyResponseObject, error) {
	if err := o.accounts.RemoveKey(ctx, callerOf(ctx), cay.KeyID(r.KeyID)); err != nil {
		return nil, err
	}
	return cayv1.RemoveAPIKey204Response{}, nil
}

func wireAPIKey(k cay.APIKey) cayv1.APIKey {
	out := cayv1.APIKey{
		ID: string(k.ID), Name: k.Name, Mask: k.Mask, CreatedAt: k.CreatedAt.UTC(), CreatedBy: pointer(k.CreatedBy),
		LastUsed: pointer(k.LastUsed), ExpiresAt: pointer(k.ExpiresAt), Scopes: append([]string{}, k.Caller().Scopes.Names()...),
	}
	if len(k.Bounds.Templates) > 0 {
		out.Templates = &k.Bounds.Templates
	}
	if len(k.Bounds.Metadata) > 0 {
		out.Metadata = &k.Bounds.Metadata
	}
	return out
}
