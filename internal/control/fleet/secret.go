package fleet

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Sealer encrypts values for a place in the records.
type Sealer interface {
	Seal(plain []byte, place string) string
	Open(text, place string) ([]byte, error)
}

func placeOf(x cay.Secret) string { return "secret " + string(x.ID) }

// CreateSecret keeps a value under a name that is new to the team. Only
// SecretValue gives it away again.
func (c *Catalogue) CreateSecret(ctx context.Context, who cay.Caller, name, value string, metadata map[string]string) (cay.Secret, error) {
	if err := who.May(cay.WriteSecrets); err != nil {
		return cay.Secret{}, err
	}
	if err := cay.CheckSecretName(name); err != nil {
		return cay.Secret{}, err
	}
	at := ledger.Now()
	x := cay.Secret{
		ID: cay.NewSecretID(), Team: who.Team, Name: strings.ToLower(name), Version: 1, Metadata: metadata,
		CreatedAt: at, UpdatedAt: at,
	}
	if err := c.seal(&x, value); err != nil {
		return cay.Secret{}, err
	}
	err := c.ledger.Do(ctx, who, "secret.created", string(x.ID), func(tx store.Store) error {
		if _, err := tx.Secret(ctx, who.Team, x.Name); cay.KindOf(err) != cay.NotFound { // it may be an id
			return cmp.Or(err, error(cay.Errorf(cay.Conflict, "")))
		}
		return tx.AddSecret(ctx, x)
	}, "name", x.Name, "bytes", strconv.Itoa(len(value)))
	if cay.KindOf(err) == cay.Conflict {
		err = cay.Wrap(cay.Conflict, err, "name: there is a secret %q already", x.Name).WithHint("give it a new value, or choose another name")
	}
	return x, err
}

func (c *Catalogue) seal(x *cay.Secret, value string) error {
	switch {
	case value == "":
		return cay.Errorf(cay.Invalid, "value: must not be empty")
	case len(value) > cay.MaxSecretValue:
		return cay.Errorf(cay.Invalid, "value: has more than %d bytes", cay.MaxSecretValue)
	case c.sealer == nil:
		return cay.Errorf(cay.Unsupported, "this server keeps no secrets")
	}
	if err := cay.CheckSecretMetadata(x.Metadata); err != nil {
		return err
	}
	x.Sealed = c.sealer.Seal([]byte(value), placeOf(*x))
	return nil
}

// Secret finds a team's secret by id or name.
func (c *Catalogue) Secret(ctx context.Context, who cay.Caller, ref string) (cay.Secret, error) {
	if err := who.May(cay.ReadSecrets); err != nil {
		return cay.Secret{}, err
	}
	return c.secret(ctx, who.Team, ref)
}

func (c *Catalogue) secret(ctx context.Context, team cay.TeamID, ref string) (cay.Secret, error) {
	x, err := c.store.Secret(ctx, team, strings.ToLower(ref))
	if cay.KindOf(err) == cay.NotFound {
		err = cay.Wrap(cay.NotFound, err, "secret %.140q not found", ref)
	}
	return x, err
}

// Secrets lists a team's secrets, oldest first.
func (c *Catalogue) Secrets(ctx context.Context, who cay.Caller) ([]cay.Secret, error) {
	if err := who.May(cay.ReadSecrets); err != nil {
		return nil, err
	}
	return c.store.Secrets(ctx, who.Team)
}

// UpdateSecret gives a secret a new value, in use from the next request on.
// Metadata that is nil stays.
func (c *Catalogue) UpdateSecret(ctx context.Context, who cay.Caller, ref, value string, metadata map[string]string) (cay.Secret, error) {
	if err := who.May(cay.WriteSecrets); err != nil {
		return cay.Secret{}, err
	}
	x, err := c.secret(ctx, who.Team, ref)
	if err != nil {
		return cay.Secret{}, err
	}
	x.Version, x.UpdatedAt = x.Version+1, ledger.Now()
	if metadata != nil {
		x.Metadata = metadata
	}
	if err := c.seal(&x, value); err != nil {
		return cay.Secret{}, err
	}
	return x, c.ledger.Do(ctx, who, "secret.updated", string(x.ID), func(tx store.Store) error { return tx.UpdateSecret(ctx, x) },
		"name", x.Name, "version", strconv.Itoa(int(x.Version)), "bytes", strconv.Itoa(len(value)))
}

// RemoveSecret forgets a secret and its value.
func (c *Catalogue) RemoveSecret(ctx context.Context, who cay.Caller, ref string) error {
	if err := who.May(cay.WriteSecrets); err != nil {
		return err
	}
	x, err := c.secret(ctx, who.Team, ref)
	if err != nil {
		return err
	}
	return c.ledger.Do(ctx, who, "secret.removed", string(x.ID), func(tx store.Store) error { return tx.RemoveSecret(ctx, who.Team, x.ID) },
		"name", x.Name)
}

// SecretValue is the present value of a secret. It is for the egress proxy
// alone: no face may call it.
func (c *Catalogue) SecretValue(ctx context.Context, team cay.TeamID, name string) (string, error) {
	x, err := c.secret(ctx, team, name)
	if err != nil {
		return "", err
	}
	if c.sealer == nil {
		return "", cay.Errorf(cay.Unsupported, "this server keeps no secrets")
	}
	value, err := c.sealer.Open(x.Sealed, placeOf(x))
	return string(value), err
}
