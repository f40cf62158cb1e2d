-- What a paused sandbox was saved as, memory or files, and what the last start
-- of one could not give it back.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN saved TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN notice TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN notice;
ALTER TABLE sandboxes DROP COLUMN saved;
