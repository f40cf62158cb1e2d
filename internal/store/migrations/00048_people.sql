-- People, the teams that they are in, and the tokens that stand for them. How
-- people log in is in tables of its own.

-- +goose Up
CREATE TABLE people (
    id          TEXT PRIMARY KEY,
    email       TEXT NOT NULL UNIQUE, -- in lower case
    name        TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    disabled_at BIGINT NOT NULL
);
CREATE TABLE members (
    team     TEXT NOT NULL REFERENCES teams (id),
    person   TEXT NOT NULL REFERENCES people (id),
    role     TEXT NOT NULL,
    added_at BIGINT NOT NULL,
    PRIMARY KEY (team, person)
);
CREATE INDEX members_person ON members (person);
CREATE TABLE access_tokens (
    id         TEXT PRIMARY KEY,
    person     TEXT NOT NULL REFERENCES people (id),
    name       TEXT NOT NULL,
    hash       TEXT NOT NULL UNIQUE,
    mask       TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX access_tokens_person ON access_tokens (person);

-- +goose Down
DROP TABLE access_tokens;
DROP TABLE members;
DROP TABLE people;
