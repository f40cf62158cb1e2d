-- For several writers of one sandbox: a version that each change raises by one, and
-- a way to count the running sandboxes of a team within the transaction that adds
-- to them. For a restart: a sandbox was not used since it was brought back to its
-- checkpoint. The rows that name a policy are
-- found without reading all of them.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN version BIGINT NOT NULL DEFAULT 0;
ALTER TABLE branches ADD COLUMN rewound BIGINT NOT NULL DEFAULT 0;
CREATE INDEX sandboxes_running ON sandboxes (team, memory_mb) WHERE state <> 'killed' AND state <> 'paused';
CREATE INDEX sandboxes_policy ON sandboxes (team, network) WHERE network LIKE 'sha256:%';

-- +goose Down
DROP INDEX sandboxes_policy;
DROP INDEX sandboxes_running;
ALTER TABLE branches DROP COLUMN rewound;
ALTER TABLE sandboxes DROP COLUMN version;
