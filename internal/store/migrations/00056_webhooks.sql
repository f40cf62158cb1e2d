-- Webhooks, and the attempts to tell them events. The events are the queue: a
-- webhook has the number of the last that it is done with, and an attempt that
-- is to be repeated has a time. Secrets are encrypted.

-- +goose Up
CREATE TABLE webhooks (
    id            TEXT PRIMARY KEY,
    team          TEXT NOT NULL REFERENCES teams (id),
    name          TEXT NOT NULL,
    url           TEXT NOT NULL,
    events        TEXT NOT NULL, -- JSON
    enabled       BIGINT NOT NULL,
    sealed        TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    version       BIGINT NOT NULL,
    position      BIGINT NOT NULL, -- the cursor, a number of events
    failing_since BIGINT NOT NULL DEFAULT 0,
    disabled      TEXT NOT NULL DEFAULT ''
);
CREATE INDEX webhooks_team ON webhooks (team, created_at);

CREATE TABLE webhook_attempts (
    webhook          TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    event            TEXT NOT NULL,
    number           BIGINT NOT NULL,
    id               TEXT NOT NULL,
    team             TEXT NOT NULL,
    seq              BIGINT NOT NULL, -- of the event; 0 for a test
    type             TEXT NOT NULL,
    sandbox          TEXT NOT NULL,
    at               BIGINT NOT NULL,
    took             BIGINT NOT NULL, -- milliseconds
    url              TEXT NOT NULL,
    body             TEXT NOT NULL,
    request_headers  TEXT NOT NULL,
    response_headers TEXT NOT NULL,
    response_body    TEXT NOT NULL,
    status           BIGINT NOT NULL, -- of HTTP; 0 without an answer
    class            TEXT NOT NULL, -- why it failed; empty when it did not
    error            TEXT NOT NULL,
    next_at          BIGINT NOT NULL, -- when the event is tried again; 0 for never
    PRIMARY KEY (webhook, event, number)
);
CREATE INDEX webhook_attempts_at ON webhook_attempts (webhook, at);
CREATE INDEX webhook_attempts_seq ON webhook_attempts (webhook, seq);
CREATE INDEX webhook_attempts_next ON webhook_attempts (webhook, next_at) WHERE next_at > 0;

-- Which incarnation of a sandbox an event is of, and the lists of a network
-- that was changed, as JSON.
ALTER TABLE events ADD COLUMN instance TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN outwards TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE events DROP COLUMN outwards;
ALTER TABLE events DROP COLUMN instance;
DROP TABLE webhook_attempts;
DROP TABLE webhooks;
