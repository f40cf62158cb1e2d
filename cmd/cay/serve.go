package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/loopfs"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/operator/doctor"
	"github.com/cay-run/cay/internal/server"
	"github.com/cay-run/cay/internal/trail"
)

type serverCmd struct{}

// Help lists the settings.
func (serverCmd) Help() string {
	return settings() + "\nSandboxes live on when it ends, and are taken over when it starts again."
}

func (serverCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	return a.serve(cfg)
}

type upCmd struct{}

// Help lists the settings.
func (upCmd) Help() string { return settings() }

func (upCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if !cfg.RunsSandboxes() {
		return a.serve(cfg)
	}
	if err := loopfs.Mount(a.ctx, cfg.Data); err != nil { // the checks below look into it
		return err
	}
	checks := doctor.Run(a.ctx, cfg, running(cfg))
	failed := false
	for _, c := range checks {
		failed = failed || c.Status == doctor.Fail
	}
	if a.logsJSON(cfg) {
		a.logChecks(cfg, checks)
	} else {
		report := *a
		report.out = a.err
		report.printChecks(checks)
	}
	if failed && a.logsJSON(cfg) {
		return exitStatus(1)
	}
	if failed {
		fmt.Fprintln(a.err, "error: this machine cannot run sandboxes yet; see ✗ above")
		return exitStatus(1)
	}
	return a.serve(cfg)
}

// serve serves until its context ends. The server builds the templates that it
// lacks meanwhile.
func (a *app) serve(cfg config.Config) error {
	log := a.logger(cfg)
	slog.SetDefault(log) // for what a library says
	err := a.serveWith(cfg, log)
	if err == nil || !a.logsJSON(cfg) || errors.Is(err, context.Canceled) && a.ctx.Err() != nil {
		return err
	}
	var ours *cay.Error
	hint := ""
	if errors.As(err, &ours) {
		hint = ours.Hint
	}
	log.Error("the server ends", "err", err, "hint", hint)
	return exitStatus(1)
}

func (a *app) serveWith(cfg config.Config, log *slog.Logger) error {
	s, err := server.New(a.ctx, cfg, server.ThisMachine(cfg), log)
	if err != nil {
		return err
	}
	defer endAtLast(s.Lost(), lostWithin, func() {
		log.Error("another server has the records, and this one does not end by itself: it ends as if it were killed")
		os.Exit(1)
	})()
	defer func() {
		if err := s.Close(); err != nil {
			log.Warn("the server did not end cleanly", "err", err)
		}
	}()
	s.StandIn()
	go func() {
		select {
		case <-s.Ready():
			a.welcome(cfg, s.FirstKey())
			a.tellBuilding(cfg, s.Building())
			a.tellConsole(cfg)
			a.tellFirst(cfg, s.Building(), log)
		case <-a.ctx.Done():
		}
	}()
	return s.Run(a.ctx)
}

// lostWithin is how long a server may take to end whose records another one has.
const lostWithin = 20 * time.Second

// endAtLast calls end when the server is lost and stop is not called within a time of that.
func endAtLast(lost <-chan struct{}, within time.Duration, end func()) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-lost:
		case <-stopped:
			return
		}
		select {
		case <-time.After(within):
			end()
		case <-stopped:
		}
	}()
	return func() { close(stopped) }
}

// logger is the server's log.
func (a *app) logger(cfg config.Config) *slog.Logger {
	level, err := cfg.Level()
	if err != nil { // which config.Load has refused
		level = slog.LevelInfo
	}
	return trail.NewLog(a.err, a.logsJSON(cfg), level)
}

// logsJSON reports whether each line of the log is JSON: then nothing else is
// written beside it.
func (a *app) logsJSON(cfg config.Config) bool {
	return cfg.LogFormat == "json" || cfg.LogFormat == "" && a.json
}

// tellFirst shows the progress of the first template until it is ready.
func (a *app) tellFirst(cfg config.Config, building []string, log *slog.Logger) {
	if len(building) == 0 {
		return
	}
	update, end := a.firstBuild(cfg, log)
	err := operator.Ask(cfg).WaitForTemplates(a.ctx, building[:1], update)
	end()
	if err == nil && !a.logsJSON(cfg) {
		fmt.Fprintf(a.err, "Sandboxes start now; templates that are still being built are refused until they are there\n")
	}
}

// firstBuild is told how far the first template is.
func (a *app) firstBuild(cfg config.Config, log *slog.Logger) (update func(step string, percent int), end func()) {
	if !a.logsJSON(cfg) {
		p := newProgress(a.err)
		return p.update, p.end
	}
	var mu sync.Mutex
	last := ""
	return func(step string, percent int) {
		mu.Lock()
		defer mu.Unlock()
		if step != last {
			last = step
			log.Info("building the first template", "step", step, "percent", percent)
		}
	}, func() {}
}

