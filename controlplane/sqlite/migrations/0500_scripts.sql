-- +goose Up
-- A run has a script instead of a spec when it needs no guest; after_seq then
-- counts the steps of it that were performed.
ALTER TABLE runs ADD COLUMN script TEXT;        -- JSON
-- A chunk whose bytes do not say which part they are has that here, and the
-- digest of the artifact if it is its last.
ALTER TABLE task_events ADD COLUMN part TEXT;   -- JSON

-- +goose Down
ALTER TABLE task_events DROP COLUMN part;
ALTER TABLE runs DROP COLUMN script;
