-- Prices of meters, and budgets. A price is in 10⁻¹² of the currency for a unit.

-- +goose Up
CREATE TABLE usage_prices (
    meter    TEXT PRIMARY KEY,
    price    BIGINT NOT NULL,
    currency TEXT NOT NULL
);
CREATE TABLE budgets (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL,
    name       TEXT NOT NULL,
    api_key    TEXT NOT NULL,
    label      TEXT NOT NULL,
    value      TEXT NOT NULL,
    meter      TEXT NOT NULL,
    amount     BIGINT NOT NULL, -- the limit, in the meter's raw unit
    period     TEXT NOT NULL,
    action     TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    before     BIGINT NOT NULL,
    told       BIGINT NOT NULL DEFAULT 0, -- the last threshold, in percent
    told_of    BIGINT NOT NULL DEFAULT 0  -- the beginning of the period that it is of
);
CREATE INDEX budgets_team ON budgets (team, created_at);

-- +goose Down
DROP TABLE budgets;
DROP TABLE usage_prices;
