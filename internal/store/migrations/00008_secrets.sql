-- Secrets of teams. The value is encrypted; the key is not in the database.

-- +goose Up
CREATE TABLE secrets (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    name       TEXT NOT NULL,
    version    BIGINT NOT NULL,
    metadata   TEXT NOT NULL,
    sealed     TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (team, name)
);

-- +goose Down
DROP TABLE secrets;
