-- Nodes that are drained have their sandboxes go on elsewhere.

-- +goose Up
ALTER TABLE draining_nodes ADD COLUMN mode TEXT NOT NULL DEFAULT 'wait';
ALTER TABLE sandboxes ADD COLUMN moving BIGINT NOT NULL DEFAULT 0; -- it was paused to go on on another node

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN moving;
ALTER TABLE draining_nodes DROP COLUMN mode;
