-- The audit log as one chain of rows, and the signed heads of the chain.

-- +goose Up
CREATE TABLE audit (
    seq        BIGINT PRIMARY KEY, -- without a gap, in the order of commits
    at         BIGINT NOT NULL,
    actor_kind TEXT NOT NULL,
    actor      TEXT NOT NULL,
    actor_name TEXT NOT NULL,
    team       TEXT NOT NULL, -- outlives the team's record; empty for none
    action     TEXT NOT NULL,
    target     TEXT NOT NULL,
    outcome    TEXT NOT NULL,
    request    TEXT NOT NULL,
    address    TEXT NOT NULL,
    agent      TEXT NOT NULL,
    details    TEXT NOT NULL, -- JSON
    prev       TEXT NOT NULL, -- hexadecimal digits
    hash       TEXT NOT NULL
);
CREATE INDEX audit_team ON audit (team, seq);

CREATE TABLE audit_heads (
    seq        BIGINT PRIMARY KEY,
    at         BIGINT NOT NULL,
    hash       TEXT NOT NULL,
    public_key TEXT NOT NULL,
    signature  TEXT NOT NULL,
    dropped    BIGINT NOT NULL DEFAULT 0 -- 1 when the rows up to it are dropped
);

-- +goose Down
DROP TABLE audit_heads;
DROP TABLE audit;
