package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// toJSON encodes v, and a zero v as nothing.
func toJSON(v any) (string, error) {
	text, err := json.Marshal(v)
	if s := string(text); s == "{}" || s == "null" || s == "[]" {
		return "", err
	}
	return string(text), err
}

func parseJSON(text string, v any) error {
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), v)
}

// Build finds a build of a team's own.
func (s *DB) Build(ctx context.Context, team cay.TeamID, id cay.BuildID) (cay.Build, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+buildColumns+` FROM builds WHERE id = $1 AND team = $2`, id, team)
	return one(row, scanBuild, "build", id)
}

// putTags points tags to a build. The builds that have no tag any more then are
// superseded, but for snapshots and for templates that Cay brings.
func putTags(ctx context.Context, tx *sql.Tx, b cay.Build, tags []string, at time.Time) error {
	var before []cay.BuildID
	for _, tag := range tags {
		var old cay.BuildID
		err := tx.QueryRowContext(ctx, `SELECT build FROM template_tags WHERE template = $1 AND tag = $2`, b.Template, tag).Scan(&old)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		before = append(before, old)
		_, err = tx.ExecContext(ctx, `
INSERT INTO template_tags (template, tag, team, build, created_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (template, tag) DO UPDATE SET build = excluded.build, created_at = excluded.created_at`,
			b.Template, tag, b.Team, b.ID, millis(at))
		if err == nil {
			err = addAssignment(ctx, tx, b, tag, at)
		}
		if err == nil && tag == cay.DefaultTag {
			_, err = tx.ExecContext(ctx, `UPDATE templates SET build = $1, updated_at = $2 WHERE id = $3`,
				b.ID, millis(at), b.Template)
		}
		if err != nil {
			return err
		}
	}
	return supersede(ctx, tx, b.ID, before, at)
}

func supersede(ctx context.Context, tx *sql.Tx, by cay.BuildID, before []cay.BuildID, at time.Time) error {
	_, err := tx.ExecContext(ctx, `UPDATE builds SET superseded_at = 0 WHERE id = $1 AND superseded_at > 0`, by)
	for _, old := range before {
		if err != nil {
			return err
		}
		if old == "" || old == by {
			continue
		}
		_, err = tx.ExecContext(ctx, `
UPDATE builds SET superseded_at = $1 WHERE id = $2 AND state = $3 AND snapshot <> '' AND tags <> ''
AND NOT EXISTS (SELECT 1 FROM template_tags t WHERE t.build = builds.id)
AND EXISTS (SELECT 1 FROM templates t WHERE t.id = builds.template AND t.source = '')`, millis(at), old, cay.BuildReady)
	}
	return err
}

// SupersededBuild is a build that no tag points to any more, and that is kept.
type SupersededBuild struct {
	ID       cay.BuildID
	Template cay.TemplateID
	Snapshot cay.SnapshotID
	At       time.Time
}

// SupersededBuilds lists the builds of all teams that are superseded and kept,
// those first that were superseded last.
func (s *DB) SupersededBuilds(ctx context.Context) ([]SupersededBuild, error) {
	rows, err := s.r.QueryContext(ctx, `
SELECT id, template, snapshot, superseded_at FROM builds WHERE superseded_at > 0 ORDER BY superseded_at DESC, id`)
	return collect(rows, err, func(row scanner) (b SupersededBuild, err error) {
		var at int64
		err = row.Scan(&b.ID, &b.Template, &b.Snapshot, &at)
		b.At = fromMillis(at)
		return b, err
	})
}

// DropSuperseded releases a superseded build.
func (s *DB) DropSuperseded(ctx context.Context, id cay.BuildID) error {
	_, err := s.exec(ctx, `UPDATE builds SET superseded_at = 0 WHERE id = $1`, id)
	return dbError(err)
}

// StartableBuild finds a build of a template that sandboxes may start from: a
// tag points to it, or it is superseded and kept.
func (s *DB) StartableBuild(ctx context.Context, template cay.TemplateID, id cay.BuildID) (cay.Build, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+buildColumns+` FROM builds
WHERE id = $1 AND template = $2 AND state = $3
AND (superseded_at > 0 OR EXISTS (SELECT 1 FROM template_tags t WHERE t.build = builds.id))`, id, template, cay.BuildReady)
	return one(row, scanBuild, "build", id)
}

