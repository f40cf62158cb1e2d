-- How a paused sandbox was saved, with memory or as files, and the losses of its
-- last start.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN saved TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN notice TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN notice;
ALTER TABLE sandboxes DROP COLUMN saved;
