package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/cay-run/cay"
)

// Clusters are the machines that share records, each with sandboxes of its own.
type Clusters interface {
	// MakeCluster makes the records those of a cluster, whose first member has what
	// the machine had that was alone. Conflict where there is one, or another
	// machine's server runs.
	MakeCluster(ctx context.Context, c cay.Cluster, alone cay.NodeID, first cay.Node) error
	Cluster(ctx context.Context) (cay.Cluster, error)
	// AddJoinToken records a token, by its digest, and what it alone opens.
	AddJoinToken(ctx context.Context, digest, bundle string, lasts time.Duration) (expires time.Time, err error)
	// JoinCluster uses a token, once, for the member that member makes of its bundle.
	// Denied for a token that is used, expired or unknown. member may run again.
	JoinCluster(ctx context.Context, digest string, member func(c cay.Cluster, bundle string) (cay.Node, error)) error
	// Nodes lists the members by their ids; Node finds one.
	Nodes(ctx context.Context) ([]cay.Node, error)
	Node(ctx context.Context, id cay.NodeID) (cay.Node, error)
	// ReportNode renews the lease of a member's epoch, with what it tells of itself.
	// It returns how the node is drained, and the one that leads.
	ReportNode(ctx context.Context, n cay.Node, lease time.Duration) (NodeTold, error)
	// SetFingerprint records the certificate of a member's epoch. ErrTakenOver where another one has begun.
	SetFingerprint(ctx context.Context, node cay.NodeID, epoch int64, fingerprint string) error
	// StopNode ends the lease of an epoch, and the node's lead.
	StopNode(ctx context.Context, node cay.NodeID, epoch int64) error
	// LoseNode declares a node gone that was silent for longer than a time: nothing
	// that its server writes counts any more. It reports whether it is gone.
	LoseNode(ctx context.Context, node cay.NodeID, silent time.Duration) (bool, error)
	// RemoveNode forgets a member. Conflict while its server or its sandboxes run.
	RemoveNode(ctx context.Context, node cay.NodeID, silent time.Duration) error
}

// Leads say which node of a cluster leads.
type Leads interface {
	// TakeLead has a node lead where none does, or where the one that does was silent
	// for longer than a time, and is gone with it. It returns the one that leads.
	TakeLead(ctx context.Context, node cay.NodeID, silent time.Duration) (cay.NodeID, error)
	// LeaveLead has none lead where a node does.
	LeaveLead(ctx context.Context, node cay.NodeID) error
}

// Homes are the nodes of a cluster that have sandboxes.
type Homes interface {
	// SandboxesOf lists the sandboxes of a node, of all teams, that are not killed.
	SandboxesOf(ctx context.Context, node cay.NodeID) ([]cay.Sandbox, error)
	// SandboxesFrom lists the sandboxes of other nodes, of all teams, that were saved last on a
	// node, where the bucket is not known to have that.
	SandboxesFrom(ctx context.Context, node cay.NodeID) ([]cay.Sandbox, error)
	// SandboxHome finds the node that has a sandbox of any team.
	SandboxHome(ctx context.Context, id cay.SandboxID) (cay.Home, error)
	// SignedElsewhere lists the sandboxes of other nodes that links to files may reach: those
	// with an access token that run, or that traffic wakes.
	SignedElsewhere(ctx context.Context, than cay.NodeID) ([]cay.SandboxID, error)
	// NetworkMembers lists the sandboxes of a team that are in a private network of
	// a name, or in any for none, and not over.
	NetworkMembers(ctx context.Context, team cay.TeamID, network string) ([]cay.Sandbox, error)
	// CheckpointHome finds the sandbox that a checkpoint of any team is of.
	CheckpointHome(ctx context.Context, id cay.SnapshotID) (cay.SandboxID, error)
	// AdoptSandbox gives a paused sandbox of a node that is gone to another one, and
	// returns its record. Conflict where it is not so.
	AdoptSandbox(ctx context.Context, id cay.SandboxID, to cay.NodeID) (cay.Sandbox, error)
	// TakeSandbox gives a paused sandbox of a node, as that node knows it, to another
	// one, and returns its record. Conflict where it is not so any more.
	TakeSandbox(ctx context.Context, id cay.SandboxID, from cay.NodeID, version int64, to cay.NodeID) (cay.Sandbox, error)
	// SnapshotMakers lists the nodes of a cluster that made a snapshot: the one on
	// which a sandbox was saved in it, or that recorded it as a checkpoint or a build.
	SnapshotMakers(ctx context.Context, id cay.SnapshotID) ([]cay.NodeID, error)
}

