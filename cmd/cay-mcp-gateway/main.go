// Command cay-mcp-gateway is mcp-gateway of the template of that name: one server
// of the Model Context Protocol in front of several, inside a sandbox. E2B's SDKs
// run it as root and wait for its end (Sandbox.create and addMcpServer of js
// 2.51.0 and python 2.63.0):
//
//	GATEWAY_ACCESS_TOKEN=… mcp-gateway --config JSON   leaves a gateway behind that is ready
//	mcp-gateway pull NAME…                             installs servers, in a template's build
//	mcp-gateway list                                   prints the names that there are
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cay-run/cay/internal/guest/catalogue"
	"github.com/cay-run/cay/internal/inside/gateway"
)

const (
	// tokenPath is where getMcpToken of the SDKs reads the token, as root.
	tokenPath = "/etc/mcp-gateway/.token"
	logPath   = "/var/log/mcp-gateway/gateway.log"
	pidPath   = "/run/mcp-gateway.pid"

	// serveWord is the gateway itself, which the first command leaves behind.
	serveWord = "serve"
	ready     = "ready"
	version   = "1"

	// startTime bounds the start of the servers. The SDKs wait for 60 s in all.
	startTime = 45 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mcp-gateway:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	word := ""
	if len(args) > 0 {
		word = args[0]
	}
	switch config, given := strings.CutPrefix(word, "--config="); {
	case given && len(args) == 1:
		return start(ctx, config)
	case word == "--config" && len(args) == 2:
		return start(ctx, args[1])
	case word == "pull" && len(args) > 1:
		return pull(ctx, args[1:])
	case word == "list" && len(args) == 1:
		fmt.Println(strings.Join(catalogue.Names(), "\n"))
		return nil
	case word == serveWord && len(args) == 1:
		return serve(ctx)
	}
	return errors.New("usage: mcp-gateway --config JSON | pull NAME... | list")
}

// pull installs servers by name. A name of GitHub is cloned: its commands are
// known when it is started.
func pull(ctx context.Context, names []string) error {
	var all []gateway.WantedServer
	var wrong error
	for _, name := range names {
		if repo, ok := gateway.ParseRepo(name); ok {
			all = append(all, gateway.WantedServer{Name: name, Repo: repo})
			continue
		}
		row, err := gateway.Lookup(name)
		wrong = errors.Join(wrong, err)
		all = append(all, gateway.WantedServer{Name: name, Row: row})
	}
	if wrong != nil {
		return wrong
	}
	return gateway.Install(ctx, all, gateway.ServerAccount(), os.Stdout)
}

// handover is what the first command tells the gateway, on its standard input:
// other programs can read a command line.
type handover struct {
	Config json.RawMessage `json:"config"`
	Token  string          `json:"token"`
}

// start leaves a gateway behind that serves, in place of one that there is.
func start(ctx context.Context, config string) error {
	wanted, err := gateway.Parse([]byte(config))
	if err != nil {
		return err
	}
	if err := gateway.Install(ctx, wanted.Servers, gateway.ServerAccount(), os.Stdout); err != nil {
		return err
	}
	token := os.Getenv(gateway.TokenVariable)
	if token == "" {
		token = rand.Text()
	}
	if err := endEarlier(); err != nil {
		return err
	}
	if err := writeFile(tokenPath, []byte(token)); err != nil {
		return err
	}
	text, err := json.Marshal(handover{Config: json.RawMessage(config), Token: token})
	if err != nil {
		return err
	}
	return spawn(text)
}

// spawn starts the gateway and returns when it serves.
func spawn(told []byte) error {
	if err := os.MkdirAll(filepath.Dir(logPath), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	said, says, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, serveWord) // it outlives this command
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{says}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := writeFile(pidPath, []byte(strconv.Itoa(cmd.Process.Pid))); err != nil {
		return err
	}
	_ = says.Close()
	_, writing := in.Write(told)
	if err := errors.Join(writing, in.Close()); err != nil {
		return err
	}
	answer, err := io.ReadAll(said)
	switch {
	case err != nil:
		return err
	case string(answer) == ready:
		return nil
	case len(answer) == 0:
		return errors.New("the gateway ended before it was ready: see " + logPath)
	}
	return errors.New(string(answer))
}

// serve is the gateway. It tells descriptor 3 that it is ready, or why it is not.
func serve(ctx context.Context) error {
	debug.SetGCPercent(50) // every sandbox of the template pays for its memory
	says := os.NewFile(3, "parent")
	if says == nil {
		return errors.New("this is a part of mcp-gateway --config")
	}
	syscall.CloseOnExec(3)
	done, err := serving(ctx)
	if err != nil {
		_, told := says.WriteString(err.Error())
		return errors.Join(err, told)
	}
	_, told := says.WriteString(ready)
	if err := errors.Join(told, says.Close()); err != nil {
		return err
	}
	return <-done
}

// serving starts the servers and then serves, until ctx ends.
func serving(ctx context.Context) (<-chan error, error) {
	var told handover
	if err := json.NewDecoder(os.Stdin).Decode(&told); err != nil {
		return nil, err
	}
	wanted, err := gateway.Parse(told.Config)
	if err != nil {
		return nil, err
	}
	programs, err := wanted.Programs(gateway.ServerAccount())
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(gateway.Port))
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(newBounded(logPath, os.Stderr), nil))
	g, err := gateway.Start(ctx, gateway.Config{
		Servers: programs, Token: told.Token, CallTime: wanted.CallTime, StartTime: startTime, Ask: gateway.AskHost, Version: version, Log: log,
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s := &http.Server{Handler: g.Handler(), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(listener) }()
	done := make(chan error, 1)
	go func() {
		select {
		case <-ctx.Done():
			_ = s.Close()
			g.Close()
			done <- nil
		case err := <-ended:
			g.Close()
			done <- err
		}
	}()
	return done, nil
}

// endEarlier ends a gateway that an earlier call left, and returns when it is gone.
func endEarlier() error {
	text, err := os.ReadFile(pidPath)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return os.Remove(pidPath)
	}
	for began := time.Now(); isGateway(pid); time.Sleep(20 * time.Millisecond) {
		number := syscall.SIGTERM
		if time.Since(began) > 10*time.Second {
			number = syscall.SIGKILL
		}
		if err := syscall.Kill(pid, number); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return os.Remove(pidPath)
}

// isGateway reports whether a process is one: its number may be another's by now.
func isGateway(pid int) bool {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	words := strings.Split(string(line), "\x00")
	return err == nil && len(words) >= 2 && strings.HasSuffix(words[0], "mcp-gateway") && words[1] == serveWord
}

// writeFile writes a file that root alone reads.
func writeFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
