-- When the last tag of a build that sandboxes start from was pointed to another
-- build; zero for one that has a tag, or is kept no longer. And what a queued
-- build is made from, as a digest: the same is not built twice at once.

-- +goose Up
ALTER TABLE builds ADD COLUMN superseded_at BIGINT NOT NULL DEFAULT 0;
CREATE INDEX builds_superseded ON builds (snapshot) WHERE superseded_at > 0;
ALTER TABLE build_queue ADD COLUMN same TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE build_queue DROP COLUMN same;
DROP INDEX builds_superseded;
ALTER TABLE builds DROP COLUMN superseded_at;
