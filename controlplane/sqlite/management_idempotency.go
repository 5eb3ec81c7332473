package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
)

// ManagementRequests is the store of the management API's requests that are
// to be carried out once.
type ManagementRequests struct{ db *DB }

var _ once.Store = ManagementRequests{}

// ManagementRequests returns the store of such requests in db.
func (db *DB) ManagementRequests() ManagementRequests { return ManagementRequests{db} }

// Reserve implements once.Store.
func (s ManagementRequests) Reserve(
	ctx context.Context, k once.Key, want once.Reservation, at time.Time, b once.Bounds,
) (got once.Reservation, err error) {
	oldest := millis(at.Add(-b.TTL))
	err = s.db.write(ctx, func(tx *sql.Tx) error {
		if got, err = findManagementRequest(ctx, tx, k, oldest); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		for _, q := range []struct {
			query string
			args  []any
		}{
			{`DELETE FROM management_idempotency WHERE tenant = ? AND principal = ? AND name = ?`,
				[]any{k.Tenant, k.Principal, k.Name}},
			{`DELETE FROM management_idempotency WHERE id IN
				(SELECT id FROM management_idempotency WHERE created_ms <= ? LIMIT ?)`, []any{oldest, expiredPerReserve}},
			{`DELETE FROM management_idempotency WHERE id IN
				(SELECT id FROM management_idempotency WHERE tenant = ? AND principal = ?
				ORDER BY answered, created_ms DESC LIMIT -1 OFFSET ?)`, []any{k.Tenant, k.Principal, max(b.Entries, 1) - 1}},
			{`INSERT INTO management_idempotency (tenant, principal, name, hash, operation_id, created_ms) VALUES (?, ?, ?, ?, ?, ?)`,
				[]any{k.Tenant, k.Principal, k.Name, want.Hash, want.OperationID, millis(at)}},
		} {
			if _, err := tx.ExecContext(ctx, q.query, q.args...); err != nil {
				return err
			}
		}
		got = want
		return nil
	})
	if err != nil {
		return once.Reservation{}, fmt.Errorf("cannot reserve request %q: %w", k.Name, err)
	}
	return got, nil
}

func findManagementRequest(ctx context.Context, tx *sql.Tx, k once.Key, oldest int64) (r once.Reservation, err error) {
	var answered bool
	var header string
	var a once.Answer
	err = tx.QueryRowContext(ctx, `SELECT hash, operation_id, answered, status, header, body FROM management_idempotency
		WHERE tenant = ? AND principal = ? AND name = ? AND created_ms > ?`,
		k.Tenant, k.Principal, k.Name, oldest).Scan(&r.Hash, &r.OperationID, &answered, &a.Status, &header, &a.Body)
	if err != nil || !answered {
		return r, err
	}
	if err := json.Unmarshal([]byte(header), &a.Header); err != nil {
		return r, damagedRow(fmt.Sprintf("the answer to request %q", k.Name), err)
	}
	r.Answer = &a
	return r, nil
}

// Answered implements once.Store.
func (s ManagementRequests) Answered(ctx context.Context, k once.Key, operationID string, a once.Answer) error {
	header, err := json.Marshal(a.Header)
	if err != nil {
		return fmt.Errorf("cannot encode the answer to request %q: %w", k.Name, err)
	}
	_, err = s.db.w.ExecContext(ctx, `UPDATE management_idempotency SET answered = 1, status = ?, header = ?, body = ?
		WHERE tenant = ? AND principal = ? AND name = ? AND operation_id = ? AND answered = 0`,
		a.Status, string(header), a.Body, k.Tenant, k.Principal, k.Name, operationID)
	if err != nil {
		return fmt.Errorf("cannot store the answer to request %q: %w", k.Name, err)
	}
	return nil
}
