package rest

import (
	"context"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/e2b"
	"github.com/cay-run/cay/internal/control/accounts"
	"github.com/cay-run/cay/internal/control/lifecycle"
)

// Machine is what the machine of the server has.
type Machine struct {
	Memory, MemoryFree int64 // bytes
	Disk               Disk  // of the data directory
}

// Disk is a file system.
type Disk struct {
	Mount, Device, Type string
	Used, Total         int64 // bytes
}

// ofTeam is an operator as a caller of the team that the path names.
func (s *server) ofTeam(ctx context.Context, ref string) (cay.Caller, error) {
	who := callerOf(ctx)
	t, _, err := s.accounts.Team(ctx, who, ref)
	who.Team = t.ID
	return who, err
}

// AdminRunningCounts counts the sandboxes of all teams that run.
func (s *server) AdminRunningCounts(ctx context.Context, _ e2b.AdminRunningCountsRequestObject) (e2b.AdminRunningCountsResponseObject, error) {
	counts, err := s.sandboxes.Running(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := e2b.AdminRunningCounts200JSONResponse{}
	for team, n := range counts {
		out[string(team)] = n
	}
	return out, nil
}

// AdminKillSandboxes ends a team's sandboxes that run.
func (s *server) AdminKillSandboxes(ctx context.Context, r e2b.AdminKillSandboxesRequestObject) (e2b.AdminKillSandboxesResponseObject, error) {
	who, err := s.ofTeam(ctx, r.TeamID)
	if err != nil {
		return nil, err
	}
	ended, failed, err := s.sandboxes.EndSandboxes(ctx, who, false, "the operator of the server ended the team's sandboxes")
	if err != nil {
		return nil, err
	}
	return e2b.AdminKillSandboxes200JSONResponse{KilledCount: ended, FailedCount: failed}, nil
}

// AdminCancelBuilds ends a team's builds.
func (s *server) AdminCancelBuilds(ctx context.Context, r e2b.AdminCancelBuildsRequestObject) (e2b.AdminCancelBuildsResponseObject, error) {
	who, err := s.ofTeam(ctx, r.TeamID)
	if err != nil {
		return nil, err
	}
	ended, failed, err := s.builds.CancelBuilds(ctx, who)
	if err != nil {
		return nil, err
	}
	return e2b.AdminCancelBuilds200JSONResponse{CancelledCount: ended, FailedCount: failed}, nil
}

// AdminCreateKey makes a key of a team.
func (s *server) AdminCreateKey(ctx context.Context, r e2b.AdminCreateKeyRequestObject) (e2b.AdminCreateKeyResponseObject, error) {
	who, err := s.ofTeam(ctx, r.TeamID)
	if err != nil {
		return nil, err
	}
	key, record, err := s.accounts.CreateKey(ctx, who, accounts.NewKey{Name: value(r.Body.Name, "")})
	if err != nil {
		return nil, err
	}
	out := wireKey(record, nil)
	out.Key = &key
	return e2b.AdminCreateKey201JSONResponse(out), nil
}

// AdminDeleteKey removes a key of a team.
func (s *server) AdminDeleteKey(ctx context.Context, r e2b.AdminDeleteKeyRequestObject) (e2b.AdminDeleteKeyResponseObject, error) {
	who, err := s.ofTeam(ctx, r.TeamID)
	if err == nil {
		err = s.accounts.RemoveKey(ctx, who, cay.KeyID(r.KeyID))
	}
	if err != nil {
		return nil, err
	}
	return e2b.AdminDeleteKey204Response{}, nil
}

// The states of a machine.
const (
	nodeReady    = "ready"
	nodeDraining = "draining"
)

// ListNodes lists the one machine, or the members of the cluster.
func (s *server) ListNodes(ctx context.Context, _ e2b.ListNodesRequestObject) (e2b.ListNodesResponseObject, error) {
	if s.members != nil {
		list, err := s.members.List(ctx, callerOf(ctx))
		out := e2b.ListNodes200JSONResponse{}
		for _, n := range list {
			out = append(out, wireMemberNode(n))
		}
		return out, err
	}
	n, err := s.node(ctx)
	if err != nil {
		return nil, err
	}
	return e2b.ListNodes200JSONResponse{n}, nil
}

// GetNode tells of the machine.
func (s *server) GetNode(ctx context.Context, r e2b.GetNodeRequestObject) (e2b.GetNodeResponseObject, error) {
	if s.members != nil {
		n, err := s.members.Get(ctx, callerOf(ctx), cay.NodeID(r.NodeID))
		if err != nil {
			return nil, err
		}
		return e2b.GetNode200JSONResponse(wireMemberNode(n)), nil
	}
	n, err := s.node(ctx)
	if err == nil && n.ID != r.NodeID {
		err = errNoNode(r.NodeID)
	}
	if err != nil {
		return nil, err
	}
	return e2b.GetNode200JSONResponse(n), nil
}

// SetNodeStatus drains the machine, or has it take sandboxes again.
func (s *server) SetNodeStatus(ctx context.Context, r e2b.SetNodeStatusRequestObject) (e2b.SetNodeStatusResponseObject, error) {
	if err := callerOf(ctx).May(cay.Admin); err != nil {
		return nil, err
	}
	if r.Body.Status != nodeReady && r.Body.Status != nodeDraining {
		return nil, cay.Errorf(cay.Invalid, "status: can be set to ready and draining")
	}
	move := value(r.Body.Move, false)
	if s.members != nil {
		how := cay.DrainNone
		switch {
		case r.Body.Status == nodeDraining && move:
			how = cay.DrainMove
		case r.Body.Status == nodeDraining:
			how = cay.DrainWait
		}
		if err := s.members.Drain(ctx, callerOf(ctx), cay.NodeID(r.NodeID), how); err != nil {
			return nil, err
		}
		return e2b.SetNodeStatus204Response{}, nil
	}
	if move {
		return nil, cay.Errorf(cay.Invalid, "move: this server is alone, so that its sandboxes can go nowhere")
	}
	load, err := s.sandboxes.Load(ctx, callerOf(ctx))
	if err == nil && string(load.Node) != r.NodeID {
		err = errNoNode(r.NodeID)
	}
	if err != nil {
		return nil, err
	}
	if err := s.sandboxes.Drain(ctx, callerOf(ctx), r.Body.Status == nodeReady); err != nil {
		return nil, err
	}
	return e2b.SetNodeStatus204Response{}, nil
}

func errNoNode(id string) error { return cay.Errorf(cay.NotFound, "node %.80q not found", id) }

func (s *server) node(ctx context.Context) (e2b.Node, error) {
	load, err := s.sandboxes.Load(ctx, callerOf(ctx))
	if err != nil {
		return e2b.Node{}, err
	}
	var has Machine
	if s.machine != nil {
		if has, err = s.machine(); err != nil {
			return e2b.Node{}, err
		}
	}
	return wireNode(load, has), nil
}

func wireNode(load lifecycle.Load, has Machine) e2b.Node {
	id := string(load.Node)
	status := nodeReady
	if load.Draining {
		status = nodeDraining
	}
	return e2b.Node{
		ID: id, NodeID: id, ClusterID: id, ServiceInstanceID: id, Version: cay.Version, Status: status,
		SandboxCount: load.Running, SandboxStartingCount: load.Starting, CreateSuccesses: load.Started, CreateFails: load.Failed,
		MachineInfo: processor(),
		Metrics: e2b.NodeMetrics{
			AllocatedCPU: load.CPUs, CPUCount: runtime.NumCPU(), CPUPercent: busy(),
			AllocatedMemoryBytes: int64(load.MemoryMB) << 20, MemoryTotalBytes: has.Memory, MemoryUsedBytes: has.Memory - has.MemoryFree,
			Disks: []e2b.NodeDisk{{
				MountPoint: has.Disk.Mount, Device: has.Disk.Device, FilesystemType: has.Disk.Type,
				UsedBytes: has.Disk.Used, TotalBytes: has.Disk.Total,
			}},
		},
	}
}

// processor describes the first processor.
var processor = sync.OnceValue(func() e2b.MachineInfo {
	out := e2b.MachineInfo{CPUArchitecture: runtime.GOARCH}
	text, _ := os.ReadFile("/proc/cpuinfo") // elsewhere it stays unknown
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "cpu family":
			out.CPUFamily = value
		case "model":
			out.CPUModel = value
		case "model name":
			out.CPUModelName = value
		case "":
			return out
		}
	}
	return out
})

// busy is the load of the last minute for each processor, in percent.
func busy() int {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return int(math.Round(min(100, 100*load/float64(runtime.NumCPU()))))
}
