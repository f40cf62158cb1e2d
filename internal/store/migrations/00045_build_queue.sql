-- Builds that wait or run. The spec of a build may hold passwords and secrets:
-- it is encrypted, and forgotten when a server begins with the build.

-- +goose Up
CREATE TABLE build_queue (
    build       TEXT PRIMARY KEY REFERENCES builds (id) ON DELETE CASCADE,
    team        TEXT NOT NULL REFERENCES teams (id),
    queued_at   BIGINT NOT NULL,
    sealed      TEXT NOT NULL, -- empty once it runs
    owner       TEXT NOT NULL DEFAULT '', -- the node that carries it out; empty while it waits
    lease_until BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX build_queue_order ON build_queue (owner, queued_at);
-- The server before had the specs of builds in its memory.
UPDATE builds SET state = 'error', finished_at = updated_at,
    reason = '{"message":"the server stopped while the template was built; build it again"}'
WHERE state = 'building';

-- +goose Down
DROP TABLE build_queue;
