-- The migrations that servers of before can work with. One that such servers need not know of
-- enters its own number here: INSERT INTO compatible_migrations (version) VALUES (00000).

-- +goose Up
CREATE TABLE compatible_migrations (version BIGINT NOT NULL PRIMARY KEY);

-- +goose Down
DROP TABLE compatible_migrations;
