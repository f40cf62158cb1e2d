package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/cay-run/cay"
)

type sshCmd struct {
	ID      string   `arg:"" help:"Sandbox's id."`
	Args    []string `arg:"" optional:"" passthrough:"" help:"Arguments of ssh after the host: a command, after -- options too."`
	User    string   `short:"u" help:"The user inside; root, for one."`
	Config  bool     `help:"Print lines for ~/.ssh/config, for editors and scp, and do nothing else."`
	Stdio   bool     `hidden:"" help:"Be the connection: what ssh calls as its ProxyCommand."`
	HostKey bool     `hidden:"" help:"Print the server's host key: what ssh calls as its KnownHostsCommand."`
}

// Help says how it gets in.
func (sshCmd) Help() string {
	return "Runs OpenSSH's ssh through the server's one port, with the API key as the only credential. " +
		"`--config` prints what an editor's remote mode, scp, sftp and rsync need; " +
		"they then call the sandbox cay-ID."
}

// hostAlias is what the server is called in known_hosts.
const hostAlias = "cay"

func (c *sshCmd) Run(a *app) error {
	if !cay.ValidID(c.ID) {
		return cay.Errorf(cay.Invalid, "%q is no sandbox's id", c.ID)
	}
	switch {
	case c.Stdio:
		return c.stdio(a)
	case c.HostKey:
		return c.hostKey(a)
	}
	self, err := os.Executable()
	if err != nil {
		return cay.Wrap(cay.Internal, err, "this program does not know where it lies")
	}
	if c.Config {
		return c.printConfig(a, self)
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	if _, err := api.Connect(a.ctx, c.ID, enough); err != nil { // says more than ssh would
		return err
	}
	return c.exec(a, self)
}

// options are the lines of ssh_config that lead to the sandbox.
func (c *sshCmd) options(self string) [][2]string {
	user := c.ID
	if c.User != "" {
		user += "+" + c.User
	}
	return [][2]string{
		{"User", user},
		{"HostKeyAlias", hostAlias},
		{"ProxyCommand", quoteWord(self) + " sandbox ssh --stdio " + c.ID},
		{"KnownHostsCommand", quoteWord(self) + " sandbox ssh --host-key " + c.ID},
		{"UserKnownHostsFile", "/dev/null"},
		{"GlobalKnownHostsFile", "/dev/null"},
		{"StrictHostKeyChecking", "yes"},
		{"UpdateHostKeys", "no"},
		{"LogLevel", "ERROR"},
	}
}

// quoteWord has ssh and a shell read a path as one word; "%" begins a token of
// ssh's.
func quoteWord(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`", "%", "%%").Replace(s) + `"`
}

func (c *sshCmd) printConfig(a *app, self string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Host cay-%s\n", c.ID)
	for _, o := range c.options(self) {
		fmt.Fprintf(&b, "  %s %s\n", o[0], o[1])
	}
	_, err := io.WriteString(a.out, b.String())
	return err
}

func (c *sshCmd) exec(a *app, self string) error {
	args := []string{"-F", "none"}
	for _, o := range c.options(self) {
		args = append(args, "-o", o[0]+"="+o[1])
	}
	rest := c.Args
	if len(rest) > 0 && rest[0] == "--" {
		rest = rest[1:]
	}
	for len(rest) > 0 && strings.HasPrefix(rest[0], "-") { // ssh's own, as -L 8080:localhost:3000
		args = append(args, rest[0])
		rest = rest[1:]
		if takesValue(args[len(args)-1]) && len(rest) > 0 {
			args = append(args, rest[0])
			rest = rest[1:]
		}
	}
	args = append(append(args, "--", "cay-"+c.ID), rest...)
	cmd := exec.CommandContext(context.WithoutCancel(a.ctx), "ssh", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = a.in, a.out, a.err, a.environ
	err := cmd.Run()
	var status *exec.ExitError
	switch {
	case errors.As(err, &status):
		return exitStatus(max(1, status.ExitCode()))
	case errors.Is(err, exec.ErrNotFound):
		return cay.Wrap(cay.Unsupported, err, "there is no ssh on this machine").
			WithHint("install OpenSSH's client, or: cay sandbox connect %s", c.ID)
	}
	return err
}

// takesValue reports whether an option of ssh's has its value as the next word.
func takesValue(option string) bool {
	return len(option) == 2 && strings.ContainsRune("BbcDEeIiJLlmOoPpQRSWw", rune(option[1]))
}

// stdio joins standard input and output to the server's SSH.
func (c *sshCmd) stdio(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	conn, err := api.DialSSH(a.ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(a.ctx, func() { conn.Close() })()
	go func() {
		_, _ = io.Copy(conn, a.in) // ends with ssh
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err = io.Copy(a.out, conn)
	if a.ctx.Err() != nil {
		return exitStatus(130)
	}
	return err
}

func (c *sshCmd) hostKey(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	server, err := api.SSH(a.ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s %s\n", hostAlias, oneLine(server.HostKey))
	return err
}

type sshKeyCmd struct {
	Add    sshKeyAddCmd    `cmd:"" help:"Have a public key open the team's sandboxes over SSH."`
	List   sshKeyListCmd   `cmd:"" aliases:"ls" help:"List the team's keys."`
	Remove sshKeyRemoveCmd `cmd:"" aliases:"rm" help:"Have keys open nothing any more."`
}

type sshKeyAddCmd struct {
	File string `arg:"" help:"The public key, such as ~/.ssh/id_ed25519.pub; - for standard input."`
	Name string `help:"Its name [its comment]."`
}

// maxKeyFile is more than any public key needs.
const maxKeyFile = 64 << 10

func (c *sshKeyAddCmd) Run(a *app) error {
	in := a.in
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "the key cannot be read")
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxKeyFile))
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "the key cannot be read")
	}
	if strings.Contains(string(text), "PRIVATE KEY") { // it must not leave this machine
		return cay.Errorf(cay.Invalid, "%s is a private key, which has to stay secret", c.File).
			WithHint("give the file beside it that ends in .pub")
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	key, err := api.AddSSHKey(a.ctx, c.Name, string(text))
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(key)
	}
	fmt.Fprintln(a.out, clean(key.ID))
	return nil
}

type sshKeyListCmd struct{}

func (sshKeyListCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.SSHKeys(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: []string{"ID", "NAME", "FINGERPRINT"}}
	for _, k := range list {
		t.add(clean(k.ID), clean(k.Name), clean(k.Fingerprint))
	}
	t.print(a.out, width(a.out))
	return nil
}

type sshKeyRemoveCmd struct {
	IDs []string `arg:"" name:"id" help:"Ids of keys."`
}

func (c *sshKeyRemoveCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	for _, id := range c.IDs {
		if err := api.RemoveSSHKey(a.ctx, id); err != nil {
			return err
		}
	}
	return nil
}
