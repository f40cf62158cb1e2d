-- Machines that take no new sandboxes, until their operator has them take some
-- again: a restart of the server is no such word.

-- +goose Up
CREATE TABLE draining_nodes (
    node TEXT PRIMARY KEY
);

-- +goose Down
DROP TABLE draining_nodes;
