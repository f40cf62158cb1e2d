package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/operator"
)

type clusterCmd struct {
	Import clusterImportCmd `cmd:"" help:"Move the records of this machine into PostgreSQL."`
	Init   clusterInitCmd   `cmd:"" help:"Make this machine, whose records are in PostgreSQL, the first of a cluster."`
	Token  clusterTokenCmd  `cmd:"" help:"Make a token with which one machine joins."`
	Join   clusterJoinCmd   `cmd:"" help:"Make this machine a member of a cluster."`
	Status clusterStatusCmd `cmd:"" help:"Tell of the cluster and its nodes."`
}

type clusterImportCmd struct{}

// Help says how.
func (clusterImportCmd) Help() string {
	return "On the server's machine, as root, with no server running, and with CAY_DATABASE_URL as the server will have it. The database must " +
		"have no records. All are copied or none; the copy is read back and compared before it counts. The SQLite file stays, as " +
		"cay.db.imported. Keys, snapshots, images and volumes stay in the data directory."
}

func (clusterImportCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	copied, err := operator.Import(a.ctx, cfg)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(copied)
	}
	t := table{header: []string{"TABLE", "RECORDS"}}
	sum := int64(0)
	for _, c := range copied {
		sum += c.Rows
		if c.Rows > 0 {
			t.add(c.Table, fmt.Sprint(c.Rows))
		}
	}
	t.print(a.out, width(a.out))
	fmt.Fprintf(a.err, "  %d records are in PostgreSQL; start the server: cay up\n", sum)
	return nil
}

type clusterInitCmd struct{}

// Help says what it needs.
func (clusterInitCmd) Help() string {
	return "On the server's machine, as root, with no server running, and with CAY_DATABASE_URL, CAY_BUCKET and CAY_CLUSTER_ADDRESS as the " +
		"server will have them. Sandboxes, templates, teams and keys stay as they are."
}

func (clusterInitCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	id, err := operator.InitCluster(a.ctx, cfg)
	if err != nil {
		return err
	}
	return a.becameNode(string(id), "start the server: cay up; then, for each other machine: cay cluster token")
}

type clusterJoinCmd struct {
	Token string `arg:"" optional:"" help:"The output of cay cluster token; \"-\", and nothing, read it from standard input."`
}

// Help says what it needs.
func (clusterJoinCmd) Help() string {
	return "On a machine with an empty data directory, as root, with no server running, and with CAY_DATABASE_URL and CAY_BUCKET as the other " +
		"members have them. CAY_CLUSTER_ADDRESS is where they reach this machine. The token brings the keys of the installation."
}

func (c *clusterJoinCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	token := c.Token
	if token == "" || token == "-" {
		if token, err = bufio.NewReader(io.LimitReader(a.in, 1<<10)).ReadString('\n'); err != nil && err != io.EOF {
			return err
		}
	}
	id, err := operator.JoinCluster(a.ctx, cfg, strings.TrimSpace(token))
	if err != nil {
		return err
	}
	return a.becameNode(string(id), "start the server: cay up")
}

func (a *app) becameNode(id, next string) error {
	if a.json {
		return a.printJSON(map[string]string{"nodeID": id})
	}
	fmt.Fprintln(a.out, clean(id))
	fmt.Fprintf(a.err, "  this machine is node %s of the cluster; %s\n", clean(id), next)
	return nil
}

type clusterTokenCmd struct {
	Expires time.Duration `default:"24h" help:"How long it opens: from 1m to 168h."`
}

// Help says what it opens.
func (clusterTokenCmd) Help() string {
	return "The token opens the keys of the installation, for one machine and once: treat it as one. It is shown this once."
}

func (c *clusterTokenCmd) Run(a *app) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	made, err := api.CreateJoinToken(a.ctx, c.Expires)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(made)
	}
	fmt.Fprintln(a.out, clean(made.Token))
	fmt.Fprintf(a.err, "  it expires %s; on the machine that joins: cay cluster join\n", ago(made.ExpiresAt, time.Now()))
	return nil
}

type clusterStatusCmd struct{}

func (clusterStatusCmd) Run(a *app) error {
	c, err := a.cluster()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(c)
	}
	ready, running := 0, 0
	for _, n := range c.Nodes {
		if n.State == "ready" {
			ready++
		}
		running += n.Running
	}
	lead := "none leads"
	if c.Lead != "" {
		lead = c.Lead + " leads"
	}
	fmt.Fprintf(a.out, "cluster %s, made %s: %d of %d nodes are ready, %s, %d sandboxes run\n",
		clean(c.ID), ago(c.CreatedAt, time.Now()), ready, len(c.Nodes), clean(lead), running)
	all := len(c.Nodes)
	c.Nodes = remarkable(c)
	a.printNodes(c)
	if more := all - len(c.Nodes); more > 0 {
		fmt.Fprintf(a.err, "  %d more take sandboxes: cay node list\n", more)
	}
	return nil
}

// statusMost is how many nodes a status shows that take sandboxes as they should.
const statusMost = 50

// remarkable are the nodes that a status shows: all of a small cluster; of another one those
// that do not take sandboxes, and the one that leads.
func remarkable(c client.Cluster) []client.ClusterNode {
	if len(c.Nodes) <= statusMost {
		return c.Nodes
	}
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(n client.ClusterNode) bool {
		return n.State == string(cay.NodeReady) && !n.Draining && n.ID != c.Lead
	})
}

func (a *app) cluster() (client.Cluster, error) {
	api, err := a.admin("")
	if err != nil {
		return client.Cluster{}, err
	}
	return api.Cluster(a.ctx)
}

