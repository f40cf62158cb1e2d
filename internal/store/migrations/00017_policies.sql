-- Long network policies of a team, each once. A row of sandboxes that has one
-- names it by its digest where its network stands otherwise.

-- +goose Up
CREATE TABLE policies (
    team   TEXT NOT NULL REFERENCES teams (id),
    digest TEXT NOT NULL,
    text   TEXT NOT NULL, -- JSON
    PRIMARY KEY (team, digest)
);

-- +goose Down
UPDATE sandboxes SET network = (SELECT p.text FROM policies p WHERE p.team = sandboxes.team AND p.digest = sandboxes.network)
WHERE network LIKE 'sha256:%';
DROP TABLE policies;
