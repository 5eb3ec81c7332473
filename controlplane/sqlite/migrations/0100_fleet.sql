-- +goose Up
CREATE TABLE instances (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE,
  phase      TEXT NOT NULL,
  host       TEXT NOT NULL,
  provider   TEXT NOT NULL,
  plan       TEXT NOT NULL,             -- JSON of plan.Plan
  handle     TEXT,                      -- JSON of vm.Handle
  fault      TEXT,                      -- JSON, while phase is failed
  guest      TEXT,                      -- JSON of supervise.Guest
  labels     TEXT NOT NULL DEFAULT '{}',
  generation INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,          -- since the Unix epoch
  updated_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE operations (
  id         TEXT PRIMARY KEY,          -- UUIDv7: ordered by creation
  kind       TEXT NOT NULL,
  instance   TEXT NOT NULL,
  name       TEXT NOT NULL,
  state      TEXT NOT NULL,
  phase      TEXT NOT NULL DEFAULT '',
  percent    INTEGER NOT NULL DEFAULT 0,
  fault      TEXT,                      -- JSON
  warnings   TEXT,                      -- JSON
  created_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL,
  ended_ms   INTEGER
) STRICT;

-- +goose Down
DROP TABLE operations;
DROP TABLE instances;