// BuildsUnderWay lists the builds of a template that were started and are not
// over, the newest first.
func (s *DB) BuildsUnderWay(ctx context.Context, template cay.TemplateID) ([]cay.Build, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+buildColumns+` FROM builds
WHERE template = $1 AND state = $2 ORDER BY updated_at DESC, id`, template, cay.BuildBuilding)
	return collect(rows, err, scanBuild)
}

// keepAssignments is how many assignments of a tag are kept.
const keepAssignments = 200

// addAssignment records that a tag was pointed to a build, and forgets the
// oldest time where there are too many.
func addAssignment(ctx context.Context, tx *sql.Tx, b cay.Build, tag string, at time.Time) error {
	_, err := tx.ExecContext(ctx, `
INSERT INTO template_tag_assignments (id, template, tag, team, build, assigned_at) VALUES ($1, $2, $3, $4, $5, $6)`,
		cay.NewAssignmentID(), b.Template, tag, b.Team, b.ID, millis(at))
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `
DELETE FROM template_tag_assignments WHERE id IN (SELECT a.id FROM template_tag_assignments a
WHERE a.template = $1 AND a.tag = $2 ORDER BY a.assigned_at DESC, a.id LIMIT 9223372036854775807 OFFSET $3)`,
		b.Template, tag, keepAssignments)
	return err
}

// TagAssignments lists when the tags of a template were pointed to builds that
// are ready, newest first.
func (s *DB) TagAssignments(ctx context.Context, template cay.TemplateID) ([]cay.TagAssignment, error) {
	rows, err := s.r.QueryContext(ctx, `
SELECT a.id, a.tag, a.build, a.assigned_at, b.created_at, b.finished_at
FROM template_tag_assignments a JOIN builds b ON b.id = a.build
WHERE a.template = $1 AND b.state = $2 ORDER BY a.assigned_at DESC, a.id`, template, cay.BuildReady)
	return collect(rows, err, func(row scanner) (a cay.TagAssignment, err error) {
		var at, created, finished int64
		err = row.Scan(&a.ID, &a.Tag, &a.Build, &at, &created, &finished)
		a.At, a.BuildCreated, a.BuildFinished = fromMillis(at), fromMillis(created), fromMillis(finished)
		return a, err
	})
}

// PutTags points tags to a build.
func (s *DB) PutTags(ctx context.Context, b cay.Build, tags []string, at time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error { return putTags(ctx, tx, b, tags, at) })
}

// RemoveTags removes tags of a template.
func (s *DB) RemoveTags(ctx context.Context, template cay.TemplateID, tags []string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, tag := range tags {
			for _, table := range []string{"template_tags", "template_tag_assignments"} {
				_, err := tx.ExecContext(ctx, `DELETE FROM `+table+` WHERE template = $1 AND tag = $2`, template, tag)
				if err != nil {
					return err
				}
			}
			if tag != cay.DefaultTag {
				continue
			}
			if _, err := tx.ExecContext(ctx, `UPDATE templates SET build = '' WHERE id = $1`, template); err != nil {
				return err
			}
		}
		return nil
	})
}

