-- The private network of a sandbox, whose policy may be sealed; empty for none.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN private_network TEXT NOT NULL DEFAULT '';
CREATE INDEX sandboxes_private ON sandboxes (team, private_network) WHERE private_network <> '';

-- +goose Down
DROP INDEX sandboxes_private;
ALTER TABLE sandboxes DROP COLUMN private_network;
