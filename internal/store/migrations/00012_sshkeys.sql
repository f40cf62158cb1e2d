-- Public keys that open a team's sandboxes over SSH. Teams may share one.

-- +goose Up
CREATE TABLE ssh_keys (
    id          TEXT PRIMARY KEY,
    team        TEXT NOT NULL REFERENCES teams (id),
    name        TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    public      TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    UNIQUE (team, fingerprint)
);
CREATE INDEX ssh_keys_by_fingerprint ON ssh_keys (fingerprint);

-- +goose Down
DROP TABLE ssh_keys;
