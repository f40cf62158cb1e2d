-- Types are TEXT and BIGINT only, so that one file serves every database.
-- Times are Unix milliseconds, 0 for none. Every row has a team.

-- +goose Up
CREATE TABLE teams (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);

CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    name       TEXT NOT NULL,
    hash       TEXT NOT NULL UNIQUE,
    mask       TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX api_keys_team ON api_keys (team);

CREATE TABLE templates (
    id              TEXT PRIMARY KEY,
    team            TEXT NOT NULL REFERENCES teams (id),
    public          BIGINT NOT NULL,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    last_spawned_at BIGINT NOT NULL,
    spawn_count     BIGINT NOT NULL,
    build           TEXT NOT NULL -- the newest ready one, or empty
);
CREATE INDEX templates_team ON templates (team);

CREATE TABLE template_names (
    team     TEXT NOT NULL REFERENCES teams (id),
    name     TEXT NOT NULL,
    template TEXT NOT NULL REFERENCES templates (id),
    position BIGINT NOT NULL,
    PRIMARY KEY (team, name)
);
CREATE INDEX template_names_template ON template_names (template);

CREATE TABLE builds (
    id            TEXT PRIMARY KEY,
    template      TEXT NOT NULL REFERENCES templates (id),
    team          TEXT NOT NULL REFERENCES teams (id),
    state         TEXT NOT NULL,
    snapshot      TEXT NOT NULL,
    recipe_digest TEXT NOT NULL,
    cpus          BIGINT NOT NULL,
    memory_mb     BIGINT NOT NULL,
    disk_mb       BIGINT NOT NULL,
    envd_version  TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    finished_at   BIGINT NOT NULL
);
CREATE INDEX builds_template ON builds (template, created_at);

CREATE TABLE sandboxes (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    template   TEXT NOT NULL,
    build      TEXT NOT NULL,
    snapshot   TEXT NOT NULL,
    alias      TEXT NOT NULL,
    node       TEXT NOT NULL,
    instance   TEXT NOT NULL,
    state      TEXT NOT NULL,
    cause      TEXT NOT NULL,
    ended_at   BIGINT NOT NULL,
    cpus       BIGINT NOT NULL,
    memory_mb  BIGINT NOT NULL,
    disk_mb    BIGINT NOT NULL,
    metadata   TEXT NOT NULL, -- JSON, for reading back
    env        TEXT NOT NULL, -- JSON
    network    TEXT NOT NULL, -- JSON
    secure     BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    end_at     BIGINT NOT NULL,
    timeout_ms BIGINT NOT NULL,
    on_timeout TEXT NOT NULL
);
CREATE INDEX sandboxes_list ON sandboxes (team, state, started_at, id);
CREATE INDEX sandboxes_state ON sandboxes (state, ended_at);

-- The metadata once more, for filters.
CREATE TABLE sandbox_metadata (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    team    TEXT NOT NULL REFERENCES teams (id),
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (sandbox, key)
);

-- +goose Down
DROP TABLE sandbox_metadata;
DROP TABLE sandboxes;
DROP TABLE builds;
DROP TABLE template_names;
DROP TABLE templates;
DROP TABLE api_keys;
DROP TABLE teams;
