-- +goose Up
-- A task is its instance's tenant's, also when the instance is no more. What
-- belongs to a task is its tenant's with it.
ALTER TABLE tasks ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
UPDATE tasks SET tenant = coalesce((SELECT tenant FROM instances WHERE instances.id = tasks.instance_id), 'default');

-- +goose Down
ALTER TABLE tasks DROP COLUMN tenant;