// Tags lists the tags of a template by name.
func (s *DB) Tags(ctx context.Context, template cay.TemplateID) ([]cay.Tag, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT t.tag, t.build, t.created_at, COALESCE(b.replicated_at, 0) FROM template_tags t LEFT JOIN builds b ON b.id = t.build
WHERE t.template = $1 ORDER BY t.tag`, template)
	return collect(rows, err, func(row scanner) (t cay.Tag, err error) {
		var at, replicated int64
		err = row.Scan(&t.Name, &t.Build, &at, &replicated)
		t.CreatedAt, t.ReplicatedAt = fromMillis(at), fromMillis(replicated)
		return t, err
	})
}

// TeamTags lists the tags of all templates of a team.
func (s *DB) TeamTags(ctx context.Context, team cay.TeamID) (map[cay.TemplateID][]cay.Tag, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT t.template, t.tag, t.build, t.created_at, COALESCE(b.replicated_at, 0) FROM template_tags t LEFT JOIN builds b ON b.id = t.build
WHERE t.template IN (SELECT id FROM templates WHERE team = $1) ORDER BY t.template, t.tag`, team)
	out := map[cay.TemplateID][]cay.Tag{}
	_, err = collect(rows, err, func(row scanner) (t cay.Tag, err error) {
		var of cay.TemplateID
		var at, replicated int64
		if err = row.Scan(&of, &t.Name, &t.Build, &at, &replicated); err != nil {
			return t, err
		}
		t.CreatedAt, t.ReplicatedAt = fromMillis(at), fromMillis(replicated)
		out[of] = append(out[of], t)
		return t, nil
	})
	return out, err
}

// TaggedBuild finds the build that a tag of a template points to.
func (s *DB) TaggedBuild(ctx context.Context, template cay.TemplateID, tag string) (cay.Build, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+buildColumns+` FROM builds
WHERE id = (SELECT build FROM template_tags WHERE template = $1 AND tag = $2)`, template, tag)
	return one(row, scanBuild, "tag", tag)
}

// UncopiedBuilds lists the snapshots of builds that the bucket lacks.
func (s *DB) UncopiedBuilds(ctx context.Context) ([]cay.SnapshotID, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT DISTINCT snapshot FROM builds WHERE replicated_at = 0 AND snapshot <> ''`)
	return collect(rows, err, func(row scanner) (id cay.SnapshotID, err error) {
		err = row.Scan(&id)
		return id, err
	})
}

// BuildsReplicated records that the bucket has the snapshot of builds.
func (s *DB) BuildsReplicated(ctx context.Context, id cay.SnapshotID, at time.Time) error {
	_, err := s.exec(ctx, `UPDATE builds SET replicated_at = $1 WHERE snapshot = $2 AND replicated_at = 0 AND snapshot <> ''`, millis(at), id)
	return dbError(err)
}

// SetPublic says whether other teams may use a team's own template.
func (s *DB) SetPublic(ctx context.Context, team cay.TeamID, id cay.TemplateID, public bool) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE templates SET public = $1 WHERE id = $2 AND team = $3`, flag(public), id, team)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return cmp.Or(err, notFound("template", id))
		}
		return nil
	})
}

// AddBuildLogs appends to a build's log.
func (s *DB) AddBuildLogs(ctx context.Context, team cay.TeamID, build cay.BuildID, from int, lines []cay.BuildLog) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for i, l := range lines {
			_, err := tx.ExecContext(ctx, `
INSERT INTO build_logs (build, n, team, at, level, step, message) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
				build, from+i, team, millis(l.At), int(l.Level), l.Step, l.Message)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// BuildLogs reads a part of a build's log.
func (s *DB) BuildLogs(ctx context.Context, q BuildLogQuery) ([]cay.BuildLog, error) {
	c := &conditions{}
	c.where = append(c.where, "build = "+c.arg(q.Build), "level >= "+c.arg(int(q.Level)))
	order := "n"
	switch {
	case q.Backward:
		order = "n DESC"
		if !q.From.IsZero() {
			c.where = append(c.where, "at <= "+c.arg(millis(q.From)))
		}
	case !q.From.IsZero():
		c.where = append(c.where, "at >= "+c.arg(millis(q.From)))
	}
	limit, offset := c.arg(q.Limit), c.arg(q.Offset)
	rows, err := s.r.QueryContext(ctx, `SELECT at, level, step, message FROM build_logs
WHERE `+strings.Join(c.where, " AND ")+` ORDER BY `+order+` LIMIT `+limit+` OFFSET `+offset, c.args...)
	return collect(rows, err, func(row scanner) (l cay.BuildLog, err error) {
		var at int64
		err = row.Scan(&at, &l.Level, &l.Step, &l.Message)
		l.At = fromMillis(at)
		return l, err
	})
}
