-- Providers of models that teams have, and the tokens that sandboxes exchange with
-- them. A secret is named here, and not kept.

-- +goose Up
CREATE TABLE model_providers (
    team       TEXT NOT NULL REFERENCES teams (id),
    name       TEXT NOT NULL,
    wire       TEXT NOT NULL,
    url        TEXT NOT NULL,
    secret     TEXT NOT NULL, -- its name; empty for none
    models     TEXT NOT NULL, -- JSON
    place      BIGINT NOT NULL,
    enabled    BIGINT NOT NULL,
    timeout_ms BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    PRIMARY KEY (team, name)
);
CREATE TABLE model_use (
    sandbox TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    tokens  BIGINT NOT NULL -- in and out, in its life
);
ALTER TABLE usage_rows ADD COLUMN model_input BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_rows ADD COLUMN model_output BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE usage_rows DROP COLUMN model_output;
ALTER TABLE usage_rows DROP COLUMN model_input;
DROP TABLE model_use;
DROP TABLE model_providers;
