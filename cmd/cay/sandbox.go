package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type sandboxCmd struct {
	Create   createCmd   `cmd:"" help:"Make a sandbox and print its id."`
	List     listCmd     `cmd:"" aliases:"ls" help:"List sandboxes."`
	Info     infoCmd     `cmd:"" help:"Tell of sandboxes, one by one."`
	Kill     killCmd     `cmd:"" aliases:"rm" help:"End sandboxes."`
	Pause    pauseCmd    `cmd:"" help:"Save sandboxes with their memory and stop them."`
	Resume   resumeCmd   `cmd:"" help:"Let paused sandboxes go on."`
	Fork     forkCmd     `cmd:"" help:"Make copies of a running sandbox."`
	Snapshot snapshotCmd `cmd:"" help:"Save a running sandbox as something to make others of."`

	Checkpoint     checkpointCmd     `cmd:"" help:"Save a running sandbox, to go back to."`
	Tree           treeCmd           `cmd:"" help:"Show a sandbox's checkpoints and forks."`
	Diff           diffCmd           `cmd:"" help:"Show which files changed between checkpoints, or since one."`
	Rollback       rollbackCmd       `cmd:"" help:"Bring a sandbox back to a checkpoint."`
	Promote        promoteCmd        `cmd:"" help:"Have a sandbox go on as one of its forks."`
	Label          labelCmd          `cmd:"" help:"Name a checkpoint."`
	RmCheckpoint   rmCheckpointCmd   `cmd:"" help:"Delete checkpoints."`
	AutoCheckpoint autoCheckpointCmd `cmd:"" help:"Say when checkpoints are taken by themselves."`

	Exec    execCmd    `cmd:"" help:"Run a command in a sandbox."`
	Connect connectCmd `cmd:"" aliases:"shell" help:"Open a shell in a sandbox."`
	SSH     sshCmd     `cmd:"" name:"ssh" help:"Enter a sandbox with the SSH client of this machine."`
	Forward forwardCmd `cmd:"" name:"port-forward" help:"Have ports of this machine lead to ports of a sandbox."`
	Limit   limitCmd   `cmd:"" help:"Bound how fast a sandbox sends and receives, or show the bounds."`
	Events  eventsCmd  `cmd:"" help:"Tell the events of sandboxes, as they happen too."`
	Logs    logsCmd    `cmd:"" help:"Show a sandbox's log."`
	Egress  egressCmd  `cmd:"" help:"Show the connections that a sandbox tried to open, and the rules that decided."`
	Why     whyCmd     `cmd:"" help:"Say why sandboxes ended."`
	Cp      cpCmd      `cmd:"" help:"Copy files and directories into a sandbox or out of one."`
}

type createCmd struct {
	Template   string            `arg:"" optional:"" default:"base" help:"Template's name or id [base]."`
	Timeout    time.Duration     `default:"5m" help:"When it ends by itself."`
	Metadata   map[string]string `short:"m" placeholder:"KEY=VALUE" help:"Metadata to find it by."`
	Env        map[string]string `short:"e" placeholder:"KEY=VALUE" help:"Environment of its processes."`
	NoInternet bool              `help:"Close the internet to it."`
	Ask        []string          `placeholder:"DOMAIN" help:"Close the internet to it but for this domain, which a person is asked about; \"*\" for any, repeat it for more."`
	AskCommand []string          `placeholder:"PATTERN" sep:"none" help:"Ask a person before a command or code like this starts; * is any text, repeat it for more."`
	AutoPause  bool              `help:"Pause it when its time is over, instead of ending it."`
	AutoResume bool              `help:"Have requests to it wake it when it is paused."`
	OnHostLoss string            `enum:"end,resume" default:"end" help:"end: it is over when its machine is lost. resume: it goes on from its newest checkpoint."`
	Volume     []string          `sep:"none" placeholder:"VOLUME[/DIR]:PATH[:ro]" help:"Mount a volume, or a directory of it, at a path; several if need be."`
	Near       string            `placeholder:"ID" help:"A sandbox on whose node it is to be, in a cluster."`
	Network    string            `help:"Private network of the team's to share."`
	Name       string            `help:"Its name for the others in that network: NAME.cay.internal [its id]."`
	Up         *rate             `placeholder:"RATE" help:"Bytes a second that it sends at most, as 500K, 10M, 1G."`
	Down       *rate             `placeholder:"RATE" help:"The same for what it receives."`
	Every      time.Duration     `name:"checkpoint-every" placeholder:"TIME" help:"Take a checkpoint every so often, e.g. 30s."`
	Before     bool              `name:"checkpoint-before-commands" help:"Take a checkpoint before each command and each run of code."`
	Keep       int64             `name:"checkpoint-keep" placeholder:"N" help:"Keep the newest N of these checkpoints [10]."`
	Kind       string            `name:"checkpoint-kind" placeholder:"KIND" help:"memory (the default) or files."`
	Key        string            `name:"idempotency-key" help:"Make the sandbox of this key once, however often asked within a day."`
}

