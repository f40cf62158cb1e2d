-- Sessions of keys and of the operator, beside those of people: a console that
-- was opened by a key ends with the key, one of the operator's with the token.

-- +goose Up
CREATE TABLE sessions_of_all (
    id         TEXT PRIMARY KEY,
    person     TEXT REFERENCES people (id),
    api_key    TEXT NOT NULL DEFAULT '',
    operator   TEXT NOT NULL DEFAULT '',
    hash       TEXT NOT NULL UNIQUE,
    agent      TEXT NOT NULL,
    address    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL
);
INSERT INTO sessions_of_all (id, person, hash, agent, address, created_at, used_at)
    SELECT id, person, hash, agent, address, created_at, used_at FROM sessions;
DROP TABLE sessions;
ALTER TABLE sessions_of_all RENAME TO sessions;
CREATE INDEX sessions_person ON sessions (person);
CREATE INDEX sessions_api_key ON sessions (api_key);

-- +goose Down
CREATE TABLE sessions_of_people (
    id         TEXT PRIMARY KEY,
    person     TEXT NOT NULL REFERENCES people (id),
    hash       TEXT NOT NULL UNIQUE,
    agent      TEXT NOT NULL,
    address    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL
);
INSERT INTO sessions_of_people (id, person, hash, agent, address, created_at, used_at)
    SELECT id, person, hash, agent, address, created_at, used_at FROM sessions WHERE person IS NOT NULL;
DROP TABLE sessions;
ALTER TABLE sessions_of_people RENAME TO sessions;
CREATE INDEX sessions_person ON sessions (person);
