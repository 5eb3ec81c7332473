package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// Count is how many rows there are of one sort.
type Count struct {
	Kind  string // of an operation, provider of an instance, else empty
	State string
	N     int64
}

// Counts is what is stored, in numbers.
type Counts struct {
	Instances  []Count // State is the phase
	Operations []Count
	Tasks      []Count
	Webhooks   []Count
	// Undelivered is how many events active webhooks have still to be told.
	Undelivered int64
}

// Counts counts what is stored.
func (db *DB) Counts(ctx context.Context) (c Counts, err error) {
	err = db.read(ctx, func(tx *sql.Tx) error {
		for _, q := range []struct {
			into  *[]Count
			query string
		}{
			{&c.Instances, `SELECT provider, phase, count(*) FROM instances GROUP BY provider, phase`},
			{&c.Operations, `SELECT kind, state, count(*) FROM operations GROUP BY kind, state`},
			{&c.Tasks, `SELECT '', state, count(*) FROM tasks GROUP BY state`},
			{&c.Webhooks, `SELECT '', state, count(*) FROM push_hooks GROUP BY state`},
		} {
			err := each(ctx, tx, func(rows *sql.Rows) error {
				var one Count
				if err := rows.Scan(&one.Kind, &one.State, &one.N); err != nil {
					return err
				}
				*q.into = append(*q.into, one)
				return nil
			}, q.query)
			if err != nil {
				return err
			}
		}
		return tx.QueryRowContext(ctx, `SELECT coalesce(sum(max(t.last_seq - h.delivered, 0)), 0)
			FROM push_hooks h JOIN tasks t ON t.id = h.task_id WHERE h.state = 'active'`).Scan(&c.Undelivered)
	})
	if err != nil {
		return Counts{}, fmt.Errorf("cannot count what is stored: %w", err)
	}
	return c, nil
}

// Probe reports whether the database takes a write, by making one. What it
// wrote is of no use to anybody.
func (db *DB) Probe(ctx context.Context) error {
	err := db.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO probe (id, n) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = n + 1`)
		return err
	})
	if err != nil {
		return fmt.Errorf("the database takes no writes: %w", err)
	}
	return nil
}
