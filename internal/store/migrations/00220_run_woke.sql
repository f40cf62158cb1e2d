-- Whether a run woke its sandbox, so that a later server leaves it as it was.

-- +goose Up
ALTER TABLE runs ADD COLUMN woke BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE runs DROP COLUMN woke;
