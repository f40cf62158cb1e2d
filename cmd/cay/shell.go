package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/tty"
)

type connectCmd struct {
	ID   string `arg:"" help:"Sandbox's id."`
	User string `short:"u" help:"The user inside."`
}

// Help says what it keeps alive.
func (connectCmd) Help() string {
	return "The sandbox does not end while the shell is open."
}

func (c *connectCmd) Run(a *app) error {
	if !isTerminal(a.in) || !isTerminal(a.out) {
		return cay.Errorf(cay.Invalid, "a shell needs a terminal").
			WithHint("for scripts: cay sandbox exec %s -- COMMAND", clean(c.ID))
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	var box *client.Sandbox
	err = a.wait("connecting", func() (err error) {
		box, err = api.Connect(a.ctx, c.ID, enough)
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	go keepAlive(ctx, api, c.ID)
	return a.shell(ctx, box, c.User)
}

// shell runs a login shell on this terminal.
func (a *app) shell(ctx context.Context, box *client.Sandbox, user string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGQUIT) // which would end the program where it stands
	defer stop()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)

	now, err := tty.Size(a.in)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "the terminal's size cannot be read")
	}
	kind := a.getenv("TERM")
	if kind == "" {
		kind = "xterm-256color"
	}
	p, err := box.Start(ctx, client.Command{
		Path: "/bin/bash", Args: []string{"-i", "-l"}, User: user, TTY: &now, Stdout: a.out,
		Env: map[string]string{"TERM": kind, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
	})
	if err != nil {
		return err
	}
	// From here on keys are the sandbox's, interrupts too. The terminal gets
	// its old ways back however this function is left.
	raw, err := tty.MakeRaw(a.in)
	if err != nil {
		endShell(ctx, p)
		return err
	}
	defer raw.Restore()
	raw.Background(func() { pass(ctx, a.in, p) })
	raw.Background(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-resized:
				if size, err := tty.Size(a.in); err == nil {
					_ = p.Resize(ctx, size)
				}
			}
		}
	})
	exit, err := p.Wait()
	raw.Restore() // what follows may take its time
	if ctx.Err() != nil || err != nil {
		endShell(ctx, p)
		// A half-drawn screen must not swallow the message.
		fmt.Fprint(a.out, "\x1b[0m\x1b[?25h\r\n")
	}
	switch {
	case ctx.Err() != nil:
		return exitStatus(130)
	case err != nil:
		return err
	case exit.Code < 0:
		return exitStatus(137)
	case exit.Code > 0:
		return exitStatus(exit.Code)
	}
	return nil
}

// endShell ends a shell without a terminal, if its server answers.
func endShell(ctx context.Context, p *client.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = p.Kill(ctx) // it may be gone
}

// keepAlive puts a sandbox's end off while a user is in it.
func keepAlive(ctx context.Context, api *client.Client, id string) {
	tick := time.NewTicker(enough / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// A miss is no matter: the next one comes before the end.
			_ = api.KeepAlive(ctx, id, enough)
		}
	}
}
