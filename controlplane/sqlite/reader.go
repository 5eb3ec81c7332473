package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Bounds of one answer of Events and ReadArtifact.
const (
	eventsPerRead = 64
	bytesPerRead  = 1 << 20
)

var (
	_ task.Reader = (*DB)(nil)
	_ task.Runs   = (*DB)(nil)
)

const selectTask = `SELECT id, context_id, instance_id, tenant, owner, state, status_message, status_ms,
	metadata, version, last_seq, created_ms FROM tasks`

type scanner interface{ Scan(dest ...any) error }

func scanTask(row scanner) (rec task.Record, err error) {
	rec, _, err = scanSized(row)
	return rec, err
}

// scanSized also tells how many bytes of a row are not ours.
func scanSized(row scanner) (rec task.Record, size int, err error) {
	var message, meta sql.NullString
	var statusMS, createdMS int64
	err = row.Scan(&rec.ID, &rec.ContextID, (*string)(&rec.InstanceID), &rec.Tenant, &rec.Owner, (*string)(&rec.Status.State),
		&message, &statusMS, &meta, &rec.Version, &rec.LastSeq, &createdMS)
	if err := found(err); err != nil {
		return rec, 0, err
	}
	rec.Status.Timestamp = task.StampMillis(statusMS)
	rec.CreatedAt = task.StampMillis(createdMS).Time
	if message.Valid {
		if err := json.Unmarshal([]byte(message.String), &rec.Status.Message); err != nil {
			return rec, 0, damagedRow(fmt.Sprintf("the status message of task %q", rec.ID), err)
		}
	}
	if meta.Valid {
		if err := json.Unmarshal([]byte(meta.String), &rec.Metadata); err != nil {
			return rec, 0, damagedRow(fmt.Sprintf("the metadata of task %q", rec.ID), err)
		}
	}
	return rec, len(message.String) + len(meta.String), nil
}

// Task implements task.Reader.
func (db *DB) Task(ctx context.Context, s task.Scope, id string, v task.View) (rec task.Record, err error) {
	err = db.read(ctx, func(tx *sql.Tx) error {
		row := tx.QueryRowContext(ctx, selectTask+" WHERE id = ? AND "+inScope, append([]any{id}, scopeArgs(s)...)...)
		if rec, err = scanTask(row); err != nil {
			return err
		}
		_, err = fill(ctx, tx, &rec, v, math.MaxInt)
		return err
	})
	if err != nil {
		return task.Record{}, fmt.Errorf("cannot read task %q: %w", id, err)
	}
	return rec, nil
}

var errEnough = errors.New("enough")

