-- When the bucket had the snapshot of a build whole; zero while it has not.

-- +goose Up
ALTER TABLE builds ADD COLUMN replicated_at BIGINT NOT NULL DEFAULT 0;
CREATE INDEX builds_uncopied ON builds (snapshot) WHERE replicated_at = 0 AND snapshot <> '';

-- +goose Down
DROP INDEX builds_uncopied;
ALTER TABLE builds DROP COLUMN replicated_at;
