package rest

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
)

// ListModelProviders lists a team's providers of models.
func (o own) ListModelProviders(ctx context.Context, _ cayv1.ListModelProvidersRequestObject) (cayv1.ListModelProvidersResponseObject, error) {
	list, err := o.providers.List(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := make(cayv1.ListModelProviders200JSONResponse, 0, len(list))
	for _, p := range list {
		out = append(out, wireProvider(p))
	}
	return out, nil
}

// GetModelProvider finds a provider.
func (o own) GetModelProvider(ctx context.Context, r cayv1.GetModelProviderRequestObject) (cayv1.GetModelProviderResponseObject, error) {
	p, err := o.providers.Get(ctx, callerOf(ctx), r.ProviderName)
	if err != nil {
		return nil, err
	}
	return cayv1.GetModelProvider200JSONResponse(wireProvider(p)), nil
}

// SetModelProvider makes a provider, or replaces one.
func (o own) SetModelProvider(ctx context.Context, r cayv1.SetModelProviderRequestObject) (cayv1.SetModelProviderResponseObject, error) {
	b := *r.Body
	p, err := o.providers.Set(ctx, callerOf(ctx), cay.ModelProvider{
		Name: r.ProviderName, Wire: cay.ModelWire(b.Wire), URL: b.URL, Secret: value(b.Secret, ""), Models: value(b.Models, nil),
		Order: value(b.Order, 0), Enabled: value(b.Enabled, true), Timeout: time.Duration(value(b.Timeout, 0)) * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return cayv1.SetModelProvider200JSONResponse(wireProvider(p)), nil
}

// RemoveModelProvider forgets a provider.
func (o own) RemoveModelProvider(ctx context.Context, r cayv1.RemoveModelProviderRequestObject) (cayv1.RemoveModelProviderResponseObject, error) {
	if err := o.providers.Remove(ctx, callerOf(ctx), r.ProviderName); err != nil {
		return nil, err
	}
	return cayv1.RemoveModelProvider204Response{}, nil
}

func wireProvider(p cay.ModelProvider) cayv1.ModelProvider {
	out := cayv1.ModelProvider{
		Name: p.Name, Wire: cayv1.ModelWire(p.Wire), URL: p.URL, Secret: pointer(p.Secret), Order: p.Order, Enabled: p.Enabled,
		CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt,
	}
	if len(p.Models) > 0 {
		out.Models = &p.Models
	}
	if p.Timeout > 0 {
		out.Timeout = pointer(int(p.Timeout / time.Second))
	}
	return out
}
