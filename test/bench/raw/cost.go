package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/command"
)

const (
	idleAfter = 5 * time.Second // the end of what a restore begins
	idleFor   = 20 * time.Second
)

// costs are of the engine alone.
type costs struct {
	LifeMS     float64 `json:"lifeMs"`     // processor of one life: restore, first answer, kill
	CommandMS  float64 `json:"commandMs"`  // of it the engine's commands and this program
	Tasks      int     `json:"tasks"`      // of an idle instance, on the host
	MemoryMB   float64 `json:"memoryMb"`   // of it, but for files that the host caches
	IdleMSPerS float64 `json:"idleMsPerS"` // of it, processor
	InsideMS   float64 `json:"insideMs"`   // processor of what ran inside
	Inside     string  `json:"inside,omitempty"`
}

// cost measures count lives one after the other, then an idle instance, and runs
// the program of the file -inside, if one is named, in it. With a count of 0 only
// that program is measured.
func cost(ctx context.Context, b *bench) (any, error) {
	var out costs
	before := own()
	for range b.count {
		if _, err := b.with(ctx, func(it box) (any, error) {
			u, err := b.eng.Usage(ctx, it.id)
			out.LifeMS += float64(u.CPUTime.Microseconds()) / 1000
			return nil, err
		}); err != nil {
			return nil, err
		}
	}
	if b.count > 0 {
		out.CommandMS = float64((own() - before).Microseconds()) / 1000 / float64(b.count)
		out.LifeMS = out.LifeMS/float64(b.count) + out.CommandMS
	}
	_, err := b.with(ctx, func(it box) (any, error) {
		if b.count > 0 {
			if err := b.idle(ctx, it, &out); err != nil {
				return nil, err
			}
		}
		if b.inside == "" {
			return nil, nil
		}
		first, err := b.eng.Usage(ctx, it.id)
		if err != nil {
			return nil, err
		}
		out.Inside, err = runInside(ctx, it.slot.Addr, b.inside)
		last, usageErr := b.eng.Usage(ctx, it.id)
		out.InsideMS = float64((last.CPUTime - first.CPUTime).Microseconds()) / 1000
		return nil, errors.Join(err, usageErr)
	})
	return out, err
}

// idle measures an instance without a client.
func (b *bench) idle(ctx context.Context, it box, out *costs) error {
	time.Sleep(idleAfter)
	first, err := b.eng.Usage(ctx, it.id)
	if err != nil {
		return err
	}
	time.Sleep(idleFor)
	last, err := b.eng.Usage(ctx, it.id)
	if err != nil {
		return err
	}
	out.IdleMSPerS = float64((last.CPUTime - first.CPUTime).Microseconds()) / 1000 / last.At.Sub(first.At).Seconds()
	out.Tasks = last.Tasks
	out.MemoryMB = float64(last.MemoryUsed-b.activeFiles(string(it.id))) / 1e6
	return nil
}

// own is the processor time of this program and of the commands that it has run.
func own() time.Duration {
	var sum time.Duration
	for _, which := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(which, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// activeFiles is what the engine's Usage still counts of the host's file cache.
func (b *bench) activeFiles(id string) int64 {
	found, _ := filepath.Glob("/sys/fs/cgroup/memory/cayraw/" + id + "/memory.stat")
	for _, path := range append(found, "/sys/fs/cgroup/cayraw/"+id+"/memory.stat") {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			var n int64
			if _, err := fmt.Sscanf(line, "active_file %d", &n); err == nil {
				return n
			}
		}
	}
	return 0
}

// runInside runs the program of a file by the shell inside, and returns what it
// writes.
func runInside(ctx context.Context, addr netip.Addr, path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	client := command.NewClient(http.DefaultClient, "http://"+netip.AddrPortFrom(addr, guest.AgentPort).String())
	var out, complaints bytes.Buffer
	err = command.Run(ctx, client, command.Command{
		User: guest.User, Dir: guest.Home, Args: []string{"/bin/bash", "-c", string(text)},
		Output: func(stdout, stderr []byte) {
			out.Write(stdout)
			complaints.Write(stderr)
		},
	})
	if err != nil {
		err = errors.Join(err, errors.New(complaints.String()))
	}
	return out.String(), err
}
