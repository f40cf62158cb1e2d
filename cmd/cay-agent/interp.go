package main

import (
	"context"
	"log/slog"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent"
	"github.com/cay-run/cay/internal/inside/agent/reap"
	"github.com/cay-run/cay/internal/inside/agent/user"
	"github.com/cay-run/cay/internal/inside/interp"
)

// interpreter serves code contexts on a port of their own, as the default
// user, and gives every clone's kernels randomness of their own.
func interpreter(ctx context.Context, g *errgroup.Group, o options, a *agent.Agent, reaper *reap.Reaper, log *slog.Logger) error {
	u, err := user.Lookup(guest.User)
	if err != nil {
		return err
	}
	srv, err := interp.New(interp.Config{
		User:       u.Name,
		Home:       u.Home,
		Credential: &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups},
		Env:        a.Env,
		Languages:  strings.FieldsFunc(o.languages, func(r rune) bool { return r == ',' }),
		Spawn:      reaper.Spawn,
		Why:        a.Why,
		Log:        a.Log(),
	})
	if err != nil {
		return err
	}
	a.OnInit(func(ctx context.Context, in guest.Init) error {
		switch in.Mode {
		case guest.ModeCreate:
			return srv.Reseed(ctx, in.Entropy)
		case guest.ModeResume:
			return srv.Stir(ctx, in.Entropy)
		}
		return nil
	})
	l, err := agent.Listen(ctx, o.interpPort)
	if err != nil {
		srv.Close()
		return err
	}
	g.Go(func() error {
		defer srv.Close()
		return agent.Serve(ctx, l, srv.Handler(), log)
	})
	// /health of the interpreter fails until its first kernel is warm: its
	// template's build waits for that.
	g.Go(func() error {
		if err := srv.Start(ctx); err != nil {
			log.Error("interpreter did not start", "err", err)
		}
		return nil
	})
	return nil
}
