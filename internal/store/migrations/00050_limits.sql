-- Limits of teams, where they are not the server's defaults: JSON, by name. The
-- index that counts what a team has running has all that is summed.

-- +goose Up
CREATE TABLE team_limits (
    team   TEXT PRIMARY KEY REFERENCES teams (id) ON DELETE CASCADE,
    limits TEXT NOT NULL
);
DROP INDEX sandboxes_running;
CREATE INDEX sandboxes_running ON sandboxes (team, memory_mb, cpus, disk_mb) WHERE state <> 'killed' AND state <> 'paused';

-- +goose Down
DROP INDEX sandboxes_running;
CREATE INDEX sandboxes_running ON sandboxes (team, memory_mb) WHERE state <> 'killed' AND state <> 'paused';
DROP TABLE team_limits;
