package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

const (
	// keepKeys is how long a create can be repeated with its key.
	keepKeys = 24 * time.Hour
	maxOnce  = 255 // bytes of an idempotency key
	// claimWithin is how long a repeated create waits for the first one: a
	// third of the time that the SDKs give a request, so that they try again.
	claimWithin = 20 * time.Second
)

// onceKey is a key that one caller at a time works with.
type onceKey struct {
	team cay.TeamID
	key  string
}

// createOnce is Create for a caller that may ask again with the same key, for
// a day: it gets the sandbox that the first call made, however that call
// ended. One that could not be started is made anew. The create goes on after the
// caller has gone away, because the caller can find the sandbox later.
func (c *Controller) createOnce(ctx context.Context, who cay.Caller, spec cay.CreateSpec) (cay.Sandbox, error) {
	once, err := onceOf(who, spec)
	if err != nil {
		return cay.Sandbox{}, err
	}
	release, err := c.claim(ctx, onceKey{who.Team, once.Key})
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer release()
	s, err := c.createdOr(ctx, who, spec, once)
	if cay.CodeOf(err) == cay.CodeKeyInProgress { // another server's create came first, and is recorded
		return c.createdOr(ctx, who, spec, once)
	}
	return s, err
}

// createdOr finds the sandbox that a create of the key made, or creates one.
func (c *Controller) createdOr(ctx context.Context, who cay.Caller, spec cay.CreateSpec, once cay.Once) (cay.Sandbox, error) {
	once.Since = ledger.Now().Add(-keepKeys)
	before, id, err := c.store.CreatedWith(ctx, who.Team, once.Key, once.Since)
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return c.create(context.WithoutCancel(ctx), who, spec, once)
	case err != nil:
		return cay.Sandbox{}, err
	case before.Digest != once.Digest:
		return cay.Sandbox{}, cay.Errorf(cay.Conflict, "Idempotency-Key: %q was used for another request, or by an API key with other bounds", once.Key).
			WithCode(cay.CodeKeyMismatch).WithHint("use a new key for a new sandbox")
	}
	s, err := c.store.Sandbox(ctx, who.Team, id)
	switch {
	case err == nil && s.State == cay.Creating:
		// No create works with the key: the one that did could not record its end.
		return cay.Sandbox{}, cay.Errorf(cay.Conflict, "the create with this Idempotency-Key made sandbox %s, and its end could not be recorded", id).
			WithCode(cay.CodeKeyUnknown).WithHint("look whether it is listed; use a new key for a new sandbox")
	case err == nil && s.State != cay.Killed:
		return s, nil
	case err == nil && s.Cause != cay.CauseFailedStart:
		return cay.Sandbox{}, cay.Errorf(cay.Conflict, "sandbox %s, which this Idempotency-Key made, has ended: %s", id, s.Cause).
			WithCode(cay.CodeKeyEnded).WithHint("use a new key for a new sandbox")
	case err != nil && cay.KindOf(err) != cay.NotFound:
		return cay.Sandbox{}, err
	}
	once.Repeats = id
	return c.create(context.WithoutCancel(ctx), who, spec, once)
}

// onceOf is a spec's key with a digest of all else that it asks for, and of the
// bounds of who asks: a key that is kept to a template does not get the sandbox
// of another template by repeating the request of a key that may make it.
func onceOf(who cay.Caller, spec cay.CreateSpec) (cay.Once, error) {
	key := spec.IdempotencyKey
	if len(key) > maxOnce {
		return cay.Once{}, cay.Errorf(cay.Invalid, "Idempotency-Key: must have at most %d bytes", maxOnce)
	}
	for _, b := range []byte(key) {
		if b < ' ' || b > '~' {
			return cay.Once{}, cay.Errorf(cay.Invalid, "Idempotency-Key: must be printable ASCII")
		}
	}
	spec.IdempotencyKey, spec.Near = "", "" // where it is to be is nothing of it
	text, err := json.Marshal(struct {
		Team cay.TeamID
		cay.CreateSpec
		Bounds *cay.KeyBounds `json:",omitempty"`
	}{who.Team, spec, who.Bounds})
	if err != nil {
		return cay.Once{}, cay.Wrap(cay.Internal, err, "cannot tell requests apart")
	}
	sum := sha256.Sum256(text)
	return cay.Once{Key: key, Digest: hex.EncodeToString(sum[:])}, nil
}

// claim takes a key until release, and waits while another create has it.
func (c *Controller) claim(ctx context.Context, key onceKey) (release func(), err error) {
	late := time.NewTimer(claimWithin)
	defer late.Stop()
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
		case <-late.C:
			return nil, cay.Errorf(cay.Conflict, "a create with the same Idempotency-Key is under way").WithCode(cay.CodeKeyInProgress)
		case <-ctx.Done():
			return nil, cay.Wrap(cay.Unavailable, ctx.Err(), "a create with the same Idempotency-Key is under way")
		}
	}
}

// CreatedWith finds the sandbox that a team's create with an idempotency key
// made in the last day, ended or not.
func (c *Controller) CreatedWith(ctx context.Context, who cay.Caller, key string) (cay.Sandbox, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Sandbox{}, err
	}
	_, id, err := c.store.CreatedWith(ctx, who.Team, key, ledger.Now().Add(-keepKeys))
	if err != nil {
		return cay.Sandbox{}, err
	}
	return c.store.Sandbox(ctx, who.Team, id)
}
