-- Use of volumes: in MiB × milliseconds, and what a node keeps of an account.

-- +goose Up
ALTER TABLE usage_rows ADD COLUMN volume BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_kept ADD COLUMN volume_bytes BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE usage_kept DROP COLUMN volume_bytes;
ALTER TABLE usage_rows DROP COLUMN volume;
