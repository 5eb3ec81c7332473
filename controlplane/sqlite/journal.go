package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Kinds of events.
const (
	kindStatus = "status"
	kindChunk  = "chunk"
	kindEnd    = "end"
)

var _ task.Journal = (*DB)(nil)

// Create implements task.Journal.
func (db *DB) Create(ctx context.Context, n task.New) (rec task.Record, err error) {
	status := task.Status{State: task.Submitted, Timestamp: task.Stamp(n.At)}
	message, err := json.Marshal(n.Message)
	if err != nil {
		return rec, fmt.Errorf("cannot create task %q: %w", n.ID, err)
	}
	meta, err := toJSON(n.Metadata, len(n.Metadata) == 0)
	if err != nil {
		return rec, fmt.Errorf("cannot create task %q: %w", n.ID, err)
	}
	var tenant string
	err = db.write(ctx, func(tx *sql.Tx) error {
		at := status.Timestamp.UnixMilli()
		// A task that is nobody's is its instance's tenant's.
		err := tx.QueryRowContext(ctx, `INSERT INTO tasks
			(id, context_id, instance_id, tenant, owner, state, status_ms, metadata, version, last_seq, created_ms)
			VALUES (?1, ?2, ?3, coalesce(nullif(?4, ''), (SELECT tenant FROM instances WHERE id = ?3), ?5), ?6, ?7, ?8, ?9, 1, 1, ?8)
			RETURNING tenant`, n.ID, n.ContextID, string(n.InstanceID), n.Tenant, instance.DefaultTenant, n.Owner,
			string(status.State), at, meta).Scan(&tenant)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO task_messages (task_id, tenant, n, body) VALUES (?, ?, 1, ?)`,
			n.ID, tenant, string(message)); err != nil {
			return err
		}
		if err := putStatus(ctx, tx, n.ID, 1, task.StatusEvent{Status: status}); err != nil {
			return err
		}
		r := n.Run
		_, err = tx.ExecContext(ctx, `INSERT INTO runs
			(task_id, tenant, run_id, instance_id, runner, spec, script, stdin, stdout_artifact, stderr_artifact)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			n.ID, tenant, r.RunID, string(n.InstanceID), r.Runner, notNil(r.Spec), nullText(r.Script), r.Stdin,
			r.Artifacts[task.Stdout], r.Artifacts[task.Stderr])
		return err
	})
	if err != nil {
		return rec, fmt.Errorf("cannot create task %q: %w", n.ID, err)
	}
	return task.Record{
		Task: task.Task{
			ID: n.ID, ContextID: n.ContextID, Status: status,
			History: []task.Message{n.Message}, Metadata: n.Metadata,
		},
		InstanceID: n.InstanceID, Tenant: tenant, Owner: n.Owner, Version: 1, LastSeq: 1, CreatedAt: status.Timestamp.Time,
	}, nil
}

// Move implements task.Journal.
func (db *DB) Move(ctx context.Context, id string, t task.Transition) (rec task.Record, err error) {
	err = db.write(ctx, func(tx *sql.Tx) error {
		rec, err = moveTask(ctx, tx, id, t)
		return err
	})
	if err != nil {
		return task.Record{}, fmt.Errorf("cannot move task %q to %s: %w", id, t.Status.State, err)
	}
	return rec, nil
}

// moveTask changes a task's status; what it asked before is asked no more.
func moveTask(ctx context.Context, tx *sql.Tx, id string, t task.Transition) (task.Record, error) {
	rec, err := scanTask(tx.QueryRowContext(ctx, selectTask+" WHERE id = ?", id))
	if err != nil {
		return rec, err
	}
	if err := task.CheckMove(rec.Status.State, t.Status.State); err != nil {
		return rec, err
	}
	if rec.Version != t.Version {
		return rec, fmt.Errorf("%w: version is %d, not %d", task.ErrConflict, rec.Version, t.Version)
	}
	for _, end := range t.Ends {
		rec.LastSeq++
		if err := putEnd(ctx, tx, id, rec.LastSeq, end); err != nil {
			return rec, err
		}
	}
	rec.LastSeq++
	rec.Version++
	rec.Status = t.Status
	rec.Metadata = rec.Metadata.Merge(t.Metadata)
	ev := task.StatusEvent{Status: t.Status, Metadata: t.Metadata}
	if err := putStatus(ctx, tx, id, rec.LastSeq, ev); err != nil {
		return rec, err
	}
	if t.Dispatched {
		if _, err := tx.ExecContext(ctx, `UPDATE runs SET dispatched = 1, boot = ? WHERE task_id = ?`, t.Boot, id); err != nil {
			return rec, err
		}
	}
	if err := putScript(ctx, tx, id, t); err != nil {
		return rec, err
	}
	if err := closePrompt(ctx, tx, id); err != nil {
		return rec, err
	}
	return rec, updateTask(ctx, tx, rec)
}