func (a *app) printNodes(c client.Cluster) {
	t := table{header: []string{"NODE", "STATE", "RUN", "PAUSED", "MEMORY FREE", "CPUS", "ADDRESS", "SEEN", "VERSION"}}
	for _, n := range c.Nodes {
		state, seen := n.State, "never"
		if n.Draining {
			state += ", draining"
		}
		if n.Front {
			state += ", front"
		}
		if n.ID == c.Lead {
			state += ", leads"
		}
		if n.ClockSeconds != 0 {
			state += ", clock " + cay.ClockWords(time.Duration(n.ClockSeconds*float64(time.Second)))
		}
		if n.SeenAt != nil {
			seen = ago(*n.SeenAt, time.Now())
		}
		t.add(n.ID, state, fmt.Sprint(n.Running), fmt.Sprint(n.Paused), fmt.Sprintf("%s of %s", size(n.MemoryFreeMB), size(n.MemoryMB)), fmt.Sprint(n.CPUs), n.Address, seen, n.Version)
	}
	t.print(a.out, width(a.out))
}

type nodeCmd struct {
	List    nodeListCmd    `cmd:"" aliases:"ls" help:"List the nodes of the cluster."`
	Drain   nodeDrainCmd   `cmd:"" help:"Have the sandboxes of nodes go on on other nodes, and new ones start there."`
	Undrain nodeUndrainCmd `cmd:"" help:"Have nodes take new sandboxes again."`
	Remove  nodeRemoveCmd  `cmd:"" aliases:"rm" help:"Remove nodes from the cluster whose servers have stopped."`
}

type nodeListCmd struct{}

func (nodeListCmd) Run(a *app) error {
	c, err := a.cluster()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(c.Nodes)
	}
	a.printNodes(c)
	return nil
}

type nodeRefs struct {
	Nodes []string `arg:"" name:"node" help:"Their ids."`
}

func (n nodeRefs) each(a *app, do func(api *client.Client, id string) error) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	for _, id := range n.Nodes {
		if err := do(api, id); err != nil {
			return err
		}
	}
	return nil
}

type nodeDrainCmd struct {
	nodeRefs
	Wait    bool          `help:"Let those that run go on there until they end or are paused."`
	Timeout time.Duration `help:"Return after that time, with an error; the drain goes on."`
	Detach  bool          `help:"Return at once; cay node list shows how far it is."`
}

// Help says what clients notice.
func (nodeDrainCmd) Help() string {
	return "Sandboxes that run are paused and resumed on another node, four at a time. Requests wait meanwhile; connections " +
		"break once. Those that are paused go as they are, once the bucket has them. It returns when the node has none, and others need nothing of its disk. cay node undrain ends it at any time: sandboxes that have " +
		"left stay where they are."
}

func (c *nodeDrainCmd) Run(a *app) error {
	ctx := a.ctx
	if c.Timeout > 0 {
		within, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		ctx = within
	}
	err := c.each(a, func(api *client.Client, id string) error { return api.DrainNode(ctx, id, !c.Wait) })
	if err != nil || c.Detach {
		return err
	}
	return c.each(a, func(api *client.Client, id string) error { return a.awaitEmpty(ctx, api, id) })
}

// awaitEmpty waits until a node that is drained has no sandbox, and shows how many
// there are.
func (a *app) awaitEmpty(ctx context.Context, api *client.Client, id string) error {
	var last atomic.Pointer[string]
	last.Store(new(string))
	tell := func() string { return "draining " + clean(id) + *last.Load() }
	return a.watch(tell, func() error {
		for since := time.Now(); ; {
			n, err := api.ClusterNode(ctx, id)
			if cay.KindOf(err) == cay.NotFound {
				return cay.Errorf(cay.NotFound, "node %s is no member any more", clean(id))
			}
			if err == nil {
				left, over := leftOn(n, since)
				last.Store(&left)
				if over != nil || left == "" {
					return over
				}
			}
			select {
			case <-ctx.Done():
				return cay.Errorf(cay.Unavailable, "node %s is not empty yet%s", clean(id), *last.Load()).
					WithHint("the drain goes on: cay node list shows how far; cay node undrain ends it")
			case <-time.After(time.Second):
			}
		}
	})
}

// leftOn says what a node has yet, or does, that is drained since a time, as it has told after
// that; empty for nothing. Over is why it will not change.
func leftOn(n client.ClusterNode, since time.Time) (left string, over error) {
	switch {
	case !n.Draining:
		return "", cay.Errorf(cay.Conflict, "node %s is not drained any more", clean(n.ID))
	case n.State == string(cay.NodeStopped) || n.State == string(cay.NodeGone):
		return "", cay.Errorf(cay.Unavailable, "node %s is %s: what it has yet resumes elsewhere once it is gone", clean(n.ID), clean(n.State))
	case time.Since(since) > tellsWithin && n.Running+n.Starting+n.Paused == 0 && n.Stuck == "":
		return "", nil
	}
	left = fmt.Sprintf(": %d run, %d are paused", n.Running+n.Starting, n.Paused)
	if n.Stuck != "" {
		left += "; " + clean(n.Stuck)
	}
	return left, nil
}

// tellsWithin is longer than a node takes to follow its record and to tell what it has:
// two renewals.
const tellsWithin = 11 * time.Second

type nodeUndrainCmd struct{ nodeRefs }

func (c *nodeUndrainCmd) Run(a *app) error {
	return c.each(a, func(api *client.Client, id string) error { return api.UndrainNode(a.ctx, id) })
}

type nodeRemoveCmd struct{ nodeRefs }

func (c *nodeRemoveCmd) Run(a *app) error {
	return c.each(a, func(api *client.Client, id string) error { return api.RemoveNode(a.ctx, id) })
}
