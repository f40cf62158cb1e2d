-- The node that made a snapshot, which has it on its disk; empty where none is known.

-- +goose Up
ALTER TABLE builds ADD COLUMN made_on TEXT NOT NULL DEFAULT '';
ALTER TABLE checkpoints ADD COLUMN made_on TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN made_on TEXT NOT NULL DEFAULT ''; -- of what it was saved in last

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN made_on;
ALTER TABLE checkpoints DROP COLUMN made_on;
ALTER TABLE builds DROP COLUMN made_on;
