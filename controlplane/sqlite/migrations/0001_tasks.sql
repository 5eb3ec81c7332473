-- +goose Up
CREATE TABLE tasks (
  id             TEXT PRIMARY KEY,
  context_id     TEXT NOT NULL,
  instance_id    TEXT NOT NULL,
  owner          TEXT NOT NULL,
  state          TEXT NOT NULL,
  status_message TEXT,              -- JSON
  status_ms      INTEGER NOT NULL,  -- since the Unix epoch
  metadata       TEXT,              -- JSON
  finished       INTEGER NOT NULL DEFAULT 0,
  version        INTEGER NOT NULL,
  last_seq       INTEGER NOT NULL,
  created_ms     INTEGER NOT NULL
) STRICT;
CREATE INDEX tasks_listed ON tasks (instance_id, status_ms DESC, id DESC);

CREATE TABLE task_messages (
  task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
  n       INTEGER NOT NULL,
  body    TEXT NOT NULL,            -- JSON
  PRIMARY KEY (task_id, n)
) STRICT, WITHOUT ROWID;

-- One row per event. A status event has its JSON in body; a chunk of an
-- artifact has its bytes there; the end of an artifact has nothing there.
CREATE TABLE task_events (
  task_id     TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
  seq         INTEGER NOT NULL,
  kind        TEXT NOT NULL CHECK (kind IN ('status', 'chunk', 'end')),
  artifact_id TEXT,
  start       INTEGER,              -- position of body in the artifact
  body        BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX task_events_ordered ON task_events (task_id, seq);
CREATE INDEX task_events_content ON task_events (task_id, artifact_id, start)
  WHERE kind = 'chunk';

CREATE TABLE artifacts (
  task_id     TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
  artifact_id TEXT NOT NULL,
  n           INTEGER NOT NULL,
  size        INTEGER NOT NULL,
  sha256      TEXT,                 -- set when complete
  PRIMARY KEY (task_id, artifact_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
  task_id          TEXT PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
  run_id           TEXT NOT NULL UNIQUE,
  instance_id      TEXT NOT NULL,
  runner           TEXT NOT NULL,
  spec             BLOB NOT NULL,   -- agentv1.RunSpec
  stdin            BLOB,
  stdout_artifact  TEXT NOT NULL,
  stderr_artifact  TEXT NOT NULL,
  dispatched       INTEGER NOT NULL DEFAULT 0,
  boot             BLOB,            -- of the guest at dispatch
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  released         INTEGER NOT NULL DEFAULT 0,
  after_seq        INTEGER NOT NULL DEFAULT 0,
  stdout_received  INTEGER NOT NULL DEFAULT 0,
  stderr_received  INTEGER NOT NULL DEFAULT 0,
  stdout_carry     BLOB,
  stderr_carry     BLOB,
  overflow         INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_open ON runs (task_id) WHERE released = 0;

-- +goose Down
DROP TABLE runs;
DROP TABLE artifacts;
DROP TABLE task_events;
DROP TABLE task_messages;
DROP TABLE tasks;
