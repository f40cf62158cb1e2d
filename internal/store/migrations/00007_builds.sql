-- For builds by clients: the reason of a failure, the setup of processes, names for
-- single builds, and a log.

-- +goose Up
ALTER TABLE builds ADD COLUMN tags TEXT NOT NULL DEFAULT ''; -- JSON
ALTER TABLE builds ADD COLUMN setup TEXT NOT NULL DEFAULT ''; -- JSON
ALTER TABLE builds ADD COLUMN reason TEXT NOT NULL DEFAULT ''; -- JSON
CREATE INDEX builds_state ON builds (state);

CREATE TABLE template_tags (
    template   TEXT NOT NULL REFERENCES templates (id),
    tag        TEXT NOT NULL,
    team       TEXT NOT NULL REFERENCES teams (id),
    build      TEXT NOT NULL REFERENCES builds (id),
    created_at BIGINT NOT NULL,
    PRIMARY KEY (template, tag)
);
CREATE INDEX template_tags_build ON template_tags (build);
INSERT INTO template_tags (template, tag, team, build, created_at)
SELECT id, 'default', team, build, updated_at FROM templates WHERE build <> '';

CREATE TABLE build_logs (
    build   TEXT NOT NULL REFERENCES builds (id) ON DELETE CASCADE,
    n       BIGINT NOT NULL, -- from 0, in the order of writing
    team    TEXT NOT NULL REFERENCES teams (id),
    at      BIGINT NOT NULL,
    level   BIGINT NOT NULL,
    step    TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (build, n)
);

-- +goose Down
DROP TABLE build_logs;
DROP TABLE template_tags;
DROP INDEX builds_state;
ALTER TABLE builds DROP COLUMN reason;
ALTER TABLE builds DROP COLUMN setup;
ALTER TABLE builds DROP COLUMN tags;
