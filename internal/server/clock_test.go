package server_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// databaseOf is the name of a cluster's database.
func databaseOf(t *testing.T, c *servertest.Cluster) string {
	t.Helper()
	at, err := url.Parse(c.Nodes[0].Config.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(at.Path, "/")
}

// A node whose clock goes wrong is told of by every front; its server does not begin anew before
// the clock is right.
func TestClockOfANode(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := servertest.StartCluster(t, 1, servertest.Steady, func(w *servertest.World) {
		w.Config.DatabaseURL += "&search_path=" + url.QueryEscape("public,leap,pg_catalog")
	})
	database := databaseOf(t, c)
	own := c.Join()
	c.AwaitReady(2)
	id := nodeOf(t, own)
	c.Database.Exec(t, database, `CREATE SCHEMA leap`, `CREATE TABLE leap.clock (ahead interval NOT NULL)`, `INSERT INTO leap.clock VALUES ('5 minutes')`,
		`CREATE FUNCTION leap.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM leap.clock'`)
	awaitNode(t, c, id, func(n client.ClusterNode) bool {
		return n.ClockSeconds < -290 && n.ClockSeconds > -310 && n.State == string(cay.NodeReady)
	})

	own.Stop()
	s, err := own.Open()
	if cay.KindOf(err) != cay.Invalid || !strings.Contains(err.Error(), "the clock of this machine is 5m0s behind the database's") {
		t.Errorf("its server begins with a wrong clock: %v", err)
	}
	if err == nil {
		s.Close()
	}
	c.Database.Exec(t, database, `UPDATE leap.clock SET ahead = '0'`)
	own.Start()
	awaitNode(t, c, id, func(n client.ClusterNode) bool { return n.ClockSeconds == 0 && n.State == string(cay.NodeReady) })
	if _, err := own.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour}); err != nil {
		t.Error(err)
	}
}