// Events implements task.Reader.
func (db *DB) Events(ctx context.Context, s task.Scope, id string, after uint64) (events []task.Event, err error) {
	err = db.read(ctx, func(tx *sql.Tx) error {
		size := 0
		return each(ctx, tx, func(rows *sql.Rows) error {
			e, n, err := scanEvent(rows)
			if err != nil {
				return err
			}
			if size > 0 && size+n > bytesPerRead {
				return errEnough
			}
			size += n
			events = append(events, e)
			return nil
		}, `SELECT e.seq, e.kind, coalesce(e.artifact_id, ''), coalesce(e.start, 0), e.body, coalesce(a.sha256, ''),
			coalesce(e.part, '')
			FROM task_events e LEFT JOIN artifacts a ON e.kind = 'end' AND a.task_id = e.task_id AND a.artifact_id = e.artifact_id
			WHERE e.task_id = ? AND e.seq > ? AND `+ofScope+` ORDER BY e.seq LIMIT ?`,
			append(scoped(s, id, id, after), eventsPerRead)...)
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("cannot read events of task %q: %w", id, err)
	}
	return events, nil
}

func scanEvent(rows *sql.Rows) (e task.Event, size int, err error) {
	var kind, artifact, sum, part string
	var start uint64
	var body []byte
	if err := rows.Scan(&e.Seq, &kind, &artifact, &start, &body, &sum, &part); err != nil {
		return e, 0, err
	}
	switch kind {
	case kindStatus:
		var s storedStatus
		if err := json.Unmarshal(body, &s); err != nil {
			return e, 0, damagedRow("a status event", err)
		}
		e.Status = &task.StatusEvent{Status: s.Status, Metadata: s.Metadata}
	case kindChunk:
		e.Chunk = &task.Chunk{ArtifactID: artifact, Name: artifact, Offset: start, Data: body}
		return e, len(body), readPart(e.Chunk, part)
	case kindEnd:
		e.Chunk = &task.Chunk{ArtifactID: artifact, Name: artifact, Offset: start, Last: true, Size: start, SHA256: sum}
	default:
		return e, 0, damagedRow("an event", fmt.Errorf("there is no kind %q", kind))
	}
	return e, len(body), nil
}

// ArtifactSize implements task.Reader.
func (db *DB) ArtifactSize(ctx context.Context, s task.Scope, id, artifactID string) (size uint64, complete bool, err error) {
	err = db.r.QueryRowContext(ctx, `SELECT size, sha256 IS NOT NULL FROM artifacts
		WHERE task_id = ? AND artifact_id = ? AND `+ofScope, scoped(s, id, id, artifactID)...).Scan(&size, &complete)
	if err := found(err); err != nil {
		return 0, false, fmt.Errorf("cannot read artifact %q of task %q: %w", artifactID, id, err)
	}
	return size, complete, nil
}

// ReadArtifact implements task.Reader. A chunk is looked up by where it
// starts, so offset must be 0 or where an earlier answer ended.
func (db *DB) ReadArtifact(ctx context.Context, s task.Scope, id, artifactID string, offset uint64) (data []byte, err error) {
	err = db.read(ctx, func(tx *sql.Tx) error {
		return each(ctx, tx, func(rows *sql.Rows) error {
			var start uint64
			var body []byte
			if err := rows.Scan(&start, &body); err != nil {
				return err
			}
			if start != offset+uint64(len(data)) {
				return fmt.Errorf("chunk starts at %d, not at %d", start, offset+uint64(len(data)))
			}
			if len(data) > 0 && len(data)+len(body) > bytesPerRead {
				return errEnough
			}
			data = append(data, body...)
			return nil
		}, `SELECT start, body FROM task_events WHERE task_id = ? AND artifact_id = ? AND kind = 'chunk'
			AND start >= ? AND `+ofScope+` ORDER BY start LIMIT ?`,
			append(scoped(s, id, id, artifactID, offset), eventsPerRead)...)
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("cannot read artifact %q of task %q: %w", artifactID, id, err)
	}
	return data, nil
}

const selectRun = `SELECT r.task_id, r.instance_id, r.run_id, r.runner, r.spec, r.script, r.stdin, r.stdout_artifact, r.stderr_artifact,
	r.dispatched, r.boot, r.cancel_requested, r.released, t.state, r.after_seq, r.stdout_received, r.stderr_received,
	r.stdout_carry, r.stderr_carry, r.overflow FROM runs r JOIN tasks t ON t.id = r.task_id`

func scanRun(row scanner) (r task.Run, err error) {
	p := &r.Progress
	err = row.Scan(&r.TaskID, (*string)(&r.InstanceID), &r.RunID, &r.Runner, &r.Spec, &r.Script, &r.Stdin,
		&r.Artifacts[task.Stdout], &r.Artifacts[task.Stderr], &r.Dispatched, &r.Boot, &r.CancelRequested, &r.Released,
		(*string)(&r.State), &p.AfterSeq, &p.Received[task.Stdout], &p.Received[task.Stderr],
		&p.Carry[task.Stdout], &p.Carry[task.Stderr], &p.Overflow)
	return r, found(err)
}

// Run implements task.Runs.
func (db *DB) Run(ctx context.Context, taskID string) (task.Run, error) {
	r, err := scanRun(db.r.QueryRowContext(ctx, selectRun+" WHERE r.task_id = ?", taskID))
	if err != nil {
		return r, fmt.Errorf("cannot read run of task %q: %w", taskID, err)
	}
	return r, nil
}

// OpenRuns implements task.Runs.
func (db *DB) OpenRuns(ctx context.Context) (runs []task.Run, err error) {
	err = db.read(ctx, func(tx *sql.Tx) error {
		return each(ctx, tx, func(rows *sql.Rows) error {
			r, err := scanRun(rows)
			runs = append(runs, r)
			return err
		}, selectRun+" WHERE r.released = 0 ORDER BY t.created_ms, t.id")
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read open runs: %w", err)
	}
	return runs, nil
}

// each runs a query and calls fn for every row until it fails.
func each(ctx context.Context, tx *sql.Tx, fn func(*sql.Rows) error, query string, args ...any) (err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
