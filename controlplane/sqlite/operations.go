package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// keptOperations bounds the operations that are kept: the oldest ended ones
// beyond it are dropped when a new one comes.
const keptOperations = 10_000

// saveOperation stores an operation, new or changed. One that has ended never
// changes.
func saveOperation(ctx context.Context, tx *sql.Tx, op fleet.Operation) error {
	fault, err1 := encodeFault(op.Fault)
	warnings, err2 := json.Marshal(op.Warnings)
	steps, err3 := json.Marshal(op.Steps)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("cannot encode operation %q: %w", op.ID, err)
	}
	var ended sql.NullInt64
	if !op.EndedAt.IsZero() {
		ended = sql.NullInt64{Int64: op.EndedAt.UnixMilli(), Valid: true}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO operations
		(id, tenant, kind, instance, name, state, phase, percent, fault, warnings, steps, canceling, created_ms, updated_ms, ended_ms)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, phase = excluded.phase, percent = excluded.percent,
		fault = excluded.fault, warnings = excluded.warnings, steps = excluded.steps, canceling = excluded.canceling,
		updated_ms = excluded.updated_ms, ended_ms = excluded.ended_ms
		WHERE operations.ended_ms IS NULL`,
		op.ID, op.Tenant, op.Kind, string(op.Instance), op.Name, string(op.State), op.Phase, op.Percent, fault, string(warnings),
		string(steps), op.Canceling, op.CreatedAt.UnixMilli(), op.UpdatedAt.UnixMilli(), ended)
	if err != nil {
		return fmt.Errorf("cannot save operation %q: %w", op.ID, err)
	}
	if op.State != fleet.OperationPending {
		return nil
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM operations WHERE ended_ms IS NOT NULL AND id <=
		(SELECT id FROM operations ORDER BY id DESC LIMIT 1 OFFSET ?)`, keptOperations)
	if err != nil {
		return fmt.Errorf("cannot drop old operations: %w", err)
	}
	return nil
}

const selectOperations = `SELECT id, tenant, kind, instance, name, state, phase, percent, fault, warnings, steps, canceling,
	created_ms, updated_ms, ended_ms FROM operations `

// Operation returns one operation. fleet.ErrNotFound if it is not kept.
func (s Fleet) Operation(ctx context.Context, tenant, id string) (fleet.Operation, error) {
	ops, err := s.operations(ctx, selectOperations+"WHERE id = ? AND tenant = ?", id, tenant)
	if err != nil {
		return fleet.Operation{}, err
	}
	if len(ops) == 0 {
		return fleet.Operation{}, fleet.ErrNotFound
	}
	return ops[0], nil
}

// Operations returns one page of operations, newest first; of all tenants if
// the filter names none.
func (s Fleet) Operations(ctx context.Context, f fleet.OperationFilter) (fleet.OperationPage, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 2 * keptOperations
	}
	ops, err := s.operations(ctx, selectOperations+`WHERE ? IN ('', tenant) AND ? IN ('', instance) AND ? IN ('', state)
		AND ? IN ('', kind) AND (? = '' OR id < ?) AND (NOT ? OR ended_ms IS NULL) ORDER BY id DESC LIMIT ?`,
		f.Tenant, string(f.Instance), string(f.State), f.Kind, f.After, f.After, f.Unended, limit+1)
	if err != nil {
		return fleet.OperationPage{}, err
	}
	page := fleet.OperationPage{Operations: ops}
	if len(ops) > limit {
		page.Operations = ops[:limit]
		page.Next = ops[limit-1].ID
	}
	return page, nil
}

func (s Fleet) operations(ctx context.Context, query string, args ...any) (_ []fleet.Operation, err error) {
	rows, err := s.db.r.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, storeFault(s.db.path, fmt.Errorf("cannot list operations: %w", err))
	}
	defer func() { err = storeFault(s.db.path, errors.Join(err, rows.Close())) }()
	var all []fleet.Operation
	for rows.Next() {
		op, err := scanOperation(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, op)
	}
	return all, rows.Err()
}

func scanOperation(rows *sql.Rows) (fleet.Operation, error) {
	var op fleet.Operation
	var fault, warnings, steps sql.NullString
	var created, updated int64
	var ended sql.NullInt64
	err := rows.Scan(&op.ID, &op.Tenant, &op.Kind, &op.Instance, &op.Name, &op.State, &op.Phase, &op.Percent, &fault,
		&warnings, &steps, &op.Canceling, &created, &updated, &ended)
	if err != nil {
		return op, fmt.Errorf("cannot read an operation: %w", err)
	}
	op.CreatedAt, op.UpdatedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
	if ended.Valid {
		op.EndedAt = time.UnixMilli(ended.Int64).UTC()
	}
	op.Fault, err = decodeFault(fault)
	err = errors.Join(err, decodeNull(warnings, &op.Warnings), decodeNull(steps, &op.Steps))
	if !slices.Contains(fleet.OperationStates(), op.State) {
		err = errors.Join(err, fmt.Errorf("there is no state %q", op.State))
	}
	if err != nil {
		return op, damagedRow(fmt.Sprintf("operation %q", op.ID), err)
	}
	return op, nil
}
