-- How often sandboxes were made of a template, in parts: one row would let one create
-- after the other commit, of all nodes. The templates' own rows keep the counts of earlier versions.

-- +goose Up
CREATE TABLE template_spawns (
    template TEXT NOT NULL,
    part     BIGINT NOT NULL,
    count    BIGINT NOT NULL,
    last_at  BIGINT NOT NULL,
    PRIMARY KEY (template, part)
);

-- +goose Down
UPDATE templates SET
    spawn_count = spawn_count + COALESCE((SELECT SUM(s.count) FROM template_spawns s WHERE s.template = templates.id), 0),
    last_spawned_at = COALESCE((SELECT MAX(s.last_at) FROM template_spawns s WHERE s.template = templates.id), last_spawned_at);
DROP TABLE template_spawns;
