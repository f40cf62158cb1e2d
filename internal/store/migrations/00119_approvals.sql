-- Approvals: questions of sandboxes and programs, and the decisions, which later
-- questions of the same subject are answered by. A webhook that is told of them
-- has the credential that chose its address.

-- +goose Up
CREATE TABLE approvals (
    id             TEXT PRIMARY KEY,
    team           TEXT NOT NULL REFERENCES teams (id),
    sandbox        TEXT NOT NULL, -- empty for none
    kind           TEXT NOT NULL,
    subject        TEXT NOT NULL,
    title          TEXT NOT NULL,
    body           TEXT NOT NULL,
    risk           TEXT NOT NULL,
    asked_kind     TEXT NOT NULL,
    asked_id       TEXT NOT NULL,
    asked_name     TEXT NOT NULL,
    origin_key     TEXT NOT NULL,
    origin_person  TEXT NOT NULL,
    created_at     BIGINT NOT NULL,
    expires_at     BIGINT NOT NULL,
    state          TEXT NOT NULL,
    decided_kind   TEXT NOT NULL,
    decided_id     TEXT NOT NULL,
    decided_name   TEXT NOT NULL,
    decided_at     BIGINT NOT NULL,
    note           TEXT NOT NULL,
    remember       TEXT NOT NULL,
    used_at        BIGINT NOT NULL
);
CREATE INDEX approvals_team ON approvals (team, created_at);
CREATE INDEX approvals_subject ON approvals (sandbox, kind, subject) WHERE subject <> '';
CREATE INDEX approvals_pending ON approvals (expires_at) WHERE state = 'pending';

ALTER TABLE webhooks ADD COLUMN chosen_by_key TEXT NOT NULL DEFAULT '';
ALTER TABLE webhooks ADD COLUMN chosen_by_person TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE webhooks DROP COLUMN chosen_by_person;
ALTER TABLE webhooks DROP COLUMN chosen_by_key;
DROP TABLE approvals;
