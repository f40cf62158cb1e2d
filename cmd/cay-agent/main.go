// Command cay-agent is PID 1 of a sandbox: it buries orphans, runs processes
// and moves files for clients that hold the sandbox's token, and with -interp
// serves the code interpreter. It mounts nothing; the bundle did. With -sftp it
// is another program: the file server of one SSH session, on standard input
// and output. By the names systemctl and journalctl it is those commands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent"
	"github.com/cay-run/cay/internal/inside/agent/join"
	"github.com/cay-run/cay/internal/inside/agent/reap"
	"github.com/cay-run/cay/internal/inside/agent/sftp"
	"github.com/cay-run/cay/internal/inside/services"
)

// options are the command line.
type options struct {
	port       int
	interpPort int
	interp     bool
	languages  string
	sftp       bool
	join       string
	become     string
}

func main() {
	switch filepath.Base(os.Args[0]) {
	case "systemctl", "reboot", "poweroff", "halt", "shutdown", "telinit", "runlevel": // the others are systemd's links to it
		os.Exit(services.Systemctl(systemctlArgs(), os.Stdout, os.Stderr))
	case "init": // packages ask only whether there is one
		if os.Getpid() != 1 {
			fmt.Fprintln(os.Stderr, "init: the first process of this sandbox runs already")
			os.Exit(1)
		}
	case "journalctl":
		os.Exit(services.Journalctl(os.Args[1:], os.Stdout, os.Stderr))
	}
	var o options
	flag.IntVar(&o.port, "port", guest.AgentPort, "port of processes and files")
	flag.BoolVar(&o.interp, "interp", false, "serve the code interpreter too")
	flag.StringVar(&o.languages, "languages", "", "languages of the code interpreter, with commas; all if empty")
	flag.IntVar(&o.interpPort, "interp-port", guest.InterpPort, "port of the code interpreter")
	flag.BoolVar(&o.sftp, guest.SFTPFlag[1:], false, "serve files in SSH's protocol on standard input and output")
	flag.StringVar(&o.join, guest.JoinFlag[1:], "", "join standard input and output with a Unix socket")
	flag.StringVar(&o.become, services.WrapFlag[1:], "", "change the process as a service asks, and become its program")
	flag.Parse()
	if o.become != "" {
		fmt.Fprintln(os.Stderr, "cay-agent:", services.Become(o.become, flag.Args()))
		os.Exit(203) // as systemd says that a program did not start
	}
	if o.sftp {
		if err := sftp.Serve(stdio{os.Stdin, os.Stdout}); err != nil {
			fmt.Fprintln(os.Stderr, "cay-agent:", err)
			os.Exit(1)
		}
		return
	}
	if o.join != "" {
		if join.Socket(o.join, os.Stdin, os.Stdout) != nil {
			os.Exit(1) // without a word: only the socket speaks here
		}
		return
	}

	// Every sandbox pays for the agent's memory; it makes little garbage.
	debug.SetGCPercent(50)
	syscall.Umask(0o022)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, o, log); err != nil {
		fmt.Fprintln(os.Stderr, "cay-agent:", err)
		os.Exit(1)
	}
}

// systemctlArgs are the arguments of systemctl, also where a link to it is called.
func systemctlArgs() []string {
	if name := filepath.Base(os.Args[0]); name != "systemctl" {
		return append([]string{name}, os.Args[1:]...)
	}
	return os.Args[1:]
}

// stdio is standard input and output as one connection.
type stdio struct {
	io.Reader
	io.WriteCloser
}

// run serves until ctx ends.
func run(ctx context.Context, o options, log *slog.Logger) error {
	first := os.Getpid() == 1
	reaper := reap.New(first)
	defer reaper.Close()
	g, ctx := errgroup.WithContext(ctx)
	cfg := agent.Config{Reaper: reaper, Log: log, First: first}
	if first {
		cfg.Services = services.New(services.Config{Reaper: reaper, Self: guest.AgentPath, Log: log})
		g.Go(func() error {
			if err := cfg.Services.Serve(ctx); err != nil && ctx.Err() == nil {
				log.Error("services cannot be asked for", "err", err)
			}
			return nil
		})
	}
	a := agent.New(cfg)
	defer a.Close()

	if first {
		watched := os.Getenv(guest.WatchedVariable) != ""
		_ = os.Unsetenv(guest.WatchedVariable) // before the interpreter passes its environment on
		g.Go(func() error { a.Guard(ctx, watched); return nil })
	}
	if o.interp {
		if err := interpreter(ctx, g, o, a, reaper, log); err != nil {
			return err
		}
	}
	l, err := agent.Listen(ctx, o.port)
	if err != nil {
		return err
	}
	g.Go(func() error { return agent.Serve(ctx, l, a.Handler(), log) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
