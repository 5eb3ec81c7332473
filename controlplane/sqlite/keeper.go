package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// Adopted reports whether this database has been taken into use.
func (s Fleet) Adopted(ctx context.Context) (bool, error) {
	var n int
	err := s.db.r.QueryRowContext(ctx, "SELECT count(*) FROM fleet_state WHERE key = 'adopted'").Scan(&n)
	if err != nil {
		return false, storeFault(s.db.path, fmt.Errorf("cannot read the state of the database: %w", err))
	}
	return n > 0, nil
}

// Adopt says that this database has been taken into use.
func (s Fleet) Adopt(ctx context.Context) error {
	_, err := s.db.w.ExecContext(ctx, "INSERT OR REPLACE INTO fleet_state (key, value) VALUES ('adopted', ?)",
		time.Now().UTC().Format(time.RFC3339))
	if err != nil {
		return storeFault(s.db.path, fmt.Errorf("cannot mark the database: %w", err))
	}
	return nil
}

// Check reports whether the database is sound, as far as can be told in a
// short time, and takes writes.
func (s Fleet) Check(ctx context.Context) error {
	err := s.db.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO fleet_state (key, value) VALUES ('checked', ?)",
			time.Now().UTC().Format(time.RFC3339))
		return err
	})
	if err == nil {
		err = s.db.sound(ctx)
	}
	return storeFault(s.db.path, err)
}

// Orphans returns what is known of machines that no instance knows: provider,
// id and times.
func (s Fleet) Orphans(ctx context.Context) (_ []fleet.Orphan, err error) {
	rows, err := s.db.r.QueryContext(ctx, "SELECT provider, id, since_ms, remove_ms FROM orphans ORDER BY provider, id")
	if err != nil {
		return nil, storeFault(s.db.path, fmt.Errorf("cannot list orphans: %w", err))
	}
	defer func() { err = storeFault(s.db.path, errors.Join(err, rows.Close())) }()
	var all []fleet.Orphan
	for rows.Next() {
		var o fleet.Orphan
		var since, remove int64
		if err := rows.Scan(&o.Provider, &o.ID, &since, &remove); err != nil {
			return nil, fmt.Errorf("cannot read an orphan: %w", err)
		}
		o.Since, o.RemoveAfter = timeOf(since), timeOf(remove)
		all = append(all, o)
	}
	return all, rows.Err()
}

// SaveOrphans replaces what is known of machines that no instance knows.
func (s Fleet) SaveOrphans(ctx context.Context, all []fleet.Orphan) error {
	err := s.db.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM orphans"); err != nil {
			return fmt.Errorf("cannot forget orphans: %w", err)
		}
		for _, o := range all {
			_, err := tx.ExecContext(ctx, "INSERT INTO orphans (provider, id, since_ms, remove_ms) VALUES (?, ?, ?, ?)",
				o.Provider, string(o.ID), stamp(o.Since), stamp(o.RemoveAfter))
			if err != nil {
				return fmt.Errorf("cannot store an orphan: %w", err)
			}
		}
		return nil
	})
	return storeFault(s.db.path, err)
}
