-- The parties that ask: of a question all that asked it, of a trigger those that chose
-- what it does, of a run the one that started it, of an SSH key the one that added it,
-- each a list in JSON; of a sandbox with patterns of commands those that were given its
-- token. A key that goes back to an exchange of tokens has a digest of its issuer and
-- subject.

-- +goose Up
ALTER TABLE api_keys ADD COLUMN exchange TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN askers TEXT NOT NULL DEFAULT 'null';
ALTER TABLE triggers ADD COLUMN makers TEXT NOT NULL DEFAULT 'null';
ALTER TABLE runs ADD COLUMN askers TEXT NOT NULL DEFAULT 'null';
ALTER TABLE ssh_keys ADD COLUMN added_by TEXT NOT NULL DEFAULT 'null';
CREATE TABLE token_holders (
    sandbox  TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    key_id   TEXT NOT NULL,
    person   TEXT NOT NULL,
    exchange TEXT NOT NULL,
    PRIMARY KEY (sandbox, key_id, person)
);

-- +goose Down
DROP TABLE token_holders;
ALTER TABLE ssh_keys DROP COLUMN added_by;
ALTER TABLE runs DROP COLUMN askers;
ALTER TABLE triggers DROP COLUMN makers;
ALTER TABLE approvals DROP COLUMN askers;
ALTER TABLE api_keys DROP COLUMN exchange;
