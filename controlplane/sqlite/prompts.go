package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

var _ prompt.Store = (*DB)(nil)

// closePrompt ends the prompt of a task whose status changes.
func closePrompt(ctx context.Context, tx *sql.Tx, taskID string) error {
	_, err := tx.ExecContext(ctx,
		`UPDATE prompts SET state = 'closed' WHERE task_id = ? AND state IN ('open', 'claimed')`, taskID)
	return err
}

// Raise implements prompt.Store.
func (db *DB) Raise(ctx context.Context, t task.Transition, p prompt.Record) (rec task.Record, err error) {
	err = db.write(ctx, func(tx *sql.Tx) error {
		if rec, err = moveTask(ctx, tx, p.TaskID, t); err != nil {
			return err
		}
		var deadline int64
		if !p.Deadline.IsZero() {
			deadline = p.Deadline.UnixMilli()
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO prompts
			(id, task_id, tenant, n, context_id, instance_id, run_id, task_version, state, envelope, deadline_ms, start)
			SELECT ?1, id, tenant, (SELECT count(*) + 1 FROM prompts WHERE task_id = ?2), ?3, ?4, ?5, ?6, 'open', ?7, ?8, ?9
			FROM tasks WHERE id = ?2`,
			p.PromptID, p.TaskID, p.ContextID, string(p.InstanceID), p.RunID, rec.Version, string(p.Envelope), deadline, p.Start)
		return err
	})
	if err != nil {
		return task.Record{}, fmt.Errorf("cannot raise a prompt of task %q: %w", p.TaskID, err)
	}
	return rec, nil
}

// changePrompt moves the prompt of ref, and of nothing else, from one state to
// another while its task is as it was when it was raised.
func changePrompt(ctx context.Context, tx *sql.Tx, s task.Scope, ref prompt.Ref, from, to prompt.State) error {
	res, err := tx.ExecContext(ctx, `UPDATE prompts SET state = ?
		WHERE id = ? AND task_id = ? AND context_id = ? AND instance_id = ? AND run_id = ? AND state = ?
		AND task_version = (SELECT version FROM tasks WHERE id = prompts.task_id AND state = ? AND `+inScope+`)`,
		append([]any{
			string(to), ref.PromptID, ref.TaskID, ref.ContextID, string(ref.InstanceID), ref.RunID, string(from),
			string(task.InputRequired),
		}, scopeArgs(s)...)...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n != 1 {
		err = prompt.ErrNotCurrent
	}
	return err
}

// Claim implements prompt.Store.
func (db *DB) Claim(ctx context.Context, s task.Scope, ref prompt.Ref, answer []byte, seen [2]uint64) error {
	err := db.write(ctx, func(tx *sql.Tx) error {
		if err := changePrompt(ctx, tx, s, ref, prompt.Open, prompt.Claimed); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE prompts SET answer = ?, stdout_seen = ?, stderr_seen = ? WHERE id = ?`,
			notNil(answer), seen[task.Stdout], seen[task.Stderr], ref.PromptID)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot claim a prompt of task %q: %w", ref.TaskID, err)
	}
	return nil
}

// Answered implements prompt.Store.
func (db *DB) Answered(ctx context.Context, ref prompt.Ref, t task.Transition, turns []task.Message) (rec task.Record, err error) {
	err = db.write(ctx, func(tx *sql.Tx) error {
		if err := changePrompt(ctx, tx, task.System(), ref, prompt.Claimed, prompt.Answered); err != nil {
			return err
		}
		t.Turns = turns
		rec, err = moveTask(ctx, tx, ref.TaskID, t)
		return err
	})
	if err != nil {
		return task.Record{}, fmt.Errorf("cannot end a prompt of task %q: %w", ref.TaskID, err)
	}
	return rec, nil
}

// Restore implements prompt.Store.
func (db *DB) Restore(ctx context.Context, ref prompt.Ref) error {
	err := db.write(ctx, func(tx *sql.Tx) error {
		if err := changePrompt(ctx, tx, task.System(), ref, prompt.Claimed, prompt.Open); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE prompts SET answer = NULL, stdout_seen = 0, stderr_seen = 0 WHERE id = ?`, ref.PromptID)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot restore a prompt of task %q: %w", ref.TaskID, err)
	}
	return nil
}

// Dialogue implements prompt.Store.
func (db *DB) Dialogue(ctx context.Context, taskID string) (d prompt.Dialogue, err error) {
	err = db.read(ctx, func(tx *sql.Tx) error {
		return each(ctx, tx, func(rows *sql.Rows) error {
			var p prompt.Record
			var envelope string
			var deadline int64
			if err := rows.Scan(&p.PromptID, &p.ContextID, (*string)(&p.InstanceID), &p.RunID, (*string)(&p.State), &envelope,
				&deadline, &p.Start, &p.Answer, &p.Seen[task.Stdout], &p.Seen[task.Stderr]); err != nil {
				return err
			}
			p.TaskID, p.Envelope = taskID, json.RawMessage(envelope)
			if deadline != 0 {
				p.Deadline = time.UnixMilli(deadline).UTC()
			}
			d.Asked++
			d.Deadline = p.Deadline
			switch p.State {
			case prompt.Answered:
				d.Input = append(d.Input, p.Answer...)
				d.Seen = p.Seen
			case prompt.Claimed:
				d.Seen = p.Seen
				d.Claimed = &p
			case prompt.Open, prompt.Closed:
			}
			return nil
		}, `SELECT id, context_id, instance_id, run_id, state, envelope, deadline_ms, start, answer, stdout_seen, stderr_seen
			FROM prompts WHERE task_id = ? ORDER BY n`, taskID)
	})
	if err != nil {
		return prompt.Dialogue{}, fmt.Errorf("cannot read the prompts of task %q: %w", taskID, err)
	}
	return d, nil
}
