-- Logins of people: their sessions, the names by which providers know them, and
-- the memberships that rules gave them, which a later login may take away.

-- +goose Up
CREATE TABLE sessions (
    id         TEXT PRIMARY KEY,
    person     TEXT NOT NULL REFERENCES people (id),
    hash       TEXT NOT NULL UNIQUE,
    agent      TEXT NOT NULL,
    address    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL
);
CREATE INDEX sessions_person ON sessions (person);
CREATE TABLE identities (
    issuer  TEXT NOT NULL,
    subject TEXT NOT NULL,
    person  TEXT NOT NULL REFERENCES people (id),
    PRIMARY KEY (issuer, subject)
);
CREATE UNIQUE INDEX identities_person ON identities (person, issuer);
CREATE TABLE login_members (
    person TEXT NOT NULL REFERENCES people (id),
    team   TEXT NOT NULL REFERENCES teams (id),
    PRIMARY KEY (person, team)
);

-- +goose Down
DROP TABLE login_members;
DROP TABLE identities;
DROP TABLE sessions;
