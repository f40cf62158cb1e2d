-- When the snapshot of a sandbox was in the bucket whole; zero while it is not.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN replicated_at BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN replicated_at;
