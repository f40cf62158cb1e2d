// Package soak lets the agent and the code interpreter work for long and looks
// at what they keep.
//
// The agent runs in a process of its own, this test program started a second
// time, so that its descriptors, goroutines, children and memory are its
// alone. CAY_SOAK_COMMANDS sets how many commands it runs, 100 at a time.
package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/inside/agent"
	"github.com/cay-run/cay/internal/inside/agent/reap"
)

const (
	asAgent  = "CAY_SOAK_AGENT" // makes this program the agent
	commands = "CAY_SOAK_COMMANDS"
	// wave is how many commands live at the same time.
	wave = 100
	// patience bounds everything; an end is remembered for half a minute.
	patience = 5 * time.Minute
)

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) == "" {
		os.Exit(m.Run())
	}
	if err := beAgent(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// kept is what an agent holds on to.
type kept struct {
	Descriptors, Goroutines, Children int
	Heap                              int64
}

// beAgent serves as cmd/cay-agent does. It prints its address, then its
// figures for every line that it reads, until there are no more.
func beAgent() error {
	debug.SetGCPercent(50)
	reaper := reap.New(false)
	defer reaper.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	a := agent.New(agent.Config{Reaper: reaper, Log: log})
	defer a.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = agent.Serve(ctx, l, a.Handler(), log) }()
	fmt.Println(l.Addr())
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		now, err := measure()
		if err != nil {
			return err
		}
		if err := out.Encode(now); err != nil {
			return err
		}
	}
	return in.Err()
}

func measure() (kept, error) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return kept{}, err
	}
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return kept{}, err
	}
	children := 0
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil && !os.IsNotExist(err) { // a thread may have ended
			return kept{}, err
		}
		children += len(strings.Fields(string(b)))
	}
	runtime.GC()
	runtime.GC() // what pools hold lives through one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return kept{Descriptors: len(fds), Goroutines: runtime.NumGoroutine(), Children: children, Heap: int64(m.HeapAlloc)}, nil
}

// world is an agent and how to ask it.
type world struct {
	url  string
	user string
	in   io.Writer
	out  *bufio.Reader
}

func newWorld(t *testing.T) *world {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), asAgent+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("agent: %v", err)
		}
	})
	w := &world{user: me.Username, in: in, out: bufio.NewReader(out)}
	addr, err := w.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + strings.TrimSpace(addr)
	return w
}

func (w *world) kept(t *testing.T) (k kept) {
	t.Helper()
	if _, err := io.WriteString(w.in, "?\n"); err != nil {
		t.Fatal(err)
	}
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &k); err != nil {
		t.Fatal(err)
	}
	return k
}

// settled waits until the agent keeps no more than ok allows.
func (w *world) settled(t *testing.T, ok func(kept) bool) kept {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		k := w.kept(t)
		if ok(k) {
			return k
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent keeps %+v", k)
		}
	}
}

func TestAgentKeepsNothing(t *testing.T) {
	n := wave
	if s := os.Getenv(commands); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			t.Fatalf("%s=%q is no count of commands", commands, s)
		}
	}
	w := newWorld(t)
	fresh := w.kept(t)
	w.run(t, 20) // pools and caches fill once
	back := func(k kept) bool {
		return k.Children == 0 && k.Descriptors <= fresh.Descriptors && k.Goroutines <= fresh.Goroutines
	}
	idle := w.settled(t, back)
	for left := n; left > 0; left -= wave {
		w.run(t, min(left, wave))
	}
	after := w.settled(t, func(k kept) bool {
		return back(k) && k.Heap <= idle.Heap+(4<<20)
	})
	t.Logf("%d commands: fresh %+v, idle %+v, after %+v", n, fresh, idle, after)
}

// run lets n commands live at the same time and checks what each one says.
func (w *world) run(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	client := processconnect.NewProcessClient(&http.Client{Transport: tr}, w.url)
	all := make([]*command, n)
	for _, phase := range []func(*command) error{(*command).start, (*command).feed, (*command).finish} {
		g, ctx := errgroup.WithContext(ctx)
		for i := range all {
			if all[i] == nil {
				all[i] = &command{kind: i % kinds, client: client, user: w.user}
			}
			c := all[i]
			c.ctx = ctx
			g.Go(func() error {
				if err := phase(c); err != nil {
					return fmt.Errorf("kind %d: %w", c.kind, err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}