// MakeCluster makes the records those of a cluster, whose first member takes over
// what a machine alone has.
func (s *DB) MakeCluster(ctx context.Context, c cay.Cluster, alone cay.NodeID, first cay.Node) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.hold(ctx, tx, `LOCK TABLE nodes, clusters IN EXCLUSIVE MODE`); err != nil {
			return err
		}
		var there int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM clusters`).Scan(&there); err != nil {
			return err
		}
		if there > 0 {
			return cay.Errorf(cay.Conflict, "the database has a cluster already").
				WithHint("a machine joins it with a token: cay cluster token on a member, cay cluster join here")
		}
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		var holder string
		var until int64
		err = tx.QueryRowContext(ctx, `SELECT machine, lease_until FROM nodes WHERE id = $1`, alone).Scan(&holder, &until)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		case holder != first.Machine && until > now:
			return cay.Errorf(cay.Conflict, "another machine's server has the records").
				WithHint("run cay cluster init on that machine, with its server stopped")
		}
		for _, text := range []string{
			`UPDATE sandboxes SET node = $2 WHERE node = $1 AND state <> 'killed'`,
			`UPDATE build_queue SET owner = $2 WHERE owner = $1`,
			`UPDATE usage_kept SET node = $2 WHERE node = $1`,
			`UPDATE draining_nodes SET node = $2 WHERE node = $1`,
		} {
			if _, err := tx.ExecContext(ctx, text, alone, first.ID); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM nodes WHERE id = $1`, alone); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO clusters (one, id, certificate, key, lead, created_at) VALUES (1, $1, $2, $3, '', $4)`,
			c.ID, c.Certificate, c.Key, now)
		if err != nil {
			return err
		}
		return addNode(ctx, tx, first, now)
	})
}

// addNode records a member that no server of has begun.
func addNode(ctx context.Context, tx *sql.Tx, n cay.Node, now int64) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO nodes (id, machine, epoch, lease_until, address, fingerprint, version, state, joined_at)
VALUES ($1, $2, 0, 0, $3, $4, $5, $6, $7)`, n.ID, n.Machine, n.Address, n.Fingerprint, n.Version, cay.NodeJoined, now)
	return err
}

// Cluster returns what the members share.
func (s *DB) Cluster(ctx context.Context) (cay.Cluster, error) {
	return s.cluster(ctx, s.r, "")
}

func (s *DB) cluster(ctx context.Context, q reader, lock string) (c cay.Cluster, err error) {
	var created int64
	row := q.QueryRowContext(ctx, `SELECT id, certificate, key, lead, created_at FROM clusters WHERE one = 1`+lock)
	err = row.Scan(&c.ID, &c.Certificate, &c.Key, &c.Lead, &created)
	c.CreatedAt = fromMillis(created)
	if errors.Is(err, sql.ErrNoRows) {
		return c, cay.Errorf(cay.NotFound, "the database has no cluster").WithHint("cay cluster init makes one")
	}
	return c, dbError(err)
}

// AddJoinToken records a token, by its digest.
func (s *DB) AddJoinToken(ctx context.Context, digest, bundle string, lasts time.Duration) (expires time.Time, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM join_tokens WHERE expires_at <= $1`, now-lasts.Milliseconds()); err != nil {
			return err
		}
		expires = fromMillis(now + lasts.Milliseconds())
		_, err = tx.ExecContext(ctx, `INSERT INTO join_tokens (digest, bundle, expires_at, used_at, node) VALUES ($1, $2, $3, 0, '')`,
			digest, bundle, millis(expires))
		return err
	})
	return expires, err
}

// JoinCluster uses a token, once, for the member that member makes of the token's
// bundle. Nothing is used where that fails.
func (s *DB) JoinCluster(ctx context.Context, digest string, member func(c cay.Cluster, bundle string) (cay.Node, error)) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		c, err := s.cluster(ctx, tx, s.forUpdate())
		if err != nil {
			return err
		}
		var bundle string
		var expires, used int64
		row := tx.QueryRowContext(ctx, `SELECT bundle, expires_at, used_at FROM join_tokens WHERE digest = $1`+s.forUpdate(), digest)
		err = row.Scan(&bundle, &expires, &used)
		const another = "make another one on a member: cay cluster token"
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return cay.Errorf(cay.Denied, "the join token is none of this cluster's").WithHint(another)
		case err != nil:
			return err
		case used != 0:
			return cay.Errorf(cay.Denied, "the join token was used, at %s", fromMillis(used).Format(time.RFC3339)).WithHint(another)
		case expires <= now:
			return cay.Errorf(cay.Denied, "the join token expired at %s", fromMillis(expires).Format(time.RFC3339)).WithHint(another)
		}
		n, err := member(c, bundle)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE join_tokens SET bundle = '', used_at = $2, node = $3 WHERE digest = $1`, digest, now, n.ID); err != nil {
			return err
		}
		return addNode(ctx, tx, n, now)
	})
}

