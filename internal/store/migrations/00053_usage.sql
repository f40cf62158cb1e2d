-- Use of teams: rows by hour ('h'), day ('d') and month ('m'), of each account,
-- which is a team's key, template and metered metadata. usage_open has the sandboxes that
-- run, and since when each is not counted yet; 0 means since the next look.
-- Amounts are in the raw units of cay.Amounts.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN api_key TEXT NOT NULL DEFAULT '';

CREATE TABLE usage_accounts (
    id       BIGINT PRIMARY KEY,
    team     TEXT NOT NULL,
    api_key  TEXT NOT NULL,
    template TEXT NOT NULL,
    labels   TEXT NOT NULL, -- JSON, keys in order
    UNIQUE (team, api_key, template, labels)
);
CREATE TABLE usage_labels (
    team  TEXT NOT NULL,
    label TEXT NOT NULL,
    PRIMARY KEY (team, label)
);
CREATE TABLE usage_open (
    sandbox   TEXT PRIMARY KEY,
    account   BIGINT NOT NULL,
    since     BIGINT NOT NULL,
    cpus      BIGINT NOT NULL,
    memory_mb BIGINT NOT NULL,
    creates   BIGINT NOT NULL, -- 1 while its start is not counted
    instance  TEXT NOT NULL DEFAULT '', -- that the next two are of
    cpu       BIGINT NOT NULL DEFAULT 0, -- counted already
    sent      BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE usage_kept (
    node    TEXT NOT NULL,
    account BIGINT NOT NULL,
    team    TEXT NOT NULL,
    bytes   BIGINT NOT NULL,
    since   BIGINT NOT NULL,
    PRIMARY KEY (node, account)
);
CREATE TABLE usage_rows (
    span    TEXT NOT NULL,
    team    TEXT NOT NULL,
    at      BIGINT NOT NULL, -- the beginning of the hour, day or month
    account BIGINT NOT NULL,
    vcpu    BIGINT NOT NULL,
    memory  BIGINT NOT NULL,
    cpu     BIGINT NOT NULL,
    storage BIGINT NOT NULL,
    sent    BIGINT NOT NULL,
    creates BIGINT NOT NULL,
    build   BIGINT NOT NULL,
    money   BIGINT NOT NULL,
    PRIMARY KEY (span, team, at, account)
) WITHOUT ROWID;
-- How many sandboxes of a team ran, at the end of a minute and at most; minutes
-- in which none began or ceased to have no row.
CREATE TABLE team_minutes (
    team    TEXT NOT NULL,
    at      BIGINT NOT NULL,
    running BIGINT NOT NULL,
    most    BIGINT NOT NULL,
    starts  BIGINT NOT NULL,
    PRIMARY KEY (team, at)
) WITHOUT ROWID;

INSERT INTO usage_accounts (id, team, api_key, template, labels)
SELECT ROW_NUMBER() OVER (ORDER BY team, template), team, '', template, '{}' FROM
(SELECT DISTINCT team, template FROM sandboxes WHERE state IN ('running', 'pausing')) AS running;
INSERT INTO usage_open (sandbox, account, since, cpus, memory_mb, creates)
SELECT s.id, a.id, 0, s.cpus, s.memory_mb, 0 FROM sandboxes s
JOIN usage_accounts a ON a.team = s.team AND a.template = s.template WHERE s.state IN ('running', 'pausing');
INSERT INTO team_minutes (team, at, running, most, starts)
SELECT team, 0, COUNT(*), COUNT(*), 0 FROM sandboxes WHERE state IN ('running', 'pausing') GROUP BY team;

-- +goose Down
DROP TABLE team_minutes;
DROP TABLE usage_rows;
DROP TABLE usage_kept;
DROP TABLE usage_open;
DROP TABLE usage_labels;
DROP TABLE usage_accounts;
ALTER TABLE sandboxes DROP COLUMN api_key;
