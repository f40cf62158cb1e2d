-- Whether the agent of a paused sandbox answered when it was saved.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN unresponsive BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN unresponsive;
