package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// expiredPerReserve bounds how many expired messages one new one clears away.
const expiredPerReserve = 64

// Idempotency is the store of messages that are to be carried out once.
type Idempotency struct{ db *DB }

// Idempotency returns the store of such messages in db.
func (db *DB) Idempotency() Idempotency { return Idempotency{db} }

// Reserve returns what is known of the message, or, if that is nothing or too
// old, stores want as the beginning of it and returns that.
func (s Idempotency) Reserve(
	ctx context.Context, k idempotency.Key, want idempotency.Reservation, at time.Time, b idempotency.Bounds,
) (got idempotency.Reservation, err error) {
	oldest, tenant := millis(at.Add(-b.TTL)), tenantOf(k)
	err = s.db.read(ctx, func(tx *sql.Tx) error {
		got, err = findReservation(ctx, tx, k, oldest)
		return err
	})
	if err == nil || !errors.Is(err, sql.ErrNoRows) {
		return got, reserveError(k, err)
	}
	err = s.db.write(ctx, func(tx *sql.Tx) error {
		if got, err = findReservation(ctx, tx, k, oldest); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		for _, q := range []struct {
			query string
			args  []any
		}{
			{`DELETE FROM idempotency WHERE tenant = ? AND principal = ? AND instance_id = ? AND message_id = ?`,
				[]any{tenant, k.Principal, string(k.Instance), k.MessageID}},
			{`DELETE FROM idempotency WHERE id IN (SELECT id FROM idempotency WHERE created_ms <= ? LIMIT ?)`,
				[]any{oldest, expiredPerReserve}},
			{`DELETE FROM idempotency WHERE id IN (SELECT id FROM idempotency WHERE tenant = ? AND principal = ?
				ORDER BY answered, created_ms DESC LIMIT -1 OFFSET ?)`, []any{tenant, k.Principal, max(b.Entries, 1) - 1}},
			{`INSERT INTO idempotency (tenant, principal, instance_id, message_id, hash, task_id, created_ms)
				VALUES (?, ?, ?, ?, ?, ?, ?)`,
				[]any{tenant, k.Principal, string(k.Instance), k.MessageID, want.Hash, want.TaskID, millis(at)}},
		} {
			if _, err := tx.ExecContext(ctx, q.query, q.args...); err != nil {
				return err
			}
		}
		got = want
		return nil
	})
	return got, reserveError(k, err)
}

func tenantOf(k idempotency.Key) string { return cmp.Or(k.Tenant, instance.DefaultTenant) }

func reserveError(k idempotency.Key, err error) error {
	if err != nil {
		return fmt.Errorf("cannot reserve message %q: %w", k.MessageID, err)
	}
	return nil
}

func findReservation(ctx context.Context, tx *sql.Tx, k idempotency.Key, oldest int64) (r idempotency.Reservation, err error) {
	err = tx.QueryRowContext(ctx, `SELECT hash, task_id, answered, answer FROM idempotency
		WHERE tenant = ? AND principal = ? AND instance_id = ? AND message_id = ? AND created_ms > ?`,
		tenantOf(k), k.Principal, string(k.Instance), k.MessageID, oldest).Scan(&r.Hash, &r.TaskID, &r.Answered, &r.Answer)
	return r, err
}

// Answer stores how the message was answered; a first answer stays. taskID
// tells the reservation from a later one of the same message.
func (s Idempotency) Answer(ctx context.Context, k idempotency.Key, taskID string, answer []byte) error {
	_, err := s.db.w.ExecContext(ctx, `UPDATE idempotency SET answered = 1, answer = ?
		WHERE tenant = ? AND principal = ? AND instance_id = ? AND message_id = ? AND task_id = ? AND answered = 0`,
		answer, tenantOf(k), k.Principal, string(k.Instance), k.MessageID, taskID)
	if err != nil {
		return fmt.Errorf("cannot store answer to message %q: %w", k.MessageID, err)
	}
	return nil
}
