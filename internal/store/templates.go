package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/cay-run/cay"
)

// templateQuery reads templates with their names and their newest ready build. A
// template that has none shows the state of its newest build.
const templateQuery = `
SELECT t.id, t.team, t.public, t.created_at, t.updated_at,
       COALESCE((SELECT MAX(p.last_at) FROM template_spawns p WHERE p.template = t.id), t.last_spawned_at),
       CAST(t.spawn_count + COALESCE((SELECT SUM(p.count) FROM template_spawns p WHERE p.template = t.id), 0) AS BIGINT),
       (SELECT COUNT(*) FROM builds c WHERE c.template = t.id),
       t.build, COALESCE(b.snapshot, ''),
       COALESCE(b.state,
           (SELECT n.state FROM builds n WHERE n.template = t.id ORDER BY n.created_at DESC, n.id LIMIT 1),
           'waiting'),
       COALESCE(b.cpus, 0), COALESCE(b.memory_mb, 0), COALESCE(b.disk_mb, 0),
       COALESCE(b.envd_version, ''), COALESCE(b.recipe_digest, ''), t.source,
       COALESCE(b.setup, ''),
       (SELECT string_agg(m.name, '
' ORDER BY m.position) FROM template_names m WHERE m.template = t.id)
FROM templates t LEFT JOIN builds b ON b.id = t.build `

// AddTemplate records a template with its names.
func (s *DB) AddTemplate(ctx context.Context, t cay.Template) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
INSERT INTO templates (id, team, public, created_at, updated_at, last_spawned_at, spawn_count, build, source)
VALUES ($1, $2, $3, $4, $5, 0, 0, '', $6)`,
			t.ID, t.Team, flag(t.Public), millis(t.CreatedAt), millis(t.UpdatedAt), t.Source)
		if err != nil {
			return err
		}
		for i, name := range t.Names {
			_, err := tx.ExecContext(ctx,
				`INSERT INTO template_names (team, name, template, position) VALUES ($1, $2, $3, $4)`,
				t.Team, name, t.ID, i)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Template finds a template that is the team's own or public.
func (s *DB) Template(ctx context.Context, team cay.TeamID, id cay.TemplateID) (cay.Template, error) {
	row := s.r.QueryRowContext(ctx,
		templateQuery+`WHERE t.id = $1 AND (t.team = $2 OR t.public = 1)`, id, team)
	return one(row, scanTemplate, "template", id)
}

// TemplateByName finds the team's template of that name, else a public one.
func (s *DB) TemplateByName(ctx context.Context, team cay.TeamID, name string) (cay.Template, error) {
	row := s.r.QueryRowContext(ctx, templateQuery+`
WHERE t.id IN (SELECT m.template FROM template_names m WHERE m.name = $1) AND (t.team = $2 OR t.public = 1)
ORDER BY t.team = $2 DESC, t.created_at, t.id LIMIT 1`, name, team)
	return one(row, scanTemplate, "template", name)
}

// FindTemplate is Template, else TemplateByName.
func (s *DB) FindTemplate(ctx context.Context, team cay.TeamID, ref string) (cay.Template, error) {
	row := s.r.QueryRowContext(ctx, templateQuery+`
WHERE (t.id = $1 OR t.id IN (SELECT m.template FROM template_names m WHERE m.name = $1)) AND (t.team = $2 OR t.public = 1)
ORDER BY t.id = $1 DESC, t.team = $2 DESC, t.created_at, t.id LIMIT 1`, ref, team)
	return one(row, scanTemplate, "template", ref)
}

// Templates lists what is the team's own or public, newest first.
func (s *DB) Templates(ctx context.Context, team cay.TeamID) ([]cay.Template, error) {
	rows, err := s.r.QueryContext(ctx, templateQuery+`
