package server

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/rest"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/operator/doctor"
)

// has tells what this machine has.
func (s *Server) has() (rest.Machine, error) {
	room, err := s.node.Room()
	if err != nil {
		return rest.Machine{}, err
	}
	out := rest.Machine{Memory: room.Memory, MemoryFree: room.MemoryFree, Disk: mountOf(s.cfg.Data)}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.cfg.Data, &fs); err != nil {
		return out, cay.Wrap(cay.Internal, err, "cannot look at the disk of %s", s.cfg.Data)
	}
	out.Disk.Total = int64(fs.Blocks) * fs.Bsize
	out.Disk.Used = out.Disk.Total - int64(fs.Bfree)*fs.Bsize
	return out, nil
}

// looked looks the machine over, as cay doctor does.
func (s *Server) looked(ctx context.Context) []rest.Check {
	of := doctor.Running{
		Loading: func(context.Context) (node.Loading, error) { return s.node.Loading() },
		Cached:  func(context.Context) (cache.State, error) { return s.cached() },
	}
	var out []rest.Check
	for _, c := range doctor.Run(ctx, s.cfg, of) {
		out = append(out, rest.Check{Name: c.Name, Status: string(c.Status), Detail: c.Detail, Hint: c.Hint})
	}
	return out
}

// mountOf finds the mount that a directory is on.
func mountOf(dir string) (out rest.Disk) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return out
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || len(fields[1]) < len(out.Mount) {
			continue
		}
		if at := strings.TrimSuffix(fields[1], "/"); dir == at || strings.HasPrefix(dir, at+"/") {
			out.Device, out.Mount, out.Type = fields[0], fields[1], fields[2]
		}
	}
	return out
}