func (c *createCmd) Run(a *app) error {
	if err := checkTimeout(c.Timeout); err != nil {
		return err
	}
	if (c.Keep != 0 || c.Kind != "") && c.Every <= 0 && !c.Before {
		return cay.Errorf(cay.Invalid, "checkpoints when?").WithHint("--checkpoint-every TIME or --checkpoint-before-commands")
	}
	mounts, err := volumeMounts(c.Volume)
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	var s *client.Sandbox
	err = a.wait("creating a sandbox", func() (err error) {
		near, err := c.beside(a, api)
		if err != nil {
			return err
		}
		s, err = api.Create(a.ctx, client.CreateOptions{
			Template: c.Template, Timeout: c.Timeout, Metadata: c.Metadata, Env: c.Env, NoInternet: c.NoInternet, AskOut: c.Ask, AskCommands: c.AskCommand,
			AutoPause: c.AutoPause, AutoResume: c.AutoResume, ResumeOnHostLoss: c.OnHostLoss == "resume", IdempotencyKey: c.Key, Volumes: mounts, Near: near,
			AutoCheckpoints: client.AutoCheckpoints{
				EverySeconds: wholeSeconds(c.Every), BeforeCommands: c.Before, Keep: c.Keep, Kind: c.Kind,
			},
		})
		if err == nil {
			err = c.connect(a, api, s.ID)
		}
		return err
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(s)
	}
	fmt.Fprintln(a.out, clean(s.ID))
	if isTerminal(a.err) {
		fmt.Fprintf(a.err, "  it ends in %s; a shell inside: cay sandbox connect %s\n", unit(c.Timeout), clean(s.ID))
	}
	return nil
}

// beside is the sandbox on whose node the new one is to be: a member of its network, unless
// the user names one.
func (c *createCmd) beside(a *app, api *client.Client) (string, error) {
	if c.Near != "" || c.Network == "" {
		return c.Near, nil
	}
	members, err := api.Members(a.ctx)
	if err != nil {
		return "", err
	}
	beside := ""
	for _, m := range members {
		if m.Network == c.Network && (beside == "" || m.State == "running") {
			beside = m.SandboxID
		}
	}
	return beside, nil
}

// connect gives a new sandbox its private network and bandwidth, or ends it.
func (c *createCmd) connect(a *app, api *client.Client, id string) (err error) {
	defer func() {
		if err != nil && c.Key == "" {
			_ = api.Kill(context.WithoutCancel(a.ctx), id) // it ends by itself otherwise
		}
	}()
	if c.Up != nil || c.Down != nil {
		if err := api.SetBandwidth(a.ctx, id, limits(client.Bandwidth{}, c.Up, c.Down)); err != nil {
			return err
		}
	}
	if c.Network == "" {
		return nil
	}
	return api.Join(a.ctx, id, c.Network, c.Name)
}

type listCmd struct{}

func (listCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.List(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]client.Info{}, list...))
	}
	if len(list) == 0 {
		fmt.Fprintln(a.err, "no sandboxes; make one with: cay sandbox create")
		return nil
	}
	t := table{header: []string{"ID", "TEMPLATE", "STATE", "STARTED", "ENDS", "CPUS", "MEMORY", "METADATA"}}
	now := time.Now()
	for _, s := range list {
		name := s.Alias
		if name == "" {
			name = s.TemplateID
		}
		t.add(clean(s.ID), clean(name), clean(s.State), ago(s.StartedAt, now), ago(s.EndAt, now),
			fmt.Sprint(s.CPUs), size(s.MemoryMB), pairs(s.Metadata))
	}
	t.print(a.out, width(a.out))
	return nil
}

type infoCmd struct {
	IDs []string `arg:"" name:"id" help:"Sandboxes' ids."`
}

func (c *infoCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var errs []error
	all := []client.Info{}
	for _, id := range c.IDs {
		s, err := api.Info(a.ctx, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, s)
		if !a.json {
			fmt.Fprint(a.out, describeBox(s, time.Now()))
		}
	}
	if a.json {
		errs = append(errs, a.printJSON(all))
	}
	return errors.Join(errs...)
}

