-- +goose Up
-- What commands asked and were answered. A task has at most one prompt that is
-- open or claimed; it goes with the version of the task it was raised at.
CREATE TABLE prompts (
  id           TEXT PRIMARY KEY,
  task_id      TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
  n            INTEGER NOT NULL,          -- in its task, from 1
  context_id   TEXT NOT NULL,
  instance_id  TEXT NOT NULL,
  run_id       TEXT NOT NULL,
  task_version INTEGER NOT NULL,
  state        TEXT NOT NULL CHECK (state IN ('open', 'claimed', 'answered', 'closed')),
  envelope     TEXT NOT NULL,             -- JSON
  deadline_ms  INTEGER NOT NULL,          -- since the Unix epoch; 0 for none
  start        INTEGER NOT NULL,          -- position of the answer in the run's input
  answer       BLOB,                      -- set when claimed
  stdout_seen  INTEGER NOT NULL DEFAULT 0,
  stderr_seen  INTEGER NOT NULL DEFAULT 0,
  UNIQUE (task_id, n)
) STRICT;
CREATE UNIQUE INDEX prompts_current ON prompts (task_id) WHERE state IN ('open', 'claimed');

-- +goose Down
DROP TABLE prompts;
