-- Indexes for each create and each end of a sandbox: the template of a name, and
-- the sandboxes that need a snapshot, where those that are over do not count.

-- +goose Up
DROP INDEX sandboxes_snapshot;
CREATE INDEX sandboxes_snapshot ON sandboxes (snapshot) WHERE state <> 'killed';
CREATE INDEX template_names_name ON template_names (name);

-- +goose Down
DROP INDEX template_names_name;
DROP INDEX sandboxes_snapshot;
CREATE INDEX sandboxes_snapshot ON sandboxes (snapshot);
