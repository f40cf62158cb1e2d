-- Sandboxes whose commands a person is asked about.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN ask_commands TEXT NOT NULL DEFAULT 'null'; -- patterns, as JSON

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN ask_commands;
