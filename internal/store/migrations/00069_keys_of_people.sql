-- The person whom a key goes back to: its maker, or the one behind the key that
-- made it. The keys of a disabled person open nothing.

-- +goose Up
ALTER TABLE api_keys ADD COLUMN person TEXT NOT NULL DEFAULT '';
WITH RECURSIVE behind (id, maker) AS (
    SELECT id, created_by FROM api_keys WHERE created_by <> ''
    UNION SELECT b.id, k.created_by FROM behind b JOIN api_keys k ON k.id = b.maker WHERE k.created_by <> '')
UPDATE api_keys SET person = COALESCE((SELECT p.id FROM behind b JOIN people p ON p.id = b.maker WHERE b.id = api_keys.id), '');
CREATE INDEX api_keys_person ON api_keys (person) WHERE person <> '';

-- +goose Down
DROP INDEX api_keys_person;
ALTER TABLE api_keys DROP COLUMN person;
