package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/catalogue"
)

// reposDir is where repositories are cloned, each below its owner.
const reposDir = catalogue.Dir + "/github"

// Account is the user that servers run as.
type Account struct {
	Name, Home string
	Credential *syscall.Credential // nil is the gateway's own
}

// ServerAccount is the sandbox's default user, where there is one and the gateway
// is root: a server is a program of another party.
func ServerAccount() Account {
	own := Account{Name: os.Getenv("USER"), Home: os.Getenv("HOME")}
	text, err := os.ReadFile("/etc/passwd")
	if err != nil || os.Geteuid() != 0 {
		return own
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 7 || f[0] != guest.User {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 == nil && err2 == nil {
			return Account{Name: f[0], Home: f[5], Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		}
	}
	return own
}

// env is the environment of a program of the account, with variables besides.
func (a Account) env(more map[string]string) []string {
	own := map[string]string{"HOME": a.Home, "USER": a.Name, "LOGNAME": a.Name}
	var out []string
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		_, replaced := more[name]
		if _, mine := own[name]; !mine && !replaced && name != TokenVariable {
			out = append(out, pair)
		}
	}
	for name, value := range own {
		if _, replaced := more[name]; !replaced {
			out = append(out, name+"="+value)
		}
	}
	for name, value := range more {
		out = append(out, name+"="+value)
	}
	return out
}

// TokenVariable has the token that the SDKs chose for their clients.
const TokenVariable = "GATEWAY_ACCESS_TOKEN"

// Install installs what is not there yet of the servers that are wanted, and
// tells out which. Those of packages are installed by root, and the commands of
// repositories run as the account.
func Install(ctx context.Context, servers []WantedServer, account Account, out io.Writer) error {
	var work []func() error
	for _, s := range servers {
		switch {
		case s.Repo.Owner != "":
			work = append(work, func() error { return clone(ctx, s, account, out) })
		case missing(s.Row.Path()):
			work = append(work, func() error {
				fmt.Fprintf(out, "installing %s (%s%s %s)\n", s.Name, s.Row.NPM, s.Row.PyPI, s.Row.Version)
				return script(ctx, s.Name, exec.CommandContext(ctx, "/bin/sh", "-c", s.Row.Install()))
			})
		}
	}
	errs := make([]error, len(work))
	turns := make(chan struct{}, 2) // they mostly wait for the network
	var all sync.WaitGroup
	for i, do := range work {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			errs[i] = do()
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}

// dir is where a repository is cloned to.
func (r Repo) dir() string { return filepath.Join(reposDir, r.Owner, r.Name) }

// installed is the file that says that an install command has run in a clone.
const installed = ".git/mcp-gateway-installed"

// clone gets a repository, once, and runs its install command, once.
func clone(ctx context.Context, s WantedServer, account Account, out io.Writer) error {
	dir := s.Repo.dir()
	if missing(dir) {
		fmt.Fprintf(out, "cloning %s\n", s.Name)
		if err := ownDir(filepath.Dir(dir), account); err != nil {
			return err
		}
		if err := os.RemoveAll(dir + ".new"); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "git", "clone", "--quiet", "--depth=1", "https://github.com/"+s.Repo.Owner+"/"+s.Repo.Name+".git", dir+".new")
		as(cmd, account, map[string]string{"GIT_TERMINAL_PROMPT": "0"})
		if err := script(ctx, s.Name, cmd); err != nil {
			return err
		}
		if err := os.Rename(dir+".new", dir); err != nil {
			return err
		}
	}
	if s.Repo.Install == "" || !missing(filepath.Join(dir, installed)) {
		return nil
	}
	fmt.Fprintf(out, "installing %s\n", s.Name)
	cmd := exec.CommandContext(ctx, "/bin/bash", "-l", "-c", s.Repo.Install)
	cmd.Dir = dir
	as(cmd, account, s.Env)
	if err := script(ctx, s.Name, cmd); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, installed), nil, 0o644)
}

// ownDir makes a directory that belongs to the account.
func ownDir(dir string, account Account) error {
	if err := os.MkdirAll(dir, 0o755); err != nil || account.Credential == nil {
		return err
	}
	return os.Chown(dir, int(account.Credential.Uid), int(account.Credential.Gid))
}