WHERE t.team = $1 OR t.public = 1 ORDER BY t.created_at DESC, t.id`, team)
	return collect(rows, err, scanTemplate)
}

// CountTemplates counts a team's own, without snapshots and some names.
func (s *DB) CountTemplates(ctx context.Context, team cay.TeamID, but ...string) (int, error) {
	if err := s.decide(ctx, team); err != nil {
		return 0, err
	}
	c := &conditions{}
	text := `SELECT COUNT(*) FROM templates t WHERE t.source = '' AND t.team = ` + c.arg(team)
	if len(but) > 0 {
		var in []string
		for _, name := range but {
			in = append(in, c.arg(name))
		}
		text += ` AND NOT EXISTS (SELECT 1 FROM template_names m WHERE m.template = t.id AND m.name IN (` + strings.Join(in, ", ") + `))`
	}
	var n int
	err := s.r.QueryRowContext(ctx, text, c.args...).Scan(&n)
	return n, dbError(err)
}

func scanTemplate(row scanner) (cay.Template, error) {
	var t cay.Template
	var public, created, updated, spawned int64
	var setup string
	var names sql.NullString
	err := row.Scan(&t.ID, &t.Team, &public, &created, &updated, &spawned, &t.SpawnCount,
		&t.BuildCount, &t.Build, &t.Snapshot, &t.BuildState,
		&t.Limits.CPUs, &t.Limits.MemoryMB, &t.Limits.DiskMB, &t.EnvdVersion, &t.RecipeDigest, &t.Source, &setup, &names)
	if err == nil {
		err = parseJSON(setup, &t.Setup)
	}
	if names.Valid {
		t.Names = strings.Split(names.String, "\n")
	}
	t.Public = public != 0
	t.CreatedAt, t.UpdatedAt, t.LastSpawned = fromMillis(created), fromMillis(updated), fromMillis(spawned)
	return t, err
}

const buildColumns = `id, template, team, state, snapshot, recipe_digest,
cpus, memory_mb, disk_mb, envd_version, created_at, updated_at, finished_at, tags, setup, reason`

// PutBuild records a build or replaces it.
func (s *DB) PutBuild(ctx context.Context, b cay.Build) error {
	tags, err1 := toJSON(b.Tags)
	setup, err2 := toJSON(b.Setup)
	reason, err3 := toJSON(b.Reason)
	if err := errors.Join(err1, err2, err3); err != nil {
		return cay.Wrap(cay.Internal, err, "encode a build")
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
INSERT INTO builds (`+buildColumns+`, made_on)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
ON CONFLICT (id) DO UPDATE SET made_on = CASE WHEN builds.snapshot = excluded.snapshot THEN builds.made_on ELSE excluded.made_on END,
    state = excluded.state, snapshot = excluded.snapshot,
    recipe_digest = excluded.recipe_digest, cpus = excluded.cpus, memory_mb = excluded.memory_mb,
    disk_mb = excluded.disk_mb, envd_version = excluded.envd_version,
    updated_at = excluded.updated_at, finished_at = excluded.finished_at,
    tags = excluded.tags, setup = excluded.setup, reason = excluded.reason`,
			b.ID, b.Template, b.Team, b.State, b.Snapshot, b.RecipeDigest,
			b.Limits.CPUs, b.Limits.MemoryMB, b.Limits.DiskMB, b.EnvdVersion,
			millis(b.CreatedAt), millis(b.UpdatedAt), millis(b.FinishedAt), tags, setup, reason, s.engine.self())
		if err != nil || b.State != cay.BuildReady {
			return err
		}
		names := b.Tags
		if len(names) == 0 {
			names = []string{cay.DefaultTag}
		}
		return putTags(ctx, tx, b, names, b.UpdatedAt)
	})
	if err != nil {
		return err
	}
	return s.sync()
}

// RemoveTemplate removes a team's own template with its names and builds.
func (s *DB) RemoveTemplate(ctx context.Context, team cay.TeamID, id cay.TemplateID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, table := range []string{"template_names", "template_tags", "template_tag_assignments", "template_spawns", "builds"} {
			_, err := tx.ExecContext(ctx, `DELETE FROM `+table+
				` WHERE template IN (SELECT t.id FROM templates t WHERE t.id = $1 AND t.team = $2)`, id, team)
			if err != nil {
				return err
			}
		}
		res, err := tx.ExecContext(ctx, `DELETE FROM templates WHERE id = $1 AND team = $2`, id, team)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return cmp.Or(err, notFound("template", id))
		}
		return nil
	})
}

// Builds lists the builds of a template that the team may see, newest first.
func (s *DB) Builds(ctx context.Context, team cay.TeamID, id cay.TemplateID) ([]cay.Build, error) {
	rows, err := s.r.QueryContext(ctx, `
SELECT `+buildColumns+` FROM builds
WHERE template IN (SELECT t.id FROM templates t WHERE t.id = $1 AND (t.team = $2 OR t.public = 1))
ORDER BY created_at DESC, id`, id, team)
	return collect(rows, err, scanBuild)
}

// BuiltSnapshots lists the snapshots of the builds of all templates of a team.
func (s *DB) BuiltSnapshots(ctx context.Context, team cay.TeamID) (map[cay.TemplateID][]cay.SnapshotID, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT template, snapshot FROM builds
WHERE snapshot <> '' AND template IN (SELECT id FROM templates WHERE team = $1) ORDER BY template, snapshot`, team)
	out := map[cay.TemplateID][]cay.SnapshotID{}
	_, err = collect(rows, err, func(row scanner) (id cay.SnapshotID, err error) {
		var of cay.TemplateID
		if err = row.Scan(&of, &id); err == nil {
			out[of] = append(out[of], id)
		}
		return id, err
	})
	return out, err
}

func scanBuild(row scanner) (cay.Build, error) {
	var b cay.Build
	var created, updated, finished int64
	var tags, setup, reason string
	err := row.Scan(&b.ID, &b.Template, &b.Team, &b.State, &b.Snapshot, &b.RecipeDigest,
		&b.Limits.CPUs, &b.Limits.MemoryMB, &b.Limits.DiskMB, &b.EnvdVersion,
		&created, &updated, &finished, &tags, &setup, &reason)
	if err == nil {
		err = errors.Join(parseJSON(tags, &b.Tags), parseJSON(setup, &b.Setup), parseJSON(reason, &b.Reason))
	}
	b.CreatedAt, b.UpdatedAt, b.FinishedAt = fromMillis(created), fromMillis(updated), fromMillis(finished)
	return b, err
}
