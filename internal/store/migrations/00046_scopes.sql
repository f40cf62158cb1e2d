-- Teams that may be disabled, and keys that may do less than everything.
-- grant_names has names of scopes and roles with spaces between them; none means
-- all that there is in the team.

-- +goose Up
ALTER TABLE teams ADD COLUMN disabled_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN last_used BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN expires_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN grant_names TEXT NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN bounds TEXT NOT NULL DEFAULT '{}'; -- JSON

-- +goose Down
ALTER TABLE api_keys DROP COLUMN bounds;
ALTER TABLE api_keys DROP COLUMN grant_names;
ALTER TABLE api_keys DROP COLUMN expires_at;
ALTER TABLE api_keys DROP COLUMN last_used;
ALTER TABLE api_keys DROP COLUMN created_by;
ALTER TABLE teams DROP COLUMN disabled_at;