func updateTask(ctx context.Context, tx *sql.Tx, rec task.Record) error {
	message, err := toJSON(rec.Status.Message, rec.Status.Message == nil)
	if err != nil {
		return err
	}
	meta, err := toJSON(rec.Metadata, len(rec.Metadata) == 0)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE tasks SET state = ?, status_message = ?, status_ms = ?,
		metadata = ?, finished = ?, version = ?, last_seq = ? WHERE id = ?`,
		string(rec.Status.State), message, rec.Status.Timestamp.UnixMilli(), meta,
		rec.Status.State.Terminal(), rec.Version, rec.LastSeq, rec.ID)
	return err
}

// Output implements task.Journal.
func (db *DB) Output(ctx context.Context, id string, chunks []task.Chunk, p task.Progress) error {
	err := db.write(ctx, func(tx *sql.Tx) error {
		var seq uint64
		var finished bool
		err := tx.QueryRowContext(ctx, `SELECT last_seq, finished FROM tasks WHERE id = ?`, id).Scan(&seq, &finished)
		if err := found(err); err != nil {
			return err
		}
		if finished {
			return task.ErrTerminal
		}
		if len(chunks) > 0 {
			if err := putChunks(ctx, tx, id, seq, chunks); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `UPDATE tasks SET last_seq = ? WHERE id = ?`, seq+uint64(len(chunks)), id)
			if err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, `UPDATE runs SET after_seq = ?, stdout_received = ?, stderr_received = ?,
			stdout_carry = ?, stderr_carry = ?, overflow = ? WHERE task_id = ?`,
			p.AfterSeq, p.Received[task.Stdout], p.Received[task.Stderr],
			p.Carry[task.Stdout], p.Carry[task.Stderr], p.Overflow, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot store output of task %q: %w", id, err)
	}
	return nil
}

// RequestCancel implements task.Journal.
func (db *DB) RequestCancel(ctx context.Context, s task.Scope, id string) error {
	err := db.write(ctx, func(tx *sql.Tx) error {
		var finished bool
		err := tx.QueryRowContext(ctx, `SELECT finished FROM tasks WHERE id = ? AND `+inScope,
			append([]any{id}, scopeArgs(s)...)...).Scan(&finished)
		if err := found(err); err != nil {
			return err
		}
		if finished {
			return task.ErrTerminal
		}
		_, err = tx.ExecContext(ctx, `UPDATE runs SET cancel_requested = 1 WHERE task_id = ?`, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot request cancellation of task %q: %w", id, err)
	}
	return nil
}

// Released implements task.Journal.
func (db *DB) Released(ctx context.Context, id string) error {
	err := db.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE runs SET released = 1 WHERE task_id = ?`, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot note release of run of task %q: %w", id, err)
	}
	return nil
}

func putStatus(ctx context.Context, tx *sql.Tx, id string, seq uint64, e task.StatusEvent) error {
	body, err := json.Marshal(storedStatus{Status: e.Status, Metadata: e.Metadata})
	if err != nil {
		return err
	}
	return putEvent(ctx, tx, id, seq, kindStatus, nil, nil, body)
}

