package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type loginCmd struct {
	Team      string `placeholder:"TEAM" help:"The team that commands are about, by id or name [the only one; CAY_TEAM names another]."`
	NoBrowser bool   `help:"Print the address, and open no browser."`
}

func (*loginCmd) Help() string {
	return "Prints an address and a code, and waits. Open the address in a browser on any machine, log in there, and say that the code is the same. " +
		"The session lies in ~/.config/cay; commands use it where E2B_API_KEY is not set."
}

func (c *loginCmd) Run(a *app) error {
	cfg, err := a.server(client.Config{})
	if err != nil {
		return err
	}
	l, err := client.BeginLogin(a.ctx, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.err, "Open  %s\nCode  %s\n", clean(l.URL), clean(l.Code))
	if !c.NoBrowser {
		a.browse(l.URL)
	}
	in, err := l.Wait(a.ctx)
	if err != nil {
		return err
	}
	team := c.Team
	if team == "" && len(in.Person.Teams) > 0 {
		team = in.Person.Teams[0].ID
	}
	if err := a.keepSession(addressOf(cfg), saved{Token: in.Token, Team: team}); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(in.Person)
	}
	fmt.Fprintf(a.out, "Logged in as %s.\n", clean(in.Person.Email))
	return nil
}

// browse opens a browser where the person sits at this machine.
func (a *app) browse(address string) {
	local := a.getenv("SSH_CONNECTION") == "" && (a.getenv("DISPLAY") != "" || a.getenv("WAYLAND_DISPLAY") != "")
	if !local || !strings.HasPrefix(address, "https://") && !strings.HasPrefix(address, "http://") {
		return
	}
	_ = exec.CommandContext(a.ctx, "xdg-open", address).Start() // the address is printed too
}

type logoutCmd struct{}

func (*logoutCmd) Run(a *app) error {
	cfg, err := a.server(client.Config{})
	if err != nil {
		return err
	}
	at := addressOf(cfg)
	one, ok := a.session(at)
	if !ok {
		return cay.Errorf(cay.NotFound, "there is no session at %s", at)
	}
	cfg.Session = one.Token
	api, err := client.New(cfg)
	if err == nil {
		err = api.LogOut(a.ctx)
	}
	if err != nil && cay.CodeOf(err) != cay.CodeSessionEnded {
		return err
	}
	return a.keepSession(at, saved{})
}

type whoamiCmd struct{}

func (*whoamiCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	me, err := api.Me(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(me)
	}
	fmt.Fprintln(a.out, clean(me.Email))
	for _, t := range me.Teams {
		fmt.Fprintf(a.out, "  %s  %s\n", clean(t.Name), clean(t.Role))
	}
	return nil
}

// saved is a session of this user at a server.
type saved struct {
	Token string `json:"token"`
	Team  string `json:"team,omitempty"`
}

// sessionFile is where this user's sessions lie, by the server's address.
func (a *app) sessionFile() string {
	dir := a.getenv("XDG_CONFIG_HOME")
	if dir == "" {
		dir = filepath.Join(a.getenv("HOME"), ".config")
	}
	return filepath.Join(dir, "cay", "sessions.json")
}

func (a *app) sessions() (map[string]saved, error) {
	all := map[string]saved{}
	if a.getenv("HOME") == "" && a.getenv("XDG_CONFIG_HOME") == "" {
		return all, nil
	}
	text, err := os.ReadFile(a.sessionFile())
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		err = cay.Wrap(cay.Invalid, err, "the sessions in %s cannot be read", a.sessionFile()).WithHint("remove the file and log in again")
	}
	return all, err
}

// session is this user's at a server.
func (a *app) session(address string) (saved, bool) {
	all, err := a.sessions()
	one, ok := all[address]
	return one, ok && err == nil // an unreadable file is told by cay login
}

// keepSession keeps a session for later commands; one without a token is
// forgotten.
func (a *app) keepSession(address string, one saved) error {
	all, err := a.sessions()
	if err != nil {
		return err
	}
	if all[address] = one; one.Token == "" {
		delete(all, address)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	path := a.sessionFile()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".sessions-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// addressOf is what a server's sessions are kept by.
func addressOf(cfg client.Config) string {
	if cfg.APIURL != "" {
		return strings.TrimSuffix(cfg.APIURL, "/")
	}
	return "https://api." + cfg.Domain
}

// loggedIn adds this user's session where there is no other credential.
func (a *app) loggedIn(c client.Config) client.Config {
	if c.APIKey != "" || c.AdminToken != "" {
		return c
	}
	one, ok := a.session(addressOf(c))
	if !ok {
		return c
	}
	c.Session = one.Token
	c.Team = cmp.Or(c.Team, a.getenv("CAY_TEAM"), one.Team)
	return c
}
