-- Teams that were removed. Their rows stay for usage, audit and events;
-- cleared_at is when everything else of theirs was gone.

-- +goose Up
ALTER TABLE teams ADD COLUMN removed_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE teams ADD COLUMN cleared_at BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE teams DROP COLUMN cleared_at;
ALTER TABLE teams DROP COLUMN removed_at;
