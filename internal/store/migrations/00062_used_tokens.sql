-- Tokens of other issuers that were exchanged for a key, so that none is twice.

-- +goose Up
CREATE TABLE used_tokens (
    digest TEXT PRIMARY KEY,
    until  BIGINT NOT NULL -- when the token is over by itself
);
CREATE INDEX used_tokens_until ON used_tokens (until);

-- +goose Down
DROP TABLE used_tokens;
