-- +goose Up
-- Requests of the management API that are to be carried out once, each with
-- the id of the operation that it may have begun and how it was answered.
CREATE TABLE management_idempotency (
  id           INTEGER PRIMARY KEY,
  tenant       TEXT NOT NULL,
  principal    TEXT NOT NULL,
  name         TEXT NOT NULL,
  hash         TEXT NOT NULL,
  operation_id TEXT NOT NULL,
  answered     INTEGER NOT NULL DEFAULT 0,
  status       INTEGER NOT NULL DEFAULT 0,
  header       TEXT NOT NULL DEFAULT '{}', -- JSON, what belongs to the answer
  body         BLOB,
  created_ms   INTEGER NOT NULL,           -- since the Unix epoch
  UNIQUE (tenant, principal, name)
) STRICT;
-- In the order in which they stay: unanswered ones, then the newest.
CREATE INDEX management_idempotency_kept ON management_idempotency (tenant, principal, answered, created_ms DESC);
CREATE INDEX management_idempotency_age ON management_idempotency (created_ms);

-- +goose Down
DROP TABLE management_idempotency;
