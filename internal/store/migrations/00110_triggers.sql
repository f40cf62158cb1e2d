-- Triggers, and their runs, which are the queue of what triggers start. Secrets,
-- environments and bodies are encrypted.

-- +goose Up
CREATE TABLE triggers (
    id          TEXT PRIMARY KEY,
    team        TEXT NOT NULL REFERENCES teams (id),
    name        TEXT NOT NULL,
    kind        TEXT NOT NULL,
    enabled     BIGINT NOT NULL,
    action      TEXT NOT NULL, -- JSON
    proof       TEXT NOT NULL,
    sealed      TEXT NOT NULL,
    events      TEXT NOT NULL, -- JSON
    filters     TEXT NOT NULL, -- JSON
    cron        TEXT NOT NULL,
    zone        TEXT NOT NULL,
    next_at     BIGINT NOT NULL, -- of a schedule that is enabled; else 0
    max_running BIGINT NOT NULL,
    max_waiting BIGINT NOT NULL,
    retries     BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    version     BIGINT NOT NULL
);
CREATE UNIQUE INDEX triggers_name ON triggers (team, name);
CREATE INDEX triggers_next ON triggers (next_at) WHERE next_at > 0;

CREATE TABLE runs (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    trigger_id TEXT NOT NULL REFERENCES triggers (id) ON DELETE CASCADE,
    delivery   TEXT NOT NULL,
    event      TEXT NOT NULL,
    state      TEXT NOT NULL,
    attempt    BIGINT NOT NULL,
    queued_at  BIGINT NOT NULL,
    due_at     BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    begun_at   BIGINT NOT NULL,
    ended_at   BIGINT NOT NULL,
    sandbox    TEXT NOT NULL,
    exit_code  BIGINT, -- NULL while it is not known
    error      TEXT NOT NULL,
    output     TEXT NOT NULL,
    sealed     TEXT NOT NULL,
    bytes      BIGINT NOT NULL -- of the body that is sealed
);
CREATE UNIQUE INDEX runs_delivery ON runs (trigger_id, delivery);
CREATE INDEX runs_queued ON runs (team, queued_at);
CREATE INDEX runs_trigger ON runs (trigger_id, queued_at);
CREATE INDEX runs_due ON runs (due_at) WHERE state = 'waiting';
CREATE INDEX runs_running ON runs (trigger_id) WHERE state = 'running';

-- +goose Down
DROP TABLE runs;
DROP TABLE triggers;
