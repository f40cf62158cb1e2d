-- Each node changes its row every five seconds, in place where its page has room.

-- +goose Up
ALTER TABLE nodes SET (fillfactor = 40);
ALTER TABLE event_counters SET (fillfactor = 50);

-- +goose Down
ALTER TABLE nodes RESET (fillfactor);
ALTER TABLE event_counters RESET (fillfactor);
