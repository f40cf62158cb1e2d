package servertest

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/nodes"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// Steady and Quick are leases for tests: with the second a node is gone after seconds, of which a
// machine that is busy may lose three between two renewals.
var (
	Steady = nodes.Times{Renew: 100 * time.Millisecond, Lease: time.Minute, Silent: 75 * time.Second, View: 50 * time.Millisecond}
	Quick  = nodes.Times{Renew: 100 * time.Millisecond, Lease: 12 * time.Second, Silent: 15 * time.Second, View: 50 * time.Millisecond}
)

// Cluster is several whole servers that share records and a bucket.
type Cluster struct {
	Nodes []*World
	// Links lead each node to the database.
	Links []*Link
	// Database is where the records are, Bucket the directory of the copies.
	Database *pgtest.Server
	Bucket   string

	t      testing.TB
	name   string
	leases nodes.Times
	each   []func(*World)
}

// StartCluster starts so many servers over one PostgreSQL. The first has the key. Each is
// called with a machine before its server starts.
func StartCluster(t testing.TB, size int, leases nodes.Times, each ...func(*World)) *Cluster {
	t.Helper()
	const empty = "empty"
	server := withTables.Start(t, func(s *pgtest.Server) {
		s.Exec(t, "postgres", "CREATE DATABASE "+empty)
		if err := storetest.OpenPostgres(t, s.URL(empty)).Close(); err != nil {
			t.Fatal(err)
		}
	})
	return startCluster(t, server, empty, size, leases, each...)
}

// withTables has a database with all tables and no records.
var withTables pgtest.Prepared

// StartClusterOn is StartCluster over a server that runs.
func StartClusterOn(t testing.TB, server *pgtest.Server, size int, leases nodes.Times, each ...func(*World)) *Cluster {
	t.Helper()
	return startCluster(t, server, server.Database(t, ""), size, leases, each...)
}

func startCluster(t testing.TB, server *pgtest.Server, database string, size int, leases nodes.Times, each ...func(*World)) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Database: server, name: database, Bucket: filepath.Join(t.TempDir(), "bucket"), leases: leases, each: each}
	first := c.machine()
	if _, err := operator.InitCluster(t.Context(), first.Config); err != nil {
		t.Fatal(err)
	}
	first.Start()
	for range size - 1 {
		c.Join()
	}
	return c
}

// machine is one that is no member yet.
func (c *Cluster) machine() *World {
	c.t.Helper()
	link := newLink(c.t, filepath.Join(c.Database.Dir(), socket))
	w := New(c.t)
	w.Leases = c.leases
	w.Config.DatabaseURL = "postgres://cay@/" + c.name + "?host=" + url.QueryEscape(link.dir)
	w.Config.Bucket.Bucket = c.Bucket
	w.Config.ClusterAddress = "127.0.0.1:0"
	for _, set := range c.each {
		set(w)
	}
	c.Nodes, c.Links = append(c.Nodes, w), append(c.Links, link)
	return w
}

// Token makes a token for one more machine.
func (c *Cluster) Token() string {
	c.t.Helper()
	made, err := c.Nodes[0].Admin("").CreateJoinToken(c.t.Context(), 0)
	if err != nil {
		c.t.Fatal(err)
	}
	return made.Token
}

// Machine is a machine that has joined with nothing yet.
func (c *Cluster) Machine() *World { return c.machine() }

// Join starts one more node.
func (c *Cluster) Join() *World {
	c.t.Helper()
	return c.JoinAs("")
}

// JoinAs starts one more with roles of its own.
func (c *Cluster) JoinAs(roles string) *World {
	c.t.Helper()
	token := c.Token()
	w := c.machine()
	w.Config.Roles = roles
	if _, err := operator.JoinCluster(c.t.Context(), w.Config, token); err != nil {
		c.t.Fatal(err)
	}
	w.Key = c.Nodes[0].Key
	w.Start()
	return w
}

// AwaitReady waits until a node sees so many that take sandboxes, and reaches the one that
// leads.
func (c *Cluster) AwaitReady(size int) {
	c.t.Helper()
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		ready := 0
		seen, err := c.Nodes[0].Admin("").Cluster(c.t.Context())
		for _, n := range seen.Nodes {
			if n.State == string(cay.NodeReady) {
				ready++
			}
		}
		if err == nil && ready >= size && c.Nodes[0].ReachesLead() {
			return
		}
		if time.Since(begun) > time.Minute {
			c.t.Fatalf("of %d nodes %d are ready: %+v, %v", size, ready, seen, err)
		}
	}
}

// Crowd adds so many members that run nothing, as the first one is, whose leases last for an hour.
func (c *Cluster) Crowd(size int) {
	c.t.Helper()
	c.Database.Exec(c.t, c.name, fmt.Sprintf(`INSERT INTO nodes (id, machine, epoch, lease_until, address, fingerprint, version, state, has, joined_at, seen_at)
SELECT 'crowd' || lpad(i::text, 15, '0'), 'crowd-' || i, 1, lease_until + 3600000, '10.1.' || i / 250 || '.' || i %% 250 || ':7071', md5(i::text) || md5(i::text), version, 'ready', has, joined_at, seen_at + 3600000
FROM nodes n, generate_series(1, %d) i WHERE n.id = (SELECT min(id) FROM nodes WHERE fingerprint <> '')`, size))
}

// ReachesLead reports whether a node has a request answered by the one that leads.
func (w *World) ReachesLead() bool {
	_, err := w.Admin("").Teams(w.t.Context())
	return err == nil
}

// socket is the name of PostgreSQL's socket in its directory.
const socket = ".s.PGSQL.5432"

// Link is a way to a database that can be cut.
type Link struct {
	dir, to string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
}

func newLink(t testing.TB, to string) *Link {
	t.Helper()
	dir, err := os.MkdirTemp("", "cay-link-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	k := &Link{dir: dir, to: to, conns: map[net.Conn]struct{}{}}
	t.Cleanup(func() {
		l.Close()
		k.Cut()
		os.RemoveAll(dir)
	})
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go k.carry(in)
		}
	}()
	return k
}

// Cut breaks all connections, and those to come, until Heal.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = true
	for c := range k.conns {
		c.Close()
	}
}

// Heal lets connections through again.
func (k *Link) Heal() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = false
}

func (k *Link) hold(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut {
		return false
	}
	k.conns[c] = struct{}{}
	return true
}

func (k *Link) carry(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("unix", k.to)
	if err != nil {
		return
	}
	defer out.Close()
	if !k.hold(in) || !k.hold(out) {
		return
	}
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.conns, in)
		delete(k.conns, out)
	}()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{out, in}, {in, out}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // an end of either way ends the connection
			done <- struct{}{}
		}()
	}
	<-done
}
