package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/cay-run/cay"
)

const (
	// keepKeys is how long a create can be repeated with its key.
	keepKeys = 24 * time.Hour
	maxOnce  = 255 // bytes of an idempotency key
)

// onceKey is what nobody else may be at work with.
type onceKey struct {
	team cay.TeamID
	key  string
}

// createOnce is Create for a caller that may ask again with the same key, for
// a day: it gets the sandbox that the first call made, however that call
// ended. One that could not be started is made anew. The caller may go away;
// what it asked for is done, because it can find it.
func (c *Control) createOnce(ctx context.Context, spec cay.CreateSpec) (cay.Sandbox, error) {
	once, err := onceOf(spec)
	if err != nil {
		return cay.Sandbox{}, err
	}
	release, err := c.claim(ctx, onceKey{spec.Team, once.Key})
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer release()
	before, id, err := c.store.CreatedWith(ctx, spec.Team, once.Key, now().Add(-keepKeys))
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return c.create(context.WithoutCancel(ctx), spec, once)
	case err != nil:
		return cay.Sandbox{}, err
	case before.Digest != once.Digest:
		return cay.Sandbox{}, cay.Errorf(cay.Conflict, "Idempotency-Key: %q was used for another request", once.Key).
			WithCode("idempotency_key_reused").WithHint("use a new key for a new sandbox")
	}
	s, err := c.store.Sandbox(ctx, spec.Team, id)
	switch {
	case err == nil && s.State != cay.Killed:
		return s, nil
	case err == nil && s.Cause != cay.CauseFailedStart:
		return cay.Sandbox{}, cay.Errorf(cay.Conflict, "sandbox %s, which this Idempotency-Key made, has ended: %s", id, s.Cause).
			WithCode("idempotency_key_ended").WithHint("use a new key for a new sandbox")
	case err != nil && cay.KindOf(err) != cay.NotFound:
		return cay.Sandbox{}, err
	}
	return c.create(context.WithoutCancel(ctx), spec, once)
}

// onceOf is a spec's key with a digest of all else that it asks for.
func onceOf(spec cay.CreateSpec) (cay.Once, error) {
	key := spec.IdempotencyKey
	if len(key) > maxOnce {
		return cay.Once{}, cay.Errorf(cay.Invalid, "Idempotency-Key: must have at most %d bytes", maxOnce)
	}
	for _, b := range []byte(key) {
		if b < ' ' || b > '~' {
			return cay.Once{}, cay.Errorf(cay.Invalid, "Idempotency-Key: must be printable ASCII")
		}
	}
	spec.IdempotencyKey = ""
	text, err := json.Marshal(spec)
	if err != nil {
		return cay.Once{}, cay.Wrap(cay.Internal, err, "cannot tell requests apart")
	}
	sum := sha256.Sum256(text)
	return cay.Once{Key: key, Digest: hex.EncodeToString(sum[:])}, nil
}

// claim waits until nobody works with a key, and takes it until release.
func (c *Control) claim(ctx context.Context, key onceKey) (release func(), err error) {
	for {
		c.mu.Lock()
		busy := c.claimed[key]
		if busy == nil {
			done := make(chan struct{})
			c.claimed[key] = done
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				delete(c.claimed, key)
				c.mu.Unlock()
				close(done)
			}, nil
		}
		c.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, cay.Wrap(cay.Unavailable, ctx.Err(), "a create with the same Idempotency-Key is under way")
		}
	}
}

// CreatedWith finds the sandbox that a team's create with an idempotency key
// made in the last day, ended or not.
func (c *Control) CreatedWith(ctx context.Context, team cay.TeamID, key string) (cay.Sandbox, error) {
	_, id, err := c.store.CreatedWith(ctx, team, key, now().Add(-keepKeys))
	if err != nil {
		return cay.Sandbox{}, err
	}
	return c.store.Sandbox(ctx, team, id)
}
