-- Which machine has a node's name, until when, by the database's clock.

-- +goose Up
CREATE TABLE nodes (
    id          TEXT PRIMARY KEY,
    machine     TEXT NOT NULL, -- a name of its data directory's own
    epoch       BIGINT NOT NULL, -- one more each time that it is taken
    lease_until BIGINT NOT NULL
);

-- +goose Down
DROP TABLE nodes;
