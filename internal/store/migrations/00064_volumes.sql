-- Volumes, and the sandboxes that were created with mounts of them. The mounts that
-- a sandbox has now are in its row, as JSON.

-- +goose Up
CREATE TABLE volumes (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    name       TEXT NOT NULL,
    size_mb    BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    UNIQUE (team, name)
);
CREATE TABLE sandbox_volumes (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    volume  TEXT NOT NULL,
    PRIMARY KEY (volume, sandbox)
);
CREATE INDEX sandbox_volumes_sandbox ON sandbox_volumes (sandbox);
ALTER TABLE sandboxes ADD COLUMN volumes TEXT NOT NULL DEFAULT 'null';

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN volumes;
DROP TABLE sandbox_volumes;
DROP TABLE volumes;
