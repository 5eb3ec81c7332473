package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// storedPart is what the bytes of a chunk do not say of its part.
type storedPart struct {
	task.Form
	SHA256 string `json:"sha256,omitempty"` // of the artifact, whose last part it is
}

// putPart stores a chunk that has a form, whose artifact has grown by it.
func putPart(ctx context.Context, tx *sql.Tx, id string, seq uint64, c task.Chunk) error {
	part, err := json.Marshal(storedPart{Form: *c.Form, SHA256: c.SHA256})
	if err != nil {
		return err
	}
	if c.Last {
		if err := closeArtifact(ctx, tx, id, c); err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO task_events (task_id, tenant, seq, kind, artifact_id, start, body, part)
		SELECT id, tenant, ?2, ?3, ?4, ?5, ?6, ?7 FROM tasks WHERE id = ?1`,
		id, seq, kindChunk, c.ArtifactID, c.Offset, notNil(c.Data), string(part))
	return err
}

// readPart gives a chunk the form it was stored with.
func readPart(c *task.Chunk, part string) error {
	if part == "" {
		return nil
	}
	var p storedPart
	if err := json.Unmarshal([]byte(part), &p); err != nil {
		return damagedRow("a part", err)
	}
	c.Form = &p.Form
	if p.SHA256 != "" {
		c.Last, c.SHA256, c.Size = true, p.SHA256, c.Offset+uint64(len(c.Data))
	}
	return nil
}

// putScript stores what a change of status means for the run's script, and
// the turns of the conversation that go with it.
func putScript(ctx context.Context, tx *sql.Tx, id string, t task.Transition) error {
	if err := putTurns(ctx, tx, id, t.Turns); err != nil {
		return err
	}
	var err error
	switch {
	case t.Script != nil:
		_, err = tx.ExecContext(ctx, `UPDATE runs SET script = ?, after_seq = ? WHERE task_id = ?`, string(t.Script), t.Step, id)
	case t.Step != 0:
		_, err = tx.ExecContext(ctx, `UPDATE runs SET after_seq = ? WHERE task_id = ?`, t.Step, id)
	}
	return err
}

// putTurns adds messages to a task's history.
func putTurns(ctx context.Context, tx *sql.Tx, id string, turns []task.Message) error {
	for _, m := range turns {
		body, err := json.Marshal(m)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO task_messages (task_id, tenant, n, body)
			SELECT id, tenant, (SELECT coalesce(max(n), 0) + 1 FROM task_messages WHERE task_id = ?1), ?2
			FROM tasks WHERE id = ?1`, id, string(body)); err != nil {
			return err
		}
	}
	return nil
}

// nullText is text for a nullable column.
func nullText(b []byte) sql.NullString { return sql.NullString{String: string(b), Valid: b != nil} }
