-- Events of sandboxes, in order, and the keys that make creates safe to repeat.

-- +goose Up
CREATE TABLE events (
    team    TEXT NOT NULL REFERENCES teams (id),
    seq     BIGINT NOT NULL,
    sandbox TEXT NOT NULL, -- outlives the sandbox's record
    type    TEXT NOT NULL,
    reason  TEXT NOT NULL,
    at      BIGINT NOT NULL,
    data    TEXT NOT NULL, -- JSON
    PRIMARY KEY (team, seq)
);
CREATE INDEX events_sandbox ON events (sandbox, seq);
CREATE INDEX events_at ON events (at);

-- The last number that each team's events have. Counting here, and not in a
-- sequence, makes the order of numbers that of commits on every database.
CREATE TABLE event_counters (
    team TEXT PRIMARY KEY REFERENCES teams (id),
    last BIGINT NOT NULL
);

CREATE TABLE idempotency_keys (
    team       TEXT NOT NULL REFERENCES teams (id),
    key        TEXT NOT NULL,
    digest     TEXT NOT NULL, -- of what was asked for
    sandbox    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (team, key)
);
CREATE INDEX idempotency_keys_created ON idempotency_keys (created_at);

-- +goose Down
DROP TABLE idempotency_keys;
DROP TABLE event_counters;
DROP TABLE events;
