-- The members of a cluster, what they share, and the tokens that let a machine in.

-- +goose Up
ALTER TABLE nodes ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN fingerprint TEXT NOT NULL DEFAULT ''; -- of its certificate; empty for a machine alone
ALTER TABLE nodes ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN state TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN has TEXT NOT NULL DEFAULT '{}'; -- what it told of itself with its last renewal
ALTER TABLE nodes ADD COLUMN joined_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN seen_at BIGINT NOT NULL DEFAULT 0;

CREATE TABLE clusters (
    one         BIGINT PRIMARY KEY, -- always 1: a database has one cluster
    id          TEXT NOT NULL,
    certificate TEXT NOT NULL, -- of its authority
    key         TEXT NOT NULL, -- of its authority, sealed
    lead        TEXT NOT NULL,
    created_at  BIGINT NOT NULL
);

CREATE TABLE join_tokens (
    digest     TEXT PRIMARY KEY,
    bundle     TEXT NOT NULL, -- the keys of the installation, which the token alone opens; empty once it is used
    expires_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL,
    node       TEXT NOT NULL
);

-- +goose Down
DROP TABLE join_tokens;
DROP TABLE clusters;
ALTER TABLE nodes DROP COLUMN seen_at;
ALTER TABLE nodes DROP COLUMN joined_at;
ALTER TABLE nodes DROP COLUMN has;
ALTER TABLE nodes DROP COLUMN state;
ALTER TABLE nodes DROP COLUMN version;
ALTER TABLE nodes DROP COLUMN fingerprint;
ALTER TABLE nodes DROP COLUMN address;
