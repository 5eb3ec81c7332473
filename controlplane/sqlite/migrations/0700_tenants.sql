-- +goose Up
-- Every row says whose it is. What hangs on a task has the task's tenant, which
-- never changes; task ids are unique over all tenants, the keys of messages
-- only within one.
ALTER TABLE task_messages ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE task_events ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE artifacts ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE runs ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE push_hooks ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE prompts ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';

UPDATE task_messages SET tenant = (SELECT tenant FROM tasks WHERE id = task_id)
  WHERE task_id IN (SELECT id FROM tasks WHERE tenant <> 'default');
UPDATE task_events SET tenant = (SELECT tenant FROM tasks WHERE id = task_id)
  WHERE task_id IN (SELECT id FROM tasks WHERE tenant <> 'default');
UPDATE artifacts SET tenant = (SELECT tenant FROM tasks WHERE id = task_id)
  WHERE task_id IN (SELECT id FROM tasks WHERE tenant <> 'default');
UPDATE runs SET tenant = (SELECT tenant FROM tasks WHERE id = task_id)
  WHERE task_id IN (SELECT id FROM tasks WHERE tenant <> 'default');
UPDATE push_hooks SET tenant = (SELECT tenant FROM tasks WHERE id = task_id)
  WHERE task_id IN (SELECT id FROM tasks WHERE tenant <> 'default');
UPDATE prompts SET tenant = (SELECT tenant FROM tasks WHERE id = task_id)
  WHERE task_id IN (SELECT id FROM tasks WHERE tenant <> 'default');

DROP INDEX tasks_listed;
CREATE INDEX tasks_listed ON tasks (tenant, instance_id, status_ms DESC, id DESC);

-- A key is unique within a tenant, which a new table must say.
CREATE TABLE idempotency_new (
  id          INTEGER PRIMARY KEY,
  tenant      TEXT NOT NULL DEFAULT 'default',
  principal   TEXT NOT NULL,
  instance_id TEXT NOT NULL,
  message_id  TEXT NOT NULL,
  hash        TEXT NOT NULL,
  task_id     TEXT NOT NULL,
  answered    INTEGER NOT NULL DEFAULT 0,
  answer      BLOB,
  created_ms  INTEGER NOT NULL,          -- since the Unix epoch
  UNIQUE (tenant, principal, instance_id, message_id)
) STRICT;
INSERT INTO idempotency_new (id, principal, instance_id, message_id, hash, task_id, answered, answer, created_ms)
  SELECT id, principal, instance_id, message_id, hash, task_id, answered, answer, created_ms FROM idempotency;
UPDATE idempotency_new SET tenant = (SELECT tenant FROM tasks WHERE id = task_id)
  WHERE task_id IN (SELECT id FROM tasks WHERE tenant <> 'default');
DROP TABLE idempotency;
ALTER TABLE idempotency_new RENAME TO idempotency;
CREATE INDEX idempotency_kept ON idempotency (tenant, principal, answered, created_ms DESC);
CREATE INDEX idempotency_age ON idempotency (created_ms);

-- +goose Down
-- One tenant is left, in which a key is one message: the oldest stays.
CREATE TABLE idempotency_old (
  id          INTEGER PRIMARY KEY,
  principal   TEXT NOT NULL,
  instance_id TEXT NOT NULL,
  message_id  TEXT NOT NULL,
  hash        TEXT NOT NULL,
  task_id     TEXT NOT NULL,
  answered    INTEGER NOT NULL DEFAULT 0,
  answer      BLOB,
  created_ms  INTEGER NOT NULL,
  UNIQUE (principal, instance_id, message_id)
) STRICT;
INSERT OR IGNORE INTO idempotency_old
  SELECT id, principal, instance_id, message_id, hash, task_id, answered, answer, created_ms FROM idempotency ORDER BY id;
DROP TABLE idempotency;
ALTER TABLE idempotency_old RENAME TO idempotency;
CREATE INDEX idempotency_kept ON idempotency (principal, answered, created_ms DESC);
CREATE INDEX idempotency_age ON idempotency (created_ms);

DROP INDEX tasks_listed;
CREATE INDEX tasks_listed ON tasks (instance_id, status_ms DESC, id DESC);

ALTER TABLE prompts DROP COLUMN tenant;
ALTER TABLE push_hooks DROP COLUMN tenant;
ALTER TABLE runs DROP COLUMN tenant;
ALTER TABLE artifacts DROP COLUMN tenant;
ALTER TABLE task_events DROP COLUMN tenant;
ALTER TABLE task_messages DROP COLUMN tenant;