// nodesQuery reads members, each with the time of the database.
func (s *DB) nodesQuery() (text string, now any) {
	text, now = s.nowIn()
	return `SELECT ` + text + `, n.id, n.machine, n.address, n.fingerprint, n.version, n.state, n.has, n.epoch, n.joined_at, n.seen_at,
COALESCE(d.mode, ''), CASE WHEN c.lead = n.id THEN 1 ELSE 0 END
FROM nodes n LEFT JOIN draining_nodes d ON d.node = n.id LEFT JOIN clusters c ON c.one = 1 WHERE n.fingerprint <> ''`, now
}

// Nodes lists the members of the cluster by their ids.
func (s *DB) Nodes(ctx context.Context) ([]cay.Node, error) {
	text, now := s.nodesQuery()
	rows, err := s.r.QueryContext(ctx, text+` ORDER BY n.id`, now)
	return collect(rows, err, scanNode)
}

// Node finds a member.
func (s *DB) Node(ctx context.Context, id cay.NodeID) (cay.Node, error) {
	text, now := s.nodesQuery()
	row := s.r.QueryRowContext(ctx, text+` AND n.id = $2`, now, id)
	return one(row, scanNode, "node", id)
}

func scanNode(row scanner) (n cay.Node, err error) {
	var has string
	var now, joined, seen int64
	var leads int
	err = row.Scan(&now, &n.ID, &n.Machine, &n.Address, &n.Fingerprint, &n.Version, &n.State, &has, &n.Epoch, &joined, &seen, &n.Drain, &leads)
	if err != nil {
		return n, err
	}
	n.JoinedAt, n.SeenAt, n.Leads = fromMillis(joined), fromMillis(seen), leads > 0
	if seen > 0 {
		n.Silent = max(0, time.Duration(now-seen)*time.Millisecond)
	}
	if err := json.Unmarshal([]byte(has), &n.NodeUse); err != nil {
		return n, cay.Wrap(cay.Internal, err, "the record of node %s is damaged", n.ID)
	}
	return n, nil
}

// NodeTold is what the records answer a member that tells of itself.
type NodeTold struct {
	Drain cay.Drain
	Lead  cay.NodeID // empty for none
	Now   time.Time  // by the database's clock
}

// ReportNode is RenewNode with what a member tells of itself.
func (s *DB) ReportNode(ctx context.Context, n cay.Node, lease time.Duration) (told NodeTold, err error) {
	has, err := json.Marshal(n.NodeUse)
	if err != nil {
		return told, cay.Wrap(cay.Internal, err, "cannot record node %s", n.ID)
	}
	var at int64
	err = s.tx(ctx, func(tx *sql.Tx) error {
		// A renewal that a crash of the database forgets is sent again.
		if err := s.hold(ctx, tx, `SELECT set_config('synchronous_commit', $1, true)`, "off"); err != nil {
			return err
		}
		text, now := s.nowIn()
		row := tx.QueryRowContext(ctx, `UPDATE nodes SET seen_at = c.now, lease_until = c.now + $2, state = $3, version = $4, address = $5, has = $6
FROM (SELECT `+text+` AS now) c WHERE id = $7 AND epoch = $8 RETURNING `+drainColumn("nodes.id")+`, COALESCE((SELECT lead FROM clusters WHERE one = 1), ''), seen_at`,
			now, lease.Milliseconds(), n.State, n.Version, n.Address, string(has), n.ID, n.Epoch)
		if err := row.Scan(&told.Drain, &told.Lead, &at); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return ErrTakenOver
	})
	told.Now = time.UnixMilli(at)
	return told, err
}

// StopNode ends the lease of a member in good order, and its lead.
func (s *DB) StopNode(ctx context.Context, node cay.NodeID, epoch int64) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE nodes SET lease_until = 0, state = $3 WHERE id = $1 AND epoch = $2`, node, epoch, cay.NodeStopped)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE clusters SET lead = '' WHERE lead = $1`, node)
		return err
	})
	if errors.Is(err, ErrTakenOver) {
		return nil
	}
	return err
}

