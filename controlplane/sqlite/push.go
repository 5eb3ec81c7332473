package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Webhooks keeps the webhooks of push notifications. Their secrets are stored
// as they are: they must be sent, and the file is readable by its owner only.
type Webhooks struct{ db *DB }

var _ push.Store = Webhooks{}

// Webhooks returns the store of webhooks.
func (db *DB) Webhooks() Webhooks { return Webhooks{db} }

const selectHook = `SELECT serial, task_id, id, version, url, token, scheme, credentials, created_ms,
	state, delivered, failures, failing_ms, retry_ms, cause FROM push_hooks`

func scanHook(row scanner) (h push.Hook, err error) {
	p := &h.Progress
	var created, failing, retry int64
	err = row.Scan(&h.Serial, &h.TaskID, &h.ID, &h.Version, &h.URL, (*string)(&h.Token), &h.Scheme,
		(*string)(&h.Credentials), &created, (*string)(&p.State), &p.Delivered, &p.Failures, &failing, &retry, &p.Cause)
	h.CreatedAt = task.StampMillis(created).Time
	p.FailingSince, p.NotBefore = fromMillis(failing), fromMillis(retry)
	return h, err
}

// Put implements push.Store.
func (s Webhooks) Put(ctx context.Context, in task.Scope, h push.Hook, after int64, limit int) (push.Hook, error) {
	h.CreatedAt = task.Stamp(h.CreatedAt).Time
	h.Progress = push.Progress{State: push.Active}
	err := s.db.write(ctx, func(tx *sql.Tx) error {
		var seq uint64
		var finished bool
		var tenant string
		err := tx.QueryRowContext(ctx, `SELECT last_seq, finished, tenant FROM tasks WHERE id = ? AND `+inScope,
			append([]any{h.TaskID}, scopeArgs(in)...)...).Scan(&seq, &finished, &tenant)
		if err := found(err); err != nil {
			return err
		}
		switch {
		case after >= 0:
			seq = min(seq, uint64(after))
		case finished:
			seq-- // the last event of a task is its end
		}
		err = tx.QueryRowContext(ctx, `DELETE FROM push_hooks WHERE task_id = ? AND id = ? RETURNING delivered`,
			h.TaskID, h.ID).Scan(&seq)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		var have int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM push_hooks WHERE task_id = ?`, h.TaskID).Scan(&have); err != nil {
			return err
		}
		if have >= limit {
			return push.ErrTooMany
		}
		h.Progress.Delivered = seq
		res, err := tx.ExecContext(ctx, `INSERT INTO push_hooks
			(task_id, tenant, id, version, url, token, scheme, credentials, created_ms, state, delivered)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			h.TaskID, tenant, h.ID, h.Version, h.URL, string(h.Token), h.Scheme, string(h.Credentials),
			h.CreatedAt.UnixMilli(), string(push.Active), seq)
		if err != nil {
			return err
		}
		h.Serial, err = res.LastInsertId()
		return err
	})
	if err != nil {
		return push.Hook{}, fmt.Errorf("cannot store webhook %q of task %q: %w", h.ID, h.TaskID, err)
	}
	return h, nil
}

// Hooks implements push.Store.
func (s Webhooks) Hooks(ctx context.Context, in task.Scope, taskID string) ([]push.Hook, error) {
	return s.list(ctx, "WHERE task_id = ? AND "+ofScope+" ORDER BY serial", scoped(in, taskID, taskID)...)
}

// Active implements push.Store.
func (s Webhooks) Active(ctx context.Context) ([]push.Hook, error) {
	return s.list(ctx, "WHERE state = 'active' ORDER BY serial")
}

func (s Webhooks) list(ctx context.Context, where string, args ...any) (hooks []push.Hook, err error) {
	err = s.db.read(ctx, func(tx *sql.Tx) error {
		return each(ctx, tx, func(rows *sql.Rows) error {
			h, err := scanHook(rows)
			hooks = append(hooks, h)
			return err
		}, selectHook+" "+where, args...)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list webhooks: %w", err)
	}
	return hooks, nil
}

// Delete implements push.Store.
func (s Webhooks) Delete(ctx context.Context, in task.Scope, taskID, id string) error {
	_, err := s.db.w.ExecContext(ctx, `DELETE FROM push_hooks WHERE task_id = ? AND id = ? AND `+ofScope,
		scoped(in, taskID, taskID, id)...)
	if err != nil {
		return fmt.Errorf("cannot delete webhook %q of task %q: %w", id, taskID, err)
	}
	return nil
}

// Save implements push.Store.
func (s Webhooks) Save(ctx context.Context, serial int64, p push.Progress) error {
	res, err := s.db.w.ExecContext(ctx, `UPDATE push_hooks SET state = ?, delivered = ?, failures = ?,
		failing_ms = ?, retry_ms = ?, cause = ? WHERE serial = ?`,
		string(p.State), p.Delivered, p.Failures, toMillis(p.FailingSince), toMillis(p.NotBefore), p.Cause, serial)
	if err != nil {
		return fmt.Errorf("cannot store progress of webhook %d: %w", serial, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("cannot store progress of webhook %d: %w", serial, err)
	}
	if n == 0 {
		return fmt.Errorf("cannot store progress of webhook %d: %w", serial, push.ErrGone)
	}
	return nil
}

// toMillis and fromMillis keep the zero time as 0.
func toMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return millis(t)
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return task.StampMillis(ms).Time
}
