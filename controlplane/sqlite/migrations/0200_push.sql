-- +goose Up
-- Webhooks and how far each is. What they deliver is task_events; a webhook
-- goes with its task.
CREATE TABLE push_hooks (
  serial      INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again
  task_id     TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
  id          TEXT NOT NULL,
  version     TEXT NOT NULL,
  url         TEXT NOT NULL,
  token       TEXT NOT NULL,                     -- secret
  scheme      TEXT NOT NULL,
  credentials TEXT NOT NULL,                     -- secret
  created_ms  INTEGER NOT NULL,                  -- since the Unix epoch
  state       TEXT NOT NULL,
  delivered   INTEGER NOT NULL,                  -- seq of the newest delivered event
  failures    INTEGER NOT NULL DEFAULT 0,
  failing_ms  INTEGER NOT NULL DEFAULT 0,
  retry_ms    INTEGER NOT NULL DEFAULT 0,
  cause       TEXT NOT NULL DEFAULT '',
  UNIQUE (task_id, id)
) STRICT;
CREATE INDEX push_hooks_active ON push_hooks (serial) WHERE state = 'active';

-- +goose Down
DROP TABLE push_hooks;
