package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mattn/go-sqlite3"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// Instances is the store of instances.
type Instances struct{ db *DB }

// Instances returns the store of instances in db.
func (db *DB) Instances() Instances { return Instances{db} }

// Insert adds a record. fleet.ErrNameTaken if its name is in use.
func (s Instances) Insert(ctx context.Context, r supervise.Record) error {
	v, err := instanceValues(r)
	if err != nil {
		return err
	}
	_, err = s.db.w.ExecContext(ctx, `INSERT INTO instances
		(name, phase, host, provider, plan, handle, fault, guest, labels, generation, created_ms, updated_ms, id)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, v...)
	var lite sqlite3.Error
	if errors.As(err, &lite) && lite.ExtendedCode == sqlite3.ErrConstraintUnique {
		return fleet.ErrNameTaken
	}
	if err != nil {
		return fmt.Errorf("cannot insert instance %q: %w", r.ID, err)
	}
	return nil
}

// Save stores a changed record. It is no error if the record was removed
// meanwhile: a report that crosses a removal must not bring it back.
func (s Instances) Save(ctx context.Context, r supervise.Record) error {
	v, err := instanceValues(r)
	if err != nil {
		return err
	}
	_, err = s.db.w.ExecContext(ctx, `UPDATE instances SET
		name = ?, phase = ?, host = ?, provider = ?, plan = ?, handle = ?, fault = ?, guest = ?, labels = ?,
		generation = ?, created_ms = ?, updated_ms = ? WHERE id = ?`, v...)
	if err != nil {
		return fmt.Errorf("cannot save instance %q: %w", r.ID, err)
	}
	return nil
}

// Remove forgets an instance. Idempotent.
func (s Instances) Remove(ctx context.Context, id instance.ID) error {
	if _, err := s.db.w.ExecContext(ctx, "DELETE FROM instances WHERE id = ?", id); err != nil {
		return fmt.Errorf("cannot remove instance %q: %w", id, err)
	}
	return nil
}

// Instances returns all records in the order of their creation.
func (s Instances) Instances(ctx context.Context) (_ []supervise.Record, err error) {
	rows, err := s.db.r.QueryContext(ctx, `SELECT
		id, name, phase, host, provider, plan, handle, fault, guest, labels, generation, created_ms, updated_ms
		FROM instances ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("cannot list instances: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var all []supervise.Record
	for rows.Next() {
		r, err := scanInstance(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

func scanInstance(rows *sql.Rows) (supervise.Record, error) {
	var r supervise.Record
	var planJSON, labels string
	var handle, fault, guest sql.NullString
	var created, updated int64
	err := rows.Scan(&r.ID, &r.Name, &r.Phase, &r.Host, &r.Provider, &planJSON, &handle, &fault, &guest, &labels,
		&r.Generation, &created, &updated)
	if err != nil {
		return r, fmt.Errorf("cannot read an instance: %w", err)
	}
	r.CreatedAt, r.UpdatedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
	r.Fault, err = decodeFault(fault)
	err = errors.Join(err,
		json.Unmarshal([]byte(planJSON), &r.Plan),
		json.Unmarshal([]byte(labels), &r.Labels),
		decodeNull(handle, &r.Handle),
		decodeNull(guest, &r.Guest))
	if err != nil {
		return r, fmt.Errorf("cannot decode instance %q: %w", r.ID, err)
	}
	return r, nil
}

func instanceValues(r supervise.Record) ([]any, error) {
	planJSON, err := json.Marshal(r.Plan)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the plan of %q: %w", r.ID, err)
	}
	labels := r.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	labelsJSON, err1 := json.Marshal(labels)
	handle, err2 := encodeNull(r.Handle)
	guest, err3 := encodeNull(r.Guest)
	fault, err4 := encodeFault(r.Fault)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("cannot encode instance %q: %w", r.ID, err)
	}
	return []any{
		r.Name, string(r.Phase), r.Host, r.Provider, string(planJSON), handle, fault, guest, string(labelsJSON),
		r.Generation, r.CreatedAt.UnixMilli(), r.UpdatedAt.UnixMilli(), string(r.ID),
	}, nil
}

// Operations is the store of operations.
type Operations struct{ db *DB }

// Operations returns the store of operations in db.
func (db *DB) Operations() Operations { return Operations{db} }

// keptOperations bounds what Operations returns and what is kept.
const keptOperations = 10_000

// SaveOperation stores an operation, new or changed.
func (s Operations) SaveOperation(ctx context.Context, op fleet.Operation) error {
	fault, err := encodeFault(op.Fault)
	if err != nil {
		return fmt.Errorf("cannot encode operation %q: %w", op.ID, err)
	}
	warnings, err := json.Marshal(op.Warnings)
	if err != nil {
		return fmt.Errorf("cannot encode operation %q: %w", op.ID, err)
	}
	var ended sql.NullInt64
	if !op.EndedAt.IsZero() {
		ended = sql.NullInt64{Int64: op.EndedAt.UnixMilli(), Valid: true}
	}
	_, err = s.db.w.ExecContext(ctx, `INSERT INTO operations
		(id, kind, instance, name, state, phase, percent, fault, warnings, created_ms, updated_ms, ended_ms)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, phase = excluded.phase, percent = excluded.percent,
		fault = excluded.fault, warnings = excluded.warnings, updated_ms = excluded.updated_ms, ended_ms = excluded.ended_ms`,
		op.ID, op.Kind, string(op.Instance), op.Name, string(op.State), op.Phase, op.Percent, fault, string(warnings),
		op.CreatedAt.UnixMilli(), op.UpdatedAt.UnixMilli(), ended)
	if err != nil {
		return fmt.Errorf("cannot save operation %q: %w", op.ID, err)
	}
	return nil
}

// Operations returns the operations, newest first, and drops the oldest ended
// ones beyond what is kept.
func (s Operations) Operations(ctx context.Context) (_ []fleet.Operation, err error) {
	_, err = s.db.w.ExecContext(ctx, `DELETE FROM operations WHERE ended_ms IS NOT NULL AND id NOT IN
		(SELECT id FROM operations ORDER BY id DESC LIMIT ?)`, keptOperations)
	if err != nil {
		return nil, fmt.Errorf("cannot drop old operations: %w", err)
	}
	rows, err := s.db.r.QueryContext(ctx, `SELECT
		id, kind, instance, name, state, phase, percent, fault, warnings, created_ms, updated_ms, ended_ms
		FROM operations ORDER BY id DESC LIMIT ?`, keptOperations)
	if err != nil {
		return nil, fmt.Errorf("cannot list operations: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var all []fleet.Operation
	for rows.Next() {
		var op fleet.Operation
		var fault, warnings sql.NullString
		var created, updated int64
		var ended sql.NullInt64
		if err := rows.Scan(&op.ID, &op.Kind, &op.Instance, &op.Name, &op.State, &op.Phase, &op.Percent, &fault, &warnings,
			&created, &updated, &ended); err != nil {
			return nil, fmt.Errorf("cannot read an operation: %w", err)
		}
		op.CreatedAt, op.UpdatedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
		if ended.Valid {
			op.EndedAt = time.UnixMilli(ended.Int64).UTC()
		}
		if op.Fault, err = decodeFault(fault); err != nil {
			return nil, fmt.Errorf("cannot decode operation %q: %w", op.ID, err)
		}
		if err := decodeNull(warnings, &op.Warnings); err != nil {
			return nil, fmt.Errorf("cannot decode operation %q: %w", op.ID, err)
		}
		all = append(all, op)
	}
	return all, rows.Err()
}

// storedFault is the stored form of a fault: its error becomes text.
type storedFault struct {
	Blame   instance.Blame `json:"blame"`
	Code    string         `json:"code"`
	Hint    string         `json:"hint,omitempty"`
	Console string         `json:"console,omitempty"`
	Cause   string         `json:"cause"`
}

func encodeFault(f *instance.Fault) (sql.NullString, error) {
	if f == nil {
		return sql.NullString{}, nil
	}
	return encodeNull(&storedFault{Blame: f.Blame, Code: f.Code, Hint: f.Hint, Console: f.Console, Cause: f.Err.Error()})
}

func decodeFault(s sql.NullString) (*instance.Fault, error) {
	var f *storedFault
	if err := decodeNull(s, &f); err != nil || f == nil {
		return nil, err
	}
	return &instance.Fault{Blame: f.Blame, Code: f.Code, Hint: f.Hint, Console: f.Console, Err: errors.New(f.Cause)}, nil
}

func encodeNull[T any](v *T) (sql.NullString, error) {
	if v == nil {
		return sql.NullString{}, nil
	}
	b, err := json.Marshal(v)
	return sql.NullString{String: string(b), Valid: true}, err
}

func decodeNull[T any](s sql.NullString, v *T) error {
	if !s.Valid {
		return nil
	}
	return json.Unmarshal([]byte(s.String), v)
}

// Ping reports whether the database still answers reads and takes writes.
func (db *DB) Ping(ctx context.Context) error {
	return errors.Join(db.r.PingContext(ctx), db.w.PingContext(ctx))
}

// Sweep deletes the ended tasks of instances that are no more, but for those
// whose end webhooks are still to be told.
func (db *DB) Sweep(ctx context.Context) error {
	_, err := db.w.ExecContext(ctx,
		"DELETE FROM tasks WHERE finished = 1 AND instance_id NOT IN (SELECT id FROM instances)"+
			" AND id NOT IN (SELECT task_id FROM push_hooks WHERE state = 'active')")
	if err != nil {
		return fmt.Errorf("cannot sweep the tasks of removed instances: %w", err)
	}
	return nil
}