// TakeLead makes a node the one that leads, where none does, or where the one that
// does has been silent for a time: that one is declared gone with it. It returns the
// node that leads.
func (s *DB) TakeLead(ctx context.Context, node cay.NodeID, silent time.Duration) (lead cay.NodeID, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		c, err := s.cluster(ctx, tx, s.forUpdate())
		if err != nil {
			return err
		}
		if lead = c.Lead; lead == node {
			return nil
		}
		if lead != "" {
			lost, err := s.loseNode(ctx, tx, lead, silent)
			if err != nil || !lost {
				return err
			}
		}
		lead = node
		_, err = tx.ExecContext(ctx, `UPDATE clusters SET lead = $1 WHERE one = 1`, node)
		return err
	})
	return lead, err
}

// LeaveLead has none lead where a node does.
func (s *DB) LeaveLead(ctx context.Context, node cay.NodeID) error {
	_, err := s.exec(ctx, `UPDATE clusters SET lead = '' WHERE lead = $1`, node)
	return dbError(err)
}

// LoseNode declares a node gone that has been silent for a time: nothing that its
// server writes counts any more. Lost says that it is gone, by this call or before.
func (s *DB) LoseNode(ctx context.Context, node cay.NodeID, silent time.Duration) (lost bool, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		lost, err = s.loseNode(ctx, tx, node, silent)
		return err
	})
	return lost, err
}

func (s *DB) loseNode(ctx context.Context, tx *sql.Tx, node cay.NodeID, silent time.Duration) (lost bool, err error) {
	now, err := s.now(ctx, tx)
	if err != nil {
		return false, err
	}
	var state cay.NodeState
	var seen int64
	err = tx.QueryRowContext(ctx, `SELECT state, seen_at FROM nodes WHERE id = $1`, node).Scan(&state, &seen)
	switch {
	case errors.Is(err, sql.ErrNoRows): // it was removed
		return true, nil
	case err != nil:
		return false, err
	case state == cay.NodeGone:
		return true, nil
	case now-seen <= silent.Milliseconds():
		return false, nil
	}
	// No transaction of its server is on its way when this one counts.
	if err := s.fence(ctx, tx, node); err != nil {
		return false, err
	}
	res, err := tx.ExecContext(ctx, `UPDATE nodes SET epoch = epoch + 1, state = $3, lease_until = 0 WHERE id = $1 AND seen_at = $2`, node, seen, cay.NodeGone)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// RemoveNode forgets a member: its certificate opens nothing any more. Conflict
// while a server of it runs, or sandboxes of it do.
func (s *DB) RemoveNode(ctx context.Context, node cay.NodeID, silent time.Duration) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		var state cay.NodeState
		var seen int64
		row := tx.QueryRowContext(ctx, `SELECT state, seen_at FROM nodes WHERE id = $1 AND fingerprint <> ''`+s.forUpdate(), node)
		if err := row.Scan(&state, &seen); errors.Is(err, sql.ErrNoRows) {
			return notFound("node", node)
		} else if err != nil {
			return err
		}
		if (state == cay.NodeReady || state == cay.NodeStarting) && now-seen <= silent.Milliseconds() {
			return cay.Errorf(cay.Conflict, "node %s has a server that runs", node).
				WithHint("stop it on that machine, or wait a minute and a half after its death")
		}
		var live int
		err = tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM sandboxes WHERE node = $1 AND state <> 'killed' AND state <> 'paused'`, node).Scan(&live)
		if err != nil {
			return err
		}
		if live > 0 {
			return cay.Errorf(cay.Conflict, "%d sandboxes run on node %s", live, node).WithHint("end or pause them first")
		}
		if err := s.fence(ctx, tx, node); err != nil {
			return err
		}
		for _, text := range []string{`DELETE FROM nodes WHERE id = $1`, `DELETE FROM draining_nodes WHERE node = $1`, `UPDATE clusters SET lead = '' WHERE lead = $1`} {
			if _, err := tx.ExecContext(ctx, text, node); err != nil {
				return err
			}
		}
		return nil
	})
}

// SandboxesOf lists the sandboxes of a node, of all teams, that are not killed.
func (s *DB) SandboxesOf(ctx context.Context, node cay.NodeID) ([]cay.Sandbox, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+sandboxSQL.read+` FROM sandboxes WHERE node = $1 AND state <> 'killed' ORDER BY started_at, id`, node)
	return collect(rows, err, s.scanSandbox)
}

// SetFingerprint records a member's certificate.
func (s *DB) SetFingerprint(ctx context.Context, node cay.NodeID, epoch int64, fingerprint string) error {
	res, err := s.exec(ctx, `UPDATE nodes SET fingerprint = $3 WHERE id = $1 AND epoch = $2 AND fingerprint <> ''`, node, epoch, fingerprint)
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return ErrTakenOver
}

// SandboxesFrom lists the sandboxes that others have of what a node saved last.
func (s *DB) SandboxesFrom(ctx context.Context, node cay.NodeID) ([]cay.Sandbox, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+sandboxSQL.read+` FROM sandboxes WHERE made_on = $1 AND node <> $1 AND replicated_at = 0 AND state <> 'killed' ORDER BY id`, node)
	return collect(rows, err, s.scanSandbox)
}

// SandboxHome finds the node that has a sandbox.
func (s *DB) SandboxHome(ctx context.Context, id cay.SandboxID) (h cay.Home, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT node, team, state FROM sandboxes WHERE id = $1`, id).Scan(&h.Node, &h.Team, &h.State)
	if errors.Is(err, sql.ErrNoRows) {
		return h, notFound("sandbox", id)
	}
	return h, dbError(err)
}