// describeBox is a sandbox in lines for people.
func describeBox(s client.Info, now time.Time) string {
	var out strings.Builder
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&out, "  %-10s %s\n", name, clean(text))
		}
	}
	fmt.Fprintf(&out, "%s: %s\n", clean(s.ID), clean(s.State))
	line("template", cmp.Or(s.Alias, s.TemplateID))
	line("started", ago(s.StartedAt, now))
	if s.State == "paused" {
		line("paused", ago(s.EndAt, now))
		line("saved", map[string]string{"full": "files and memory", "filesystem": "files alone"}[s.PauseMode])
	} else {
		line("ends", ago(s.EndAt, now))
	}
	switch {
	case s.Replicated == nil:
	case s.ReplicatedAt != nil:
		line("replicated", "yes, "+ago(*s.ReplicatedAt, now))
	default:
		line("replicated", "not yet: what was saved is on one machine alone")
	}
	if s.OnHostLoss == "resume" {
		line("on host loss", "goes on from its newest checkpoint")
	}
	line("limits", fmt.Sprintf("%d CPUs, %s of memory, %s of disk", s.CPUs, size(s.MemoryMB), size(s.DiskMB)))
	line("metadata", pairs(s.Metadata))
	line("notice", s.Notice)
	return out.String()
}

func pairs(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, clean(k)+"="+clean(v))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

type killCmd struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Sandboxes' ids."`
	All bool     `help:"End all of them."`
}

func (c *killCmd) Run(a *app) error {
	if (len(c.IDs) == 0) != c.All {
		return cay.Errorf(cay.Invalid, "which sandboxes?").WithHint("give ids, or --all")
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	if c.All {
		list, err := api.List(a.ctx)
		if err != nil {
			return err
		}
		for _, s := range list {
			c.IDs = append(c.IDs, s.ID)
		}
	}
	var errs []error
	killed := []string{}
	for _, id := range c.IDs {
		err := a.wait("ending "+clean(id), func() error { return api.Kill(a.ctx, id) })
		switch {
		case cay.KindOf(err) == cay.NotFound && c.All:
			// It ended by itself meanwhile.
		case cay.KindOf(err) == cay.NotFound:
			errs = append(errs, cay.Errorf(cay.NotFound, "there is no sandbox %s", clean(id)).
				WithHint("cay sandbox list shows those that live"))
		case err != nil:
			errs = append(errs, err)
		default:
			killed = append(killed, id)
			if !a.json {
				fmt.Fprintln(a.out, clean(id))
			}
		}
	}
	if a.json {
		errs = append(errs, a.printJSON(killed))
	}
	return errors.Join(errs...)
}

// enough is how long a sandbox lives on at least when a user is in it.
const enough = 5 * time.Minute

type execCmd struct {
	ID      string            `arg:"" help:"Sandbox's id."`
	Command []string          `arg:"" passthrough:"" help:"Program and arguments."`
	User    string            `short:"u" help:"Run it as this user."`
	Dir     string            `short:"w" help:"Run it in this directory."`
	Env     map[string]string `short:"e" placeholder:"KEY=VALUE" help:"Add to its environment."`
	Stdin   bool              `short:"i" help:"Pass standard input on."`
}

// Help shows its use.
func (execCmd) Help() string {
	return "The exit status is the command's. For a shell's syntax: cay sandbox exec ID -- bash -c 'ls | wc -l'"
}

func (c *execCmd) Run(a *app) error {
	if len(c.Command) > 0 && c.Command[0] == "--" {
		c.Command = c.Command[1:]
	}
	if len(c.Command) == 0 {
		return cay.Errorf(cay.Invalid, "which command?").WithHint("e.g. cay sandbox exec %s -- uname -a", clean(c.ID))
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	box, err := api.Connect(a.ctx, c.ID, enough)
	if err != nil {
		return err
	}
	// Following goes on when the user interrupts: the process ends first.
	p, err := box.Start(context.WithoutCancel(a.ctx), client.Command{
		Path: c.Command[0], Args: c.Command[1:], Env: c.Env, Dir: c.Dir, User: c.User,
		Stdin: c.Stdin, Stdout: a.out, Stderr: a.err,
	})
	if err != nil {
		return err
	}
	if c.Stdin {
		go pass(a.ctx, a.in, p)
	}
	return a.follow(p)
}

// follow waits for a process, which an interrupt of ours ends.
func (a *app) follow(p *client.Process) error {
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-done:
		case <-a.ctx.Done():
			_ = p.Kill(context.WithoutCancel(a.ctx))
		}
	}()
	exit, err := p.Wait()
	switch {
	case a.ctx.Err() != nil:
		return exitStatus(130)
	case err != nil:
		return err
	case exit.Code != 0:
		if exit.Code < 0 {
			exit.Code = 137
		}
		return exitStatus(exit.Code)
	}
	return nil
}

// pass sends what can be read to a process, till one of them ends.
func pass(ctx context.Context, r io.Reader, p *client.Process) {
	buf := make([]byte, 16<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && p.Input(ctx, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = p.CloseStdin(ctx)
			return
		}
	}
}