// putChunks stores chunks as the events behind seq. It also checks that they
// continue their artifacts, so that no two writers can ever interleave one.
func putChunks(ctx context.Context, tx *sql.Tx, id string, seq uint64, chunks []task.Chunk) (err error) {
	type growth struct {
		artifact   string
		start, end uint64
	}
	var grown []growth // few: one row to change however many chunks
	for _, c := range chunks {
		i := slices.IndexFunc(grown, func(g growth) bool { return g.artifact == c.ArtifactID })
		if i < 0 {
			i = len(grown)
			grown = append(grown, growth{c.ArtifactID, c.Offset, c.Offset})
		}
		if c.Offset != grown[i].end {
			return fmt.Errorf("%w: chunk of artifact %q is at %d, not at %d", task.ErrConflict, c.ArtifactID, c.Offset, grown[i].end)
		}
		grown[i].end += uint64(len(c.Data))
	}
	for _, g := range grown {
		if err := grow(ctx, tx, id, g.artifact, g.start, g.end); err != nil {
			return err
		}
	}
	put, err := tx.PrepareContext(ctx, insertEvent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, put.Close()) }()
	for _, c := range chunks {
		seq++
		if c.Form != nil {
			err = putPart(ctx, tx, id, seq, c)
		} else {
			_, err = put.ExecContext(ctx, id, seq, kindChunk, c.ArtifactID, c.Offset, notNil(c.Data))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// grow moves the end of an artifact, which is made if it begins at 0.
func grow(ctx context.Context, tx *sql.Tx, id, artifact string, start, end uint64) error {
	res, err := tx.ExecContext(ctx, `INSERT INTO artifacts (task_id, tenant, artifact_id, n, size)
		SELECT id, tenant, ?2, (SELECT count(*) FROM artifacts WHERE task_id = ?1), ?4 FROM tasks WHERE id = ?1 AND ?3 = 0
		ON CONFLICT DO NOTHING`, id, artifact, start, end)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	res, err = tx.ExecContext(ctx, `UPDATE artifacts SET size = ?
		WHERE task_id = ? AND artifact_id = ? AND size = ? AND sha256 IS NULL`, end, id, artifact, start)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil {
		return err
	} else if n != 1 {
		return fmt.Errorf("%w: artifact %q does not end at %d", task.ErrConflict, artifact, start)
	}
	return nil
}

func putEnd(ctx context.Context, tx *sql.Tx, id string, seq uint64, c task.Chunk) error {
	if err := closeArtifact(ctx, tx, id, c); err != nil {
		return err
	}
	return putEvent(ctx, tx, id, seq, kindEnd, c.ArtifactID, c.Size, nil)
}

func closeArtifact(ctx context.Context, tx *sql.Tx, id string, c task.Chunk) error {
	res, err := tx.ExecContext(ctx, `UPDATE artifacts SET sha256 = ?
		WHERE task_id = ? AND artifact_id = ? AND size = ? AND sha256 IS NULL`,
		c.SHA256, id, c.ArtifactID, c.Size)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil {
		return err
	} else if n != 1 {
		return fmt.Errorf("%w: artifact %q is not %d bytes long", task.ErrConflict, c.ArtifactID, c.Size)
	}
	return nil
}

// insertEvent takes the tenant of the task, as everything does that hangs on one.
const insertEvent = `INSERT INTO task_events (task_id, tenant, seq, kind, artifact_id, start, body)
	SELECT id, tenant, ?2, ?3, ?4, ?5, ?6 FROM tasks WHERE id = ?1`

func putEvent(ctx context.Context, tx *sql.Tx, id string, seq uint64, kind string, artifact, start any, body []byte) error {
	_, err := tx.ExecContext(ctx, insertEvent, id, seq, kind, artifact, start, notNil(body))
	return err
}

type storedStatus struct {
	Status   task.Status   `json:"status"`
	Metadata task.Metadata `json:"metadata,omitempty"`
}

// notNil keeps an empty blob from being stored as NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// toJSON is v for a nullable text column.
func toJSON(v any, null bool) (any, error) {
	if null {
		return nil, nil //nolint:nilnil // NULL is a value
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return string(b), nil
}

func found(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return task.ErrNotFound
	}
	return err
}

func millis(t time.Time) int64 { return task.Stamp(t).UnixMilli() }