func as(cmd *exec.Cmd, account Account, env map[string]string) {
	cmd.Env = account.env(env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account.Credential}
}

// script runs a command; its last words are the error's.
func script(ctx context.Context, name string, cmd *exec.Cmd) error {
	var said lastWords
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &said, &said, endTime
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("%s cannot be installed: %w: %s", name, err, bytes.TrimSpace(said))
}

// lastWords keeps the end of what is written.
type lastWords []byte

func (l *lastWords) Write(p []byte) (int, error) {
	*l = append(*l, p...)
	if over := len(*l) - 2*tailSize; over > 0 {
		*l = (*l)[over:]
	}
	return len(p), nil
}

// Programs turns the servers that are wanted, and installed, into programs.
func (w Wanted) Programs(account Account) ([]Server, error) {
	var out []Server
	var wrong error
	for _, s := range w.Servers {
		p := Server{Name: s.Name, Dir: account.Home, Credential: account.Credential, Tools: s.Tools, Ask: s.Ask, Secrets: s.Secret}
		if s.Repo.Owner != "" {
			p.Argv, p.Dir, p.Env = []string{"/bin/bash", "-l", "-c", s.Repo.Run}, s.Repo.dir(), account.env(s.Env)
		} else {
			argv, env, err := program(s.Row)
			if err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", s.Name, err))
				continue
			}
			for name, value := range s.Env {
				env[name] = value
			}
			p.Argv, p.Env = append(argv, s.Args...), account.env(env)
		}
		out = append(out, p)
	}
	return out, wrong
}

// program is how an installed server of the catalogue is started.
func program(row catalogue.Server) (argv []string, env map[string]string, err error) {
	if row.NPM != "" {
		file, err := npmProgram(filepath.Join(row.Path(), "node_modules", row.NPM), row.NPM)
		return []string{"node", file}, map[string]string{}, err
	}
	name, err := pypiProgram(row.Path(), row.PyPI)
	return []string{"python3", filepath.Join(row.Path(), "bin", name)}, map[string]string{"PYTHONPATH": row.Path()}, err
}

// npmProgram is the file of the package's only program, or of the one that is
// called as the package is.
func npmProgram(dir, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return "", err
	}
	var about struct {
		Bin json.RawMessage `json:"bin"`
	}
	if err := json.Unmarshal(text, &about); err != nil {
		return "", err
	}
	var only string
	if json.Unmarshal(about.Bin, &only) == nil {
		return filepath.Join(dir, only), nil
	}
	var programs map[string]string
	if err := json.Unmarshal(about.Bin, &programs); err != nil {
		return "", fmt.Errorf("package %s has no program", name)
	}
	chosen, err := choose(programs, name[strings.LastIndexByte(name, '/')+1:])
	return filepath.Join(dir, chosen), err
}

// pypiProgram is the name of the package's only program, or of the one that is
// called as the package is.
func pypiProgram(dir, name string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, strings.ReplaceAll(name, "-", "_")+"-*.dist-info", "entry_points.txt"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("package %s has no program", name)
	}
	f, err := os.Open(found[0])
	if err != nil {
		return "", err
	}
	defer f.Close()
	programs := map[string]string{}
	section := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			section = line
		} else if key, _, ok := strings.Cut(line, "="); ok && section == "[console_scripts]" {
			programs[strings.TrimSpace(key)] = strings.TrimSpace(key)
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	return choose(programs, name)
}

func choose(programs map[string]string, name string) (string, error) {
	if p, ok := programs[name]; ok {
		return p, nil
	}
	var names []string
	for n := range programs {
		names = append(names, n)
	}
	slices.Sort(names)
	// Some have a program that sets a client up beside the server.
	servers := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.Contains(n, "mcp") && !strings.Contains(n, "server") })
	if len(servers) == 1 {
		names = servers
	}
	if len(names) != 1 {
		return "", fmt.Errorf("package %s has the programs %q and none of its name", name, names)
	}
	return programs[names[0]], nil
}
