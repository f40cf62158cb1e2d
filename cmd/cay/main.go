// Command cay is all of Cay: the server, and the tool that talks to one.
//
// Text for people goes to standard error, text for programs to standard
// output. An error is one line and, where there is something to do about it, a
// hint. The exit status is 1 after an error, 80 for wrong usage, and that of
// the command for `run`, `sandbox exec` and `sandbox connect`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/operator"
)

// commands is the command line.
type commands struct {
	JSON bool `help:"Print JSON instead of text."`

	Up      upCmd      `cmd:"" help:"Set this machine up and serve."`
	Server  serverCmd  `cmd:"" help:"Serve."`
	Down    downCmd    `cmd:"" help:"End this machine's server and its sandboxes; data stays."`
	Console consoleCmd `cmd:"" help:"Print a link that opens the console in a browser."`
	Env     envCmd     `cmd:"" help:"Print the lines that point an SDK here."`
	Cert    certCmd    `cmd:"" help:"Print how to trust this server's own certificates."`
	Doctor  doctorCmd  `cmd:"" help:"Say what this machine can do, and what to change."`
	Config  configCmd  `cmd:"" help:"Look at the settings of this machine's server."`
	Version versionCmd `cmd:"" help:"Print the version."`

	Run       runCmd       `cmd:"" help:"Run a script, or code, in a fresh sandbox."`
	Sandbox   sandboxCmd   `cmd:"" aliases:"sbx" help:"Make and use sandboxes."`
	Undo      undoCmd      `cmd:"" help:"Bring a sandbox back to its newest checkpoint; again, further back."`
	Template  templateCmd  `cmd:"" aliases:"tpl" help:"Build and keep templates."`
	Volume    volumeCmd    `cmd:"" aliases:"vol" help:"Keep files that outlive sandboxes and that they share."`
	Limits    limitsCmd    `cmd:"" help:"Show the limits of your team, and its use of them."`
	Network   networkCmd   `cmd:"" help:"Have sandboxes reach each other, and no others, by name."`
	Team      teamCmd      `cmd:"" help:"Keep the teams of this server, as its operator."`
	Login     loginCmd     `cmd:"" help:"Log in as a person, for the commands that follow."`
	Logout    logoutCmd    `cmd:"" help:"End the session of cay login."`
	Whoami    whoamiCmd    `cmd:"" help:"Tell who is logged in, and in which teams."`
	Person    personCmd    `cmd:"" help:"Keep the people of this server, as its operator."`
	Member    memberCmd    `cmd:"" help:"Keep the people of a team."`
	Key       keyCmd       `cmd:"" help:"Keep the API keys of a team."`
	Usage     usageCmd     `cmd:"" help:"Show the use of the team, and its cost."`
	Budget    budgetCmd    `cmd:"" help:"Bound what the team, a key or some sandboxes use."`
	SSHKey    sshKeyCmd    `cmd:"" name:"ssh-key" help:"Keep the public keys that open sandboxes over SSH."`
	Webhook   webhookCmd   `cmd:"" help:"Have events sent to addresses."`
	Hook      hookCmd      `cmd:"" help:"Have commands run when requests come."`
	Schedule  scheduleCmd  `cmd:"" help:"Have commands run by the clock."`
	Approvals approvalsCmd `cmd:"" aliases:"approval" help:"Decide what sandboxes and programs ask for, and ask."`
	Model     modelCmd     `cmd:"" help:"Have sandboxes reach models without a key."`
	MCP       mcpCmd       `cmd:"" name:"mcp" help:"Give sandboxes to a language model as tools."`

	Cache    cacheCmd     `cmd:"" help:"The cache of packages that sandboxes install."`
	GC       gcCmd        `cmd:"" name:"gc" help:"Remove what nothing on this machine needs."`
	Storage  storageCmd   `cmd:"" help:"Have templates share blocks of a disk whose file system cannot."`
	Backup   backupCmd    `cmd:"" help:"Copy the records and keys of the server into one file, while it runs."`
	Cluster  clusterCmd   `cmd:"" help:"Have machines share records in PostgreSQL."`
	Node     nodeCmd      `cmd:"" help:"Keep the nodes of a cluster, as its operator."`
	Restore  restoreCmd   `cmd:"" help:"Put the records and keys of a backup into an empty data directory."`
	Audit    auditCmd     `cmd:"" help:"The log of who did what, which shows when it is tampered with."`
	Snapshot snapshotsCmd `cmd:"" help:"Look after the snapshots on this machine."`
	Image    imageCmd     `cmd:"" help:"Keep images of registries to build templates from."`
}

