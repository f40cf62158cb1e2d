-- A node reads its own sandboxes, of all that live on a thousand.

-- +goose Up
CREATE INDEX sandboxes_node ON sandboxes (node) WHERE state <> 'killed';

-- +goose Down
DROP INDEX sandboxes_node;
