package rest

import (
	"context"

	"github.com/cay-run/cay"
)

func wireSecret(x cay.Secret) Secret {
	metadata := StringMap(x.Metadata)
	if metadata == nil {
		metadata = StringMap{}
	}
	return Secret{
		SecretID: string(x.ID), Name: x.Name, CurrentVersion: x.Version, Metadata: metadata,
		CreatedAt: x.CreatedAt, UpdatedAt: x.UpdatedAt,
	}
}

// ListSecrets lists a page of secrets, without their values.
func (s *server) ListSecrets(ctx context.Context, r ListSecretsRequestObject) (ListSecretsResponseObject, error) {
	list, err := s.control.Secrets(ctx, teamOf(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := cut(list, func(x cay.Secret) string { return string(x.ID) }, r.Params.NextToken, r.Params.Limit)
	if err != nil {
		return nil, err
	}
	out := make([]Secret, 0, len(page))
	for _, x := range page {
		out = append(out, wireSecret(x))
	}
	return ListSecrets200JSONResponse{Body: out, Headers: ListSecrets200ResponseHeaders{XNextToken: next}}, nil
}

// CreateSecret keeps a value.
func (s *server) CreateSecret(ctx context.Context, r CreateSecretRequestObject) (CreateSecretResponseObject, error) {
	x, err := s.control.CreateSecret(ctx, teamOf(ctx), value(r.Body.Name, ""), value(r.Body.Value, ""), value(r.Body.Metadata, nil))
	if err != nil {
		return nil, err
	}
	return CreateSecret201JSONResponse(wireSecret(x)), nil
}

// GetSecret tells everything of a secret but its value.
func (s *server) GetSecret(ctx context.Context, r GetSecretRequestObject) (GetSecretResponseObject, error) {
	x, err := s.control.Secret(ctx, teamOf(ctx), r.SecretID)
	if err != nil {
		return nil, err
	}
	return GetSecret200JSONResponse(wireSecret(x)), nil
}

// UpdateSecret gives a secret a new value.
func (s *server) UpdateSecret(ctx context.Context, r UpdateSecretRequestObject) (UpdateSecretResponseObject, error) {
	x, err := s.control.UpdateSecret(ctx, teamOf(ctx), r.SecretID, value(r.Body.Value, ""), value(r.Body.Metadata, nil))
	if err != nil {
		return nil, err
	}
	return UpdateSecret200JSONResponse(wireSecret(x)), nil
}

// DeleteSecret forgets a secret.
func (s *server) DeleteSecret(ctx context.Context, r DeleteSecretRequestObject) (DeleteSecretResponseObject, error) {
	if err := s.control.RemoveSecret(ctx, teamOf(ctx), r.SecretID); err != nil {
		return nil, err
	}
	return DeleteSecret204Response{}, nil
}