// SignedElsewhere lists the sandboxes of other nodes that links to files may reach.
func (s *DB) SignedElsewhere(ctx context.Context, than cay.NodeID) ([]cay.SandboxID, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT id FROM sandboxes
WHERE state IN ($1, $2) AND node <> $3 AND secure <> 0 AND (state = $1 OR auto_resume <> 0)`, cay.Running, cay.Paused, than)
	return collect(rows, err, func(row scanner) (id cay.SandboxID, err error) { return id, row.Scan(&id) })
}

// NetworkMembers lists the sandboxes of a team that are in private networks.
func (s *DB) NetworkMembers(ctx context.Context, team cay.TeamID, network string) ([]cay.Sandbox, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+sandboxSQL.read+` FROM sandboxes
WHERE team = $1 AND private_network <> '' AND private_network = COALESCE(NULLIF($2, ''), private_network) AND state NOT IN ($3, $4) ORDER BY started_at, id`,
		team, network, cay.Killed, cay.Creating)
	return collect(rows, err, s.scanSandbox)
}

// CheckpointHome finds the sandbox that a checkpoint is of.
func (s *DB) CheckpointHome(ctx context.Context, id cay.SnapshotID) (sandbox cay.SandboxID, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT sandbox FROM checkpoints WHERE id = $1`, id).Scan(&sandbox)
	if errors.Is(err, sql.ErrNoRows) {
		return "", notFound("checkpoint", id)
	}
	return sandbox, dbError(err)
}

// AdoptSandbox gives a paused sandbox of a node that is gone to another one, and
// returns its record. Conflict where it is not so.
func (s *DB) AdoptSandbox(ctx context.Context, id cay.SandboxID, to cay.NodeID) (cay.Sandbox, error) {
	return s.giveSandbox(ctx, id, "is not paused, or its node is not gone", `UPDATE sandboxes SET node = $2, version = version + 1
WHERE id = $1 AND state = $3 AND node <> $2 AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = sandboxes.node AND n.state <> $4)`,
		id, to, cay.Paused, cay.NodeGone)
}

// TakeSandbox gives a paused sandbox of a node, as that node knows it, to another one.
func (s *DB) TakeSandbox(ctx context.Context, id cay.SandboxID, from cay.NodeID, version int64, to cay.NodeID) (cay.Sandbox, error) {
	return s.giveSandbox(ctx, id, "is not paused there any more", `UPDATE sandboxes SET node = $2, version = version + 1
WHERE id = $1 AND state = $3 AND node = $4 AND version = $5`, id, to, cay.Paused, from, version)
}

// giveSandbox gives a sandbox to another node by a statement, and returns its record.
func (s *DB) giveSandbox(ctx context.Context, id cay.SandboxID, unless, text string, args ...any) (b cay.Sandbox, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, text, args...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return cay.Errorf(cay.Conflict, "sandbox %s %s", id, unless)
		}
		b, err = s.scanSandbox(tx.QueryRowContext(ctx, `SELECT `+sandboxSQL.read+` FROM sandboxes WHERE id = $1`, id))
		return err
	})
	return b, err
}

// EventCounters returns the number of each team's newest event.
func (s *DB) EventCounters(ctx context.Context) (map[cay.TeamID]int64, error) {
	type counter struct {
		team cay.TeamID
		last int64
	}
	rows, err := s.r.QueryContext(ctx, `SELECT team, last FROM event_counters`)
	list, err := collect(rows, err, func(row scanner) (c counter, err error) { return c, row.Scan(&c.team, &c.last) })
	out := make(map[cay.TeamID]int64, len(list))
	for _, c := range list {
		out[c.team] = c.last
	}
	return out, err
}
