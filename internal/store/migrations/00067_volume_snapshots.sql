-- Snapshots of volumes. Each is a volume of its own where volumes are kept, by
-- its id, which no sandbox mounts.

-- +goose Up
CREATE TABLE volume_snapshots (
    id         TEXT PRIMARY KEY,
    volume     TEXT NOT NULL REFERENCES volumes (id),
    team       TEXT NOT NULL REFERENCES teams (id),
    name       TEXT NOT NULL,
    size_mb    BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (volume, name)
);
CREATE INDEX volume_snapshots_team ON volume_snapshots (team, created_at);

-- +goose Down
DROP TABLE volume_snapshots;
