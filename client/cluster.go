package client

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/cay-run/cay"
)

// Cluster is the cluster that a server is a member of.
type Cluster struct {
	ID        string        `json:"clusterID"`
	CreatedAt time.Time     `json:"createdAt"`
	Lead      string        `json:"lead,omitempty"`
	Nodes     []ClusterNode `json:"nodes"`
}

// ClusterNode is a machine of a cluster.
type ClusterNode struct {
	ID           string     `json:"nodeID"`
	Address      string     `json:"address"`
	State        string     `json:"state"`
	Draining     bool       `json:"draining"`
	JoinedAt     time.Time  `json:"joinedAt"`
	SeenAt       *time.Time `json:"seenAt,omitempty"`
	Version      string     `json:"version"`
	CPUs         int        `json:"cpus"`
	MemoryMB     int        `json:"memoryMB"`
	MemoryFreeMB int        `json:"memoryFreeMB"`
	Running      int        `json:"running"`
	Starting     int        `json:"starting"`
	Paused       int        `json:"paused"`
	Front        bool       `json:"front,omitempty"`        // it runs no sandboxes
	ClockSeconds float64    `json:"clockSeconds,omitempty"` // by which its clock is ahead of the database's; 0 where they are near
	Stuck        string     `json:"stuck,omitempty"`        // why sandboxes, or the lead, do not leave a node that is drained
}

// JoinToken lets one machine join a cluster.
type JoinToken struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expiresAt"`
}

const adminCluster = "/cay/v1/admin/cluster"

// Cluster tells of the cluster. This call and the others of clusters need an
// AdminToken.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
	var out Cluster
	_, err := c.call(ctx, http.MethodGet, adminCluster, nil, &out)
	return out, err
}

// ClusterNode tells of one machine of the cluster; NotFound where it is no member.
func (c *Client) ClusterNode(ctx context.Context, id string) (ClusterNode, error) {
	var out Cluster
	_, err := c.call(ctx, http.MethodGet, adminCluster+"?nodeID="+url.QueryEscape(id), nil, &out)
	if err != nil {
		return ClusterNode{}, err
	}
	i := slices.IndexFunc(out.Nodes, func(n ClusterNode) bool { return n.ID == id }) // earlier servers list all
	if i < 0 {
		return ClusterNode{}, cay.Errorf(cay.NotFound, "node %s is no member of the cluster", id)
	}
	return out.Nodes[i], nil
}

// CreateJoinToken makes a token that expires after a time; zero is a day.
func (c *Client) CreateJoinToken(ctx context.Context, expires time.Duration) (JoinToken, error) {
	body := map[string]any{}
	if expires != 0 {
		body["expiresIn"] = int64(expires / time.Second)
	}
	var out JoinToken
	_, err := c.call(ctx, http.MethodPost, adminCluster+"/tokens", body, &out)
	return out, err
}

// DrainNode has a machine take no new sandboxes. In a cluster those that are paused go
// to other nodes, and with move those that run go on there.
func (c *Client) DrainNode(ctx context.Context, id string, move bool) error {
	return c.setNode(ctx, id, map[string]any{"status": "draining", "move": move})
}

// UndrainNode has a machine take new sandboxes again. Those that have left it stay away.
func (c *Client) UndrainNode(ctx context.Context, id string) error {
	return c.setNode(ctx, id, map[string]any{"status": "ready"})
}

func (c *Client) setNode(ctx context.Context, id string, to map[string]any) error {
	_, err := c.call(ctx, http.MethodPost, "/nodes/"+url.PathEscape(id), to, nil)
	return err
}

// RemoveNode removes a machine from the cluster.
func (c *Client) RemoveNode(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/cay/v1/admin/nodes/"+url.PathEscape(id), nil, nil)
	return err
}
