-- For a sandbox's life: waking by traffic, and snapshots that users take,
-- which are templates with the sandbox that they were taken of.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN auto_resume BIGINT NOT NULL DEFAULT 0;
ALTER TABLE templates ADD COLUMN source TEXT NOT NULL DEFAULT '';
CREATE INDEX sandboxes_snapshot ON sandboxes (snapshot);
CREATE INDEX builds_snapshot ON builds (snapshot);

-- +goose Down
DROP INDEX builds_snapshot;
DROP INDEX sandboxes_snapshot;
ALTER TABLE templates DROP COLUMN source;
ALTER TABLE sandboxes DROP COLUMN auto_resume;
