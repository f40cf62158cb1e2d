-- Trees of checkpoints: the nodes, and where each sandbox is in its tree. A
-- sandbox without a branch has no checkpoint and begins a tree of its own.

-- +goose Up
CREATE TABLE checkpoints (
    id         TEXT PRIMARY KEY, -- of the snapshot
    team       TEXT NOT NULL REFERENCES teams (id),
    tree       TEXT NOT NULL,
    sandbox    TEXT NOT NULL, -- outlives the sandbox's record
    parent     TEXT NOT NULL, -- or empty
    kind       TEXT NOT NULL,
    label      TEXT NOT NULL,
    auto       BIGINT NOT NULL,
    size       BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    source     TEXT NOT NULL -- JSON, the sandbox's record of that moment
);
CREATE INDEX checkpoints_tree ON checkpoints (tree, created_at);
CREATE INDEX checkpoints_parent ON checkpoints (parent);

CREATE TABLE branches (
    sandbox    TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    team       TEXT NOT NULL REFERENCES teams (id),
    tree       TEXT NOT NULL,
    checkpoint TEXT NOT NULL, -- or empty
    auto       TEXT NOT NULL  -- JSON
);
CREATE INDEX branches_tree ON branches (tree);
CREATE INDEX branches_checkpoint ON branches (checkpoint);

-- +goose Down
DROP TABLE branches;
DROP TABLE checkpoints;
