// Package accounts has the use cases of teams, people and keys: what may be done
// on whose behalf. Credentials are checked by package auth; what they open ends
// when a record here changes.
package accounts

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/ticks"
)

// Possessions are what a team has besides its credentials.
type Possessions interface {
	// EndSandboxes ends a team's sandboxes that run, and with paused also those
	// that are saved. It returns how many it ended, and how many it could not.
	EndSandboxes(ctx context.Context, who cay.Caller, paused bool, evidence string) (ended, failed int, err error)
	// RemoveTemplate removes a template, a team's own.
	RemoveTemplate(ctx context.Context, who cay.Caller, ref string) error
	// Images lists a team's images of registries; RemoveImage forgets one.
	Images(ctx context.Context, who cay.Caller) ([]cay.Image, error)
	RemoveImage(ctx context.Context, who cay.Caller, ref string) error
	// RemoveVolumes removes a team's volumes, which no sandbox mounts any more.
	RemoveVolumes(ctx context.Context, who cay.Caller) error
}

// Config is what Accounts need.
type Config struct {
	Ledger      *ledger.Ledger
	Store       store.Store
	Auth        *auth.Auth
	Possessions Possessions
	// TeamChanged is told when a team was disabled or enabled.
	TeamChanged func(cay.TeamID)
	Log         *slog.Logger
}

// Accounts carry the use cases out.
type Accounts struct {
	ledger *ledger.Ledger
	store  store.Store
	auth   *auth.Auth
	own    Possessions
	told   func(cay.TeamID)
	log    *slog.Logger
}

// New returns the accounts of a store.
func New(cfg Config) *Accounts {
	return &Accounts{cfg.Ledger, cfg.Store, cfg.Auth, cfg.Possessions, cfg.TeamChanged, cfg.Log}
}

const (
	// lookEvery is how often removals of teams go on, and keys are forgotten.
	lookEvery = time.Minute
	// keepExpired is how long an expired key is listed.
	keepExpired = 7 * 24 * time.Hour
)

// RunAccounts finishes removals of teams that were broken off, and forgets keys
// that expired long ago, until ctx ends.
func (a *Accounts) RunAccounts(ctx context.Context) { a.look(ctx) }

// RunUses notes the uses of credentials until ctx ends: each server its own.
func (a *Accounts) RunUses(ctx context.Context) { a.auth.Run(ctx) }

// EndOfRemoved ends what this server runs of teams that are removed.
func (a *Accounts) EndOfRemoved(ctx context.Context) error {
	teams, err := a.store.RemovedTeams(ctx)
	for _, t := range teams {
		_, _, failed := a.own.EndSandboxes(ctx, cay.ForTeam(t.ID), true, "its team was removed")
		err = errors.Join(err, failed)
	}
	return err
}

func (a *Accounts) look(ctx context.Context) {
	for range ticks.AtOnce(ctx, lookEvery) {
		if err := a.clearRemoved(ctx); err != nil && ctx.Err() == nil {
			a.log.Error("a removed team could not be cleared yet", "err", err)
		}
		if _, err := a.store.PruneKeys(ctx, time.Now().Add(-keepExpired)); err != nil && ctx.Err() == nil {
			a.log.Error("expired keys could not be forgotten", "err", err)
		}
	}
}

// change does one change of a team's accounts, with its event, in one
// transaction.
func (a *Accounts) change(ctx context.Context, e cay.Event, f func(tx store.Store) error) error {
	err := a.store.Tx(ctx, func(tx store.Store) error {
		if err := f(tx); err != nil {
			return err
		}
		return tx.AddEvents(ctx, e)
	})
	if err == nil {
		a.ledger.Wake(e.Team)
	}
	return err
}

// of stands for a team in its events.
func of(team cay.TeamID) cay.Sandbox { return cay.Sandbox{Team: team} }
