package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// append numbers events behind the newest and stores them. The newest is never
// dropped, so numbers are not used again.
func (s Fleet) append(ctx context.Context, tx *sql.Tx, events []fleet.Event) error {
	if len(events) == 0 {
		return nil
	}
	var last uint64
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM fleet_events").Scan(&last); err != nil {
		return fmt.Errorf("cannot find the newest event: %w", err)
	}
	for i := range events {
		last++
		e := &events[i]
		_, err := tx.ExecContext(ctx, `INSERT INTO fleet_events
			(seq, at_ms, tenant, type, instance, name, phase, operation, reason, message) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			last, e.At.UnixMilli(), e.Tenant, e.Type, string(e.Instance), e.Name, string(e.Phase), e.Operation, e.Reason, e.Message)
		if err != nil {
			return fmt.Errorf("cannot store event: %w", err)
		}
		e.Seq, e.At = last, time.UnixMilli(e.At.UnixMilli()).UTC()
		if last%trimEvery != 0 || last <= s.keep {
			continue
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM fleet_events WHERE seq <= ?", last-s.keep); err != nil {
			return fmt.Errorf("cannot drop old events: %w", err)
		}
	}
	return nil
}

// Events returns events behind a number, oldest first; of all tenants if the
// filter names none.
func (s Fleet) Events(ctx context.Context, after uint64, f fleet.EventFilter, limit int) (page fleet.EventPage, err error) {
	err = s.db.read(ctx, func(tx *sql.Tx) error {
		page = fleet.EventPage{}
		err := tx.QueryRowContext(ctx, "SELECT coalesce(min(seq), 0), coalesce(max(seq), 0) FROM fleet_events").
			Scan(&page.First, &page.Last)
		if err != nil {
			return fmt.Errorf("cannot find the newest event: %w", err)
		}
		page.Events, err = events(ctx, tx, after, f, limit)
		return err
	})
	if page.Read = page.Last; len(page.Events) == limit && limit > 0 {
		page.Read = page.Events[limit-1].Seq
	}
	return page, storeFault(s.db.path, err)
}

func events(ctx context.Context, tx *sql.Tx, after uint64, f fleet.EventFilter, limit int) (_ []fleet.Event, err error) {
	types := "," + strings.Join(f.Types, ",") + ","
	if slices.Contains(f.Types, "") || len(f.Types) == 0 {
		types = ""
	}
	query := `SELECT seq, at_ms, tenant, type, instance, name, phase, operation, reason, message FROM fleet_events
		WHERE seq > ? AND ? IN ('', tenant) AND (? = '' OR instr(?, ',' || type || ',') > 0)`
	args := []any{after, f.Tenant, types, types}
	if f.Instance != "" { // apart, so that its index is used
		query += " AND instance = ?"
		args = append(args, string(f.Instance))
	}
	rows, err := tx.QueryContext(ctx, query+" ORDER BY seq LIMIT ?", append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("cannot read events: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var all []fleet.Event
	for rows.Next() {
		var e fleet.Event
		var at int64
		err := rows.Scan(&e.Seq, &at, &e.Tenant, &e.Type, &e.Instance, &e.Name, &e.Phase, &e.Operation, &e.Reason, &e.Message)
		if err != nil {
			return nil, fmt.Errorf("cannot read an event: %w", err)
		}
		e.At = time.UnixMilli(at).UTC()
		all = append(all, e)
	}
	return all, rows.Err()
}