// logChecks logs what is not as it should be on this machine.
func (a *app) logChecks(cfg config.Config, checks []doctor.Check) {
	log := a.logger(cfg)
	for _, c := range checks {
		switch c.Status {
		case doctor.Warn:
			log.Warn("a check of this machine warns", "check", c.Name, "detail", c.Detail, "hint", c.Hint)
		case doctor.Fail:
			log.Error("this machine cannot run sandboxes yet", "check", c.Name, "detail", c.Detail, "hint", c.Hint)
		}
	}
}

// welcome says that the server answers, and how to point an SDK at it. The
// first key is shown to people only: a log would keep it.
func (a *app) welcome(cfg config.Config, key string) {
	url := localURL(cfg.Listen)
	if a.logsJSON(cfg) {
		a.logger(cfg).Info("serving", "url", url)
		return
	}
	fmt.Fprintf(a.err, "Cay serves on %s\n", url)
	if key == "" || !isTerminal(a.err) {
		fmt.Fprintln(a.err, `Point an SDK here: eval "$(cay env --new-key me)"`)
		return
	}
	report := *a
	report.out = a.err
	lines, note, err := a.variables(cfg)
	if err != nil {
		a.logger(cfg).Warn("cannot print how to point an SDK here", "err", err)
	}
	fmt.Fprintln(a.err, "Point an SDK here (the key is shown this once; cay env makes others):")
	if note != "" {
		fmt.Fprintln(a.err, "# "+note)
	}
	report.printExports(append([][2]string{{"E2B_API_KEY", key}}, lines...))
}

// tellConsole prints a link to the console. It is shown to people only: a log
// would keep it.
func (a *app) tellConsole(cfg config.Config) {
	if a.logsJSON(cfg) {
		return
	}
	if !isTerminal(a.err) {
		fmt.Fprintln(a.err, "A link to the console: cay console")
		return
	}
	api, err := a.admin("")
	if err == nil {
		var link client.ConsoleLink
		if link, err = api.ConsoleLink(a.ctx); err == nil {
			fmt.Fprintf(a.err, "The console (once, within two minutes; cay console prints another): %s\n", clean(link.URL))
			return
		}
	}
	a.logger(cfg).Warn("cannot print a link to the console", "err", err)
}

// tellBuilding says which templates are still being built.
func (a *app) tellBuilding(cfg config.Config, names []string) {
	if len(names) == 0 {
		return
	}
	if a.logsJSON(cfg) {
		a.logger(cfg).Info("building templates", "templates", names)
		return
	}
	fmt.Fprintf(a.err, "Building meanwhile: %s (`cay template wait` shows how far)\n", strings.Join(names, ", "))
}

type downCmd struct{}

func (downCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	err = a.wait("ending the server and its sandboxes", func() error {
		return operator.Down(a.ctx, cfg, host.Open, a.logger(cfg))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(a.err, "nothing of Cay runs any more; its data is in %s\n", cfg.Data)
	return nil
}

// progress shows how far long work is: a bar that moves on a terminal, a line
// for every step elsewhere.
type progress struct {
	w     io.Writer
	live  bool
	begun time.Time

	mu      sync.Mutex
	step    string
	percent int
	stop    chan struct{}
	shown   sync.WaitGroup
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, live: isTerminal(w), begun: time.Now(), percent: -1, stop: make(chan struct{})}
}

// update is told what is being done; percent is negative when it is unknown.
func (p *progress) update(step string, percent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.step == ""
	if step != p.step && !p.live {
		at := ""
		if percent >= 0 {
			at = fmt.Sprintf(" (%d%%)", percent)
		}
		fmt.Fprintf(p.w, "%s %s%s\n", unit(time.Since(p.begun)), step, at)
	}
	p.step, p.percent = step, percent
	if first && p.live {
		p.shown.Go(p.draw)
	}
}

func (p *progress) draw() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		p.mu.Lock()
		line := p.line(i)
		p.mu.Unlock()
		fmt.Fprintf(p.w, "\r%s\x1b[K", fit(line, max(20, width(p.w)-1)))
		select {
		case <-p.stop:
			fmt.Fprint(p.w, "\r\x1b[K")
			return
		case <-tick.C:
		}
	}
}

// line is what the terminal shows. The caller holds p.mu.
func (p *progress) line(i int) string {
	head := string([]rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")[i%10])
	if p.percent >= 0 {
		const cells = 24
		full := min(p.percent, 100) * cells / 100
		head += " " + strings.Repeat("█", full) + strings.Repeat("░", cells-full) + fmt.Sprintf(" %3d%%", min(p.percent, 100))
	}
	return head + " " + unit(time.Since(p.begun)) + " " + p.step
}

// end takes the bar away.
func (p *progress) end() {
	close(p.stop)
	p.shown.Wait()
}
