package rest

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/api/rest/e2b"
)

// Members are the nodes of a cluster.
type Members interface {
	List(ctx context.Context, who cay.Caller) ([]cay.Node, error)
	Get(ctx context.Context, who cay.Caller, id cay.NodeID) (cay.Node, error)
	Drain(ctx context.Context, who cay.Caller, id cay.NodeID, how cay.Drain) error
	Remove(ctx context.Context, who cay.Caller, id cay.NodeID) error
	NewToken(ctx context.Context, who cay.Caller, lasts time.Duration) (text string, expires time.Time, err error)
	Cluster(ctx context.Context, who cay.Caller) (cay.Cluster, error)
}

// alone refuses what is of a cluster, of a server that is none's.
func (s *server) alone(ctx context.Context) error {
	if err := callerOf(ctx).May(cay.Admin); err != nil {
		return err
	}
	return cay.Errorf(cay.NotFound, "this server is alone: it is a member of no cluster").
		WithHint("cay cluster init makes one of this machine")
}

// AdminGetCluster tells of the cluster.
func (o own) AdminGetCluster(ctx context.Context, r cayv1.AdminGetClusterRequestObject) (cayv1.AdminGetClusterResponseObject, error) {
	if o.members == nil {
		return nil, o.alone(ctx)
	}
	who := callerOf(ctx)
	c, err := o.members.Cluster(ctx, who)
	if err != nil {
		return nil, err
	}
	list, err := o.membersLike(ctx, who, r.Params.NodeID)
	if err != nil {
		return nil, err
	}
	out := cayv1.AdminGetCluster200JSONResponse{ClusterID: c.ID, CreatedAt: c.CreatedAt.UTC(), Lead: pointer(string(c.Lead)), Nodes: []cayv1.ClusterNode{}}
	for _, n := range list {
		out.Nodes = append(out.Nodes, wireClusterNode(n))
	}
	return out, nil
}

// membersLike lists all members, or the one that is named.
func (o own) membersLike(ctx context.Context, who cay.Caller, id *string) ([]cay.Node, error) {
	if id == nil {
		return o.members.List(ctx, who)
	}
	n, err := o.members.Get(ctx, who, cay.NodeID(*id))
	return []cay.Node{n}, err
}

// AdminCreateJoinToken makes a token with which one machine joins.
func (o own) AdminCreateJoinToken(ctx context.Context, r cayv1.AdminCreateJoinTokenRequestObject) (cayv1.AdminCreateJoinTokenResponseObject, error) {
	if o.members == nil {
		return nil, o.alone(ctx)
	}
	text, expires, err := o.members.NewToken(ctx, callerOf(ctx), seconds(value(r.Body.ExpiresIn, 0)))
	if err != nil {
		return nil, err
	}
	return cayv1.AdminCreateJoinToken201JSONResponse{Token: text, ExpiresAt: expires.UTC()}, nil
}

// AdminRemoveNode removes a node from the cluster.
func (o own) AdminRemoveNode(ctx context.Context, r cayv1.AdminRemoveNodeRequestObject) (cayv1.AdminRemoveNodeResponseObject, error) {
	if o.members == nil {
		return nil, o.alone(ctx)
	}
	if err := o.members.Remove(ctx, callerOf(ctx), cay.NodeID(r.NodeID)); err != nil {
		return nil, err
	}
	return cayv1.AdminRemoveNode204Response{}, nil
}

func wireClusterNode(n cay.Node) cayv1.ClusterNode {
	out := cayv1.ClusterNode{
		NodeID: string(n.ID), Address: n.Address, State: string(n.Seen()), Draining: n.Drain != cay.DrainNone, JoinedAt: n.JoinedAt.UTC(), Version: n.Version,
		Cpus: n.CPUs, MemoryMB: n.MemoryMB, MemoryFreeMB: n.MemoryFreeMB, Running: n.Running, Starting: n.Starting,
		Paused: n.Paused, Stuck: pointer(n.Stuck), Front: pointer(n.Front),
	}
	if n.Clock != 0 {
		out.ClockSeconds = pointer(n.Clock.Seconds())
	}
	if !n.SeenAt.IsZero() {
		out.SeenAt = pointer(n.SeenAt.UTC())
	}
	return out
}

// wireMemberNode is a member in E2B's words, with what it tells of itself: fronts
// know neither its disks nor its processors.
func wireMemberNode(n cay.Node) e2b.Node {
	id := string(n.ID)
	status := string(n.Seen())
	if status == nodeReady && n.Drain != cay.DrainNone {
		status = nodeDraining
	}
	return e2b.Node{
		ID: id, NodeID: id, ClusterID: id, ServiceInstanceID: id, Version: n.Version, Status: status,
		SandboxCount: n.Running, SandboxStartingCount: n.Starting,
		Metrics: e2b.NodeMetrics{
			AllocatedCPU: n.PromisedCPUs, CPUCount: n.CPUs,
			AllocatedMemoryBytes: int64(n.PromisedMB) << 20, MemoryTotalBytes: int64(n.MemoryMB) << 20, MemoryUsedBytes: int64(n.MemoryMB-n.MemoryFreeMB) << 20,
			Disks: []e2b.NodeDisk{},
		},
	}
}
