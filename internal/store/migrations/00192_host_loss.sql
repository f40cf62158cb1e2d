-- Sandboxes that go on elsewhere when their machine is lost, and checkpoints that are in the bucket.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN on_host_loss TEXT NOT NULL DEFAULT '';
ALTER TABLE checkpoints ADD COLUMN replicated_at BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE checkpoints DROP COLUMN replicated_at;
ALTER TABLE sandboxes DROP COLUMN on_host_loss;
