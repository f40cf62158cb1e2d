-- The builds that a tag pointed to, one row each time that it was assigned.

-- +goose Up
CREATE TABLE template_tag_assignments (
    id          TEXT PRIMARY KEY,
    template    TEXT NOT NULL REFERENCES templates (id),
    tag         TEXT NOT NULL,
    team        TEXT NOT NULL REFERENCES teams (id),
    build       TEXT NOT NULL REFERENCES builds (id) ON DELETE CASCADE,
    assigned_at BIGINT NOT NULL
);
CREATE INDEX template_tag_assignments_tag ON template_tag_assignments (template, tag, assigned_at);
CREATE INDEX template_tag_assignments_build ON template_tag_assignments (build);
INSERT INTO template_tag_assignments (id, template, tag, team, build, assigned_at)
SELECT gen_random_uuid()::text, template, tag, team, build, created_at FROM template_tags;

-- +goose Down
DROP TABLE template_tag_assignments;
