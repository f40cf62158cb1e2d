package rest

import (
	"context"

	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/cay-run/cay"
)

func wireSecret(x cay.Secret) e2b.Secret {
	metadata := e2b.StringMap(x.Metadata)
	if metadata == nil {
		metadata = e2b.StringMap{}
	}
	return e2b.Secret{
		SecretID: string(x.ID), Name: x.Name, CurrentVersion: x.Version, Metadata: metadata,
		CreatedAt: x.CreatedAt, UpdatedAt: x.UpdatedAt,
	}
}

// ListSecrets lists a page of secrets, without their values.
func (s *server) ListSecrets(ctx context.Context, r e2b.ListSecretsRequestObject) (e2b.ListSecretsResponseObject, error) {
	list, err := s.fleet.Secrets(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := cut(list, func(x cay.Secret) string { return string(x.ID) }, r.Params.NextToken, r.Params.Limit)
	if err != nil {
		return nil, err
	}
	out := make([]e2b.Secret, 0, len(page))
	for _, x := range page {
		out = append(out, wireSecret(x))
	}
	return e2b.ListSecrets200JSONResponse{Body: out, Headers: e2b.ListSecrets200ResponseHeaders{XNextToken: next}}, nil
}

// CreateSecret keeps a value.
func (s *server) CreateSecret(ctx context.Context, r e2b.CreateSecretRequestObject) (e2b.CreateSecretResponseObject, error) {
	x, err := s.fleet.CreateSecret(ctx, callerOf(ctx), value(r.Body.Name, ""), value(r.Body.Value, ""), value(r.Body.Metadata, nil))
	if err != nil {
		return nil, err
	}
	return e2b.CreateSecret201JSONResponse(wireSecret(x)), nil
}

// GetSecret tells everything of a secret but its value.
func (s *server) GetSecret(ctx context.Context, r e2b.GetSecretRequestObject) (e2b.GetSecretResponseObject, error) {
	x, err := s.fleet.Secret(ctx, callerOf(ctx), r.SecretID)
	if err != nil {
		return nil, err
	}
	return e2b.GetSecret200JSONResponse(wireSecret(x)), nil
}

// UpdateSecret gives a secret a new value.
func (s *server) UpdateSecret(ctx context.Context, r e2b.UpdateSecretRequestObject) (e2b.UpdateSecretResponseObject, error) {
	x, err := s.fleet.UpdateSecret(ctx, callerOf(ctx), r.SecretID, value(r.Body.Value, ""), value(r.Body.Metadata, nil))
	if err != nil {
		return nil, err
	}
	return e2b.UpdateSecret200JSONResponse(wireSecret(x)), nil
}

// DeleteSecret forgets a secret.
func (s *server) DeleteSecret(ctx context.Context, r e2b.DeleteSecretRequestObject) (e2b.DeleteSecretResponseObject, error) {
	if err := s.fleet.RemoveSecret(ctx, callerOf(ctx), r.SecretID); err != nil {
		return nil, err
	}
	return e2b.DeleteSecret204Response{}, nil
}
