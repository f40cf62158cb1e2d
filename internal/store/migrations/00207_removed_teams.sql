-- Each node looks every few seconds for teams that were removed: a few of all.

-- +goose Up
CREATE INDEX teams_removed ON teams (id) WHERE removed_at <> 0 AND cleared_at = 0;

-- +goose Down
DROP INDEX teams_removed;
