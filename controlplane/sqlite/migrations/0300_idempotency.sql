-- +goose Up
-- Messages that are to be carried out once, each with what its first request
-- held. Whether its task was made is told by the table of tasks alone.
CREATE TABLE idempotency (
  id          INTEGER PRIMARY KEY,
  principal   TEXT NOT NULL,
  instance_id TEXT NOT NULL,
  message_id  TEXT NOT NULL,
  hash        TEXT NOT NULL,
  task_id     TEXT NOT NULL,
  answered    INTEGER NOT NULL DEFAULT 0,
  answer      BLOB,
  created_ms  INTEGER NOT NULL,          -- since the Unix epoch
  UNIQUE (principal, instance_id, message_id)
) STRICT;
-- In the order in which they stay: unanswered ones, then the newest.
CREATE INDEX idempotency_kept ON idempotency (principal, answered, created_ms DESC);
CREATE INDEX idempotency_age ON idempotency (created_ms);

-- +goose Down
DROP TABLE idempotency;
