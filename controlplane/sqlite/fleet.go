package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// Fleet is the store of instances, operations and the log of events.
type Fleet struct {
	db *DB
	// keep bounds the events that are kept.
	keep uint64
}

// keptEvents is how many events are kept at least.
const keptEvents = 50_000

// trimEvery is how many events are stored between two looks at what is kept.
const trimEvery = 256

// Fleet returns the store of the fleet in db.
func (db *DB) Fleet() Fleet { return Fleet{db: db, keep: keptEvents} }

var (
	_ fleet.Store  = Fleet{}
	_ fleet.Keeper = Fleet{}
)

// Apply stores a change in one transaction and numbers its events.
func (s Fleet) Apply(ctx context.Context, c *fleet.Change) error {
	err := s.db.write(ctx, func(tx *sql.Tx) error {
		if err := applyInstance(ctx, tx, c); err != nil {
			return err
		}
		if c.Operation != nil {
			if err := saveOperation(ctx, tx, *c.Operation); err != nil {
				return err
			}
		}
		return s.append(ctx, tx, c.Events)
	})
	return storeFault(s.db.path, err)
}

func applyInstance(ctx context.Context, tx *sql.Tx, c *fleet.Change) error {
	if c.Insert != nil {
		if err := insertInstance(ctx, tx, *c.Insert); err != nil {
			return err
		}
	}
	if c.Save != nil {
		if err := saveInstance(ctx, tx, *c.Save); err != nil {
			return err
		}
	}
	if c.Remove == nil {
		return nil
	}
	_, err := tx.ExecContext(ctx, "DELETE FROM instances WHERE id = ? AND tenant = ?", c.Remove.ID, c.Remove.Tenant)
	if err != nil {
		return fmt.Errorf("cannot remove instance %q: %w", c.Remove.ID, err)
	}
	return nil
}

func insertInstance(ctx context.Context, tx *sql.Tx, r supervise.Record) error {
	v, err := instanceValues(r)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO instances
		(name, phase, reason, follow, resting, expires_ms, restarts, host, provider, plan, handle, fault, guest, labels,
		 generation, created_ms, updated_ms, id, tenant)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, v...)
	var lite sqlite3.Error
	if errors.As(err, &lite) && lite.ExtendedCode == sqlite3.ErrConstraintUnique {
		return fleet.ErrNameTaken
	}
	if err != nil {
		return fmt.Errorf("cannot insert instance %q: %w", r.ID, err)
	}
	return nil
}

func saveInstance(ctx context.Context, tx *sql.Tx, r supervise.Record) error {
	v, err := instanceValues(r)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE instances SET
		name = ?, phase = ?, reason = ?, follow = ?, resting = ?, expires_ms = ?, restarts = ?, host = ?, provider = ?,
		plan = ?, handle = ?, fault = ?, guest = ?, labels = ?, generation = ?, created_ms = ?, updated_ms = ?
		WHERE id = ? AND tenant = ?`, v...)
	if err != nil {
		return fmt.Errorf("cannot save instance %q: %w", r.ID, err)
	}
	return nil
}

// Instances returns the records of a tenant in the order of their creation;
// of all tenants if it is empty.
func (s Fleet) Instances(ctx context.Context, tenant string) (_ []supervise.Record, err error) {
	rows, err := s.db.r.QueryContext(ctx, `SELECT
		id, tenant, name, phase, reason, follow, resting, expires_ms, restarts, host, provider, plan, handle, fault, guest,
		labels, generation, created_ms, updated_ms
		FROM instances WHERE ? IN ('', tenant) ORDER BY id`, tenant)
	if err != nil {
		return nil, storeFault(s.db.path, fmt.Errorf("cannot list instances: %w", err))
	}
	defer func() { err = storeFault(s.db.path, errors.Join(err, rows.Close())) }()
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
