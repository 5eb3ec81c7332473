-- +goose Up
-- Names are unique within a tenant, which a new table must say.
CREATE TABLE instances_new (
  id         TEXT PRIMARY KEY,
  tenant     TEXT NOT NULL DEFAULT 'default',
  name       TEXT NOT NULL,
  phase      TEXT NOT NULL,
  reason     TEXT NOT NULL DEFAULT '',
  follow     TEXT NOT NULL DEFAULT '',  -- the request after the stop at work
  resting    INTEGER NOT NULL DEFAULT 0,
  expires_ms INTEGER NOT NULL DEFAULT 0, -- 0: never
  restarts   INTEGER NOT NULL DEFAULT 0,
  host       TEXT NOT NULL,
  provider   TEXT NOT NULL,
  plan       TEXT NOT NULL,             -- JSON of plan.Plan
  handle     TEXT,                      -- JSON of vm.Handle
  fault      TEXT,                      -- JSON
  guest      TEXT,                      -- JSON of supervise.Guest
  labels     TEXT NOT NULL DEFAULT '{}',
  generation INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,          -- since the Unix epoch
  updated_ms INTEGER NOT NULL,
  UNIQUE (tenant, name)
) STRICT;
INSERT INTO instances_new
  (id, name, phase, host, provider, plan, handle, fault, guest, labels, generation, created_ms, updated_ms)
  SELECT id, name, phase, host, provider, plan, handle, fault, guest, labels, generation, created_ms, updated_ms FROM instances;
DROP TABLE instances;
ALTER TABLE instances_new RENAME TO instances;

ALTER TABLE operations ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE operations ADD COLUMN steps TEXT;             -- JSON, the journal
ALTER TABLE operations ADD COLUMN canceling INTEGER NOT NULL DEFAULT 0;
CREATE INDEX operations_listed ON operations (tenant, id DESC);
CREATE INDEX operations_of ON operations (instance, id DESC);
CREATE INDEX operations_open ON operations (id) WHERE ended_ms IS NULL;

-- What happened, numbered from 1 without gaps. The newest rows are kept.
CREATE TABLE fleet_events (
  seq       INTEGER PRIMARY KEY,
  at_ms     INTEGER NOT NULL,
  tenant    TEXT NOT NULL,
  type      TEXT NOT NULL,
  instance  TEXT NOT NULL,
  name      TEXT NOT NULL,
  phase     TEXT NOT NULL,
  operation TEXT NOT NULL,
  reason    TEXT NOT NULL,
  message   TEXT NOT NULL
) STRICT;
CREATE INDEX fleet_events_of ON fleet_events (instance, seq);

-- Machines that no instance knows.
CREATE TABLE orphans (
  provider  TEXT NOT NULL,
  id        TEXT NOT NULL,
  since_ms  INTEGER NOT NULL,
  remove_ms INTEGER NOT NULL,           -- 0: never
  PRIMARY KEY (provider, id)
) STRICT, WITHOUT ROWID;

-- Whether this database has been taken into use in its state directory. One
-- that was used before this table was there has been.
CREATE TABLE fleet_state (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO fleet_state (key, value)
  SELECT 'adopted', 'yes' WHERE EXISTS (SELECT 1 FROM instances) OR EXISTS (SELECT 1 FROM operations);

-- +goose Down
DROP TABLE fleet_state;
DROP TABLE orphans;
DROP TABLE fleet_events;
DROP INDEX operations_open;
DROP INDEX operations_of;
DROP INDEX operations_listed;
ALTER TABLE operations DROP COLUMN canceling;
ALTER TABLE operations DROP COLUMN steps;
ALTER TABLE operations DROP COLUMN tenant;
CREATE TABLE instances_old (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE,
  phase      TEXT NOT NULL,
  host       TEXT NOT NULL,
  provider   TEXT NOT NULL,
  plan       TEXT NOT NULL,
  handle     TEXT,
  fault      TEXT,
  guest      TEXT,
  labels     TEXT NOT NULL DEFAULT '{}',
  generation INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL
) STRICT;
INSERT INTO instances_old
  SELECT id, name, phase, host, provider, plan, handle, fault, guest, labels, generation, created_ms, updated_ms FROM instances;
DROP TABLE instances;
ALTER TABLE instances_old RENAME TO instances;