// app is what commands work with.
type app struct {
	ctx     context.Context
	in      *os.File
	out     io.Writer
	err     io.Writer
	environ []string
	json    bool
}

// exitStatus ends the program with a status and no message.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

const wrongUsage = 80

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endings()...)
	code := run(&app{ctx: ctx, in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ()}, os.Args[1:])
	stop()
	os.Exit(code)
}

// endings are the signals that end the program in good order. A signal that its
// starter told it to ignore (nohup, a script's background) stays ignored.
func endings() []os.Signal {
	out := []os.Signal{syscall.SIGTERM}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			out = append(out, s)
		}
	}
	return out
}

// run is the program: it parses, runs and reports.
func run(a *app, args []string) (code int) {
	defer func() {
		// Kong ends the program after --help; here that is a return.
		if r := recover(); r != nil {
			status, ok := r.(exitStatus)
			if !ok {
				panic(r)
			}
			code = int(status)
		}
	}()
	var cli commands
	parser, err := kong.New(&cli,
		kong.Name("cay"),
		kong.Description("Every AI agent gets a computer of its own."),
		kong.Writers(a.out, a.err),
		kong.Exit(func(code int) { panic(exitStatus(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		panic(err) // the commands above are wrong
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(a.err, "error: %s\n  hint: cay --help lists the commands, cay COMMAND --help what they take\n", err)
		return wrongUsage
	}
	a.json = cli.JSON
	return a.report(parsed.Run(a))
}

// report prints an error and returns the exit status for it.
func (a *app) report(err error) int {
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, context.Canceled) && a.ctx.Err() != nil:
		return 130
	}
	fmt.Fprintf(a.err, "error: %s\n", oneLine(err.Error()))
	var e *cay.Error
	if errors.As(err, &e) && e.Hint != "" {
		fmt.Fprintf(a.err, "  hint: %s\n", oneLine(e.Hint))
	}
	return 1
}

// oneLine makes text from elsewhere one line that is safe to print.
func oneLine(s string) string { return clean(strings.Join(strings.Fields(s), " ")) }

// getenv looks a variable up.
func (a *app) getenv(name string) string {
	for _, entry := range a.environ {
		if k, v, _ := strings.Cut(entry, "="); k == name {
			return v
		}
	}
	return ""
}

// config is that of this machine's server.
func (a *app) config() (config.Config, error) { return config.Load(a.environ) }

// client talks to the server that the environment names, or to this machine's.
func (a *app) client() (*client.Client, error) {
	return a.clientWith(client.Config{APIKey: a.getenv("E2B_API_KEY")})
}

// admin is client as the operator: with CAY_ADMIN_TOKEN, else with what root's
// cay is told by the server of this machine. A team, by id or name, is the one
// that calls are about.
func (a *app) admin(team string) (*client.Client, error) {
	token := a.getenv("CAY_ADMIN_TOKEN")
	if token == "" {
		cfg, err := a.config()
		if err != nil {
			return nil, err
		}
		if token, err = operator.Ask(cfg).AdminToken(a.ctx); err != nil {
			return nil, err
		}
	}
	return a.clientWith(client.Config{AdminToken: token, Team: team})
}

// inTeam is client, or with a team's name admin.
func (a *app) inTeam(team string) (*client.Client, error) {
	if team == "" {
		return a.client()
	}
	cfg, err := a.server(client.Config{Team: team})
	if err == nil && a.getenv("CAY_ADMIN_TOKEN") == "" {
		if cfg = a.loggedIn(cfg); cfg.Session != "" {
			return client.New(cfg)
		}
	}
	return a.admin(team)
}

func (a *app) clientWith(c client.Config) (*client.Client, error) {
	c, err := a.server(c)
	if err != nil {
		return nil, err
	}
	return client.New(a.loggedIn(c))
}

// server says which server the environment names, or this machine's.
func (a *app) server(c client.Config) (client.Config, error) {
	c.APIURL, c.SandboxURL, c.Domain = a.getenv("E2B_API_URL"), a.getenv("E2B_SANDBOX_URL"), a.getenv("E2B_DOMAIN")
	if c.APIURL != "" {
		return c, nil
	}
	cfg, err := a.config()
	if err != nil {
		return c, err
	}
	if c.Domain == "" || c.Domain == cfg.ClientDomain() { // this machine's server needs no name
		c.Domain, c.APIURL = "", localURL(cfg.Listen)
	}
	return c, nil
}
