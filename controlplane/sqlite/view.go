package sqlite

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// errRoom: a task holds more than there is room for.
var errRoom = errors.New("no room")

// fill adds history and artifacts and tells how many bytes they take in JSON, as
// messages are stored; errRoom as soon as there are more than room.
func fill(ctx context.Context, tx *sql.Tx, rec *task.Record, v task.View, room int) (size int, err error) {
	if v.History != 0 {
		if size, err = fillHistory(ctx, tx, rec, v.History, room); err != nil {
			return size, err
		}
	}
	if v.Inline < 0 {
		return size, nil
	}
	all, err := storedArtifacts(ctx, tx, rec.ID)
	if err != nil {
		return size, err
	}
	whole := true
	if v.Consistent {
		if whole, err = rewind(ctx, tx, rec, all, v.Inline); err != nil {
			return size, err
		}
	}
	for _, s := range all {
		a, n, err := inline(ctx, tx, rec, s, v.Inline, whole)
		if err != nil {
			return size, err
		}
		if len(a.Parts) == 0 {
			continue // it begins behind the end of the record
		}
		for _, p := range a.Parts {
			size += written(p)
		}
		if size > room {
			return size, errRoom
		}
		rec.Artifacts = append(rec.Artifacts, a)
		if uint64(n) < s.size { //nolint:gosec // a length
			rec.Cuts = append(rec.Cuts, s.id)
		}
	}
	return size, nil
}

// written is how long the content of a part is in JSON: a guest that writes what
// must be escaped could else make a page several times as long as it may be.
func written(p task.Part) int {
	switch {
	case p.Text != nil:
		return escaped(*p.Text)
	case p.URL != nil:
		return escaped(*p.URL)
	case p.Data != nil:
		return len(p.Data)
	}
	return base64.StdEncoding.EncodedLen(len(p.Raw))
}

// escaped is how long valid UTF-8 is in a string of encoding/json.
func escaped(s string) (n int) {
	for _, r := range s {
		switch {
		case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t' || r == '\b' || r == '\f':
			n += 2
		case r < ' ' || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
			n += 6
		default:
			n += utf8.RuneLen(r)
		}
	}
	return n
}

// fillHistory adds the newest messages; a negative limit means all, to SQLite
// too.
func fillHistory(ctx context.Context, tx *sql.Tx, rec *task.Record, limit, room int) (size int, err error) {
	err = each(ctx, tx, func(rows *sql.Rows) error {
		var n int
		var body string
		if err := rows.Scan(&n, &body); err != nil {
			return err
		}
		if size += len(body); size > room {
			return errRoom
		}
		var m task.Message
		if err := json.Unmarshal([]byte(body), &m); err != nil {
			return damagedRow("a message", err)
		}
		rec.History = append(rec.History, m)
		return nil
	}, `SELECT n, body FROM (SELECT n, body FROM task_messages WHERE task_id = ? ORDER BY n DESC LIMIT ?) ORDER BY n`,
		rec.ID, limit)
	return size, err
}

// stored is the row of an artifact.
type stored struct {
	id   string
	size uint64
	sum  string
}

func storedArtifacts(ctx context.Context, tx *sql.Tx, id string) (all []stored, err error) {
	err = each(ctx, tx, func(rows *sql.Rows) error {
		var s stored
		if err := rows.Scan(&s.id, &s.size, &s.sum); err != nil {
			return err
		}
		all = append(all, s)
		return nil
	}, `SELECT artifact_id, size, coalesce(sha256, '') FROM artifacts WHERE task_id = ? ORDER BY n`, id)
	return all, err
}

// rewind has the record end before the first chunk that goes beyond the limit
// of its artifact, and reports whether there is none. The row of a task knows
// its newest status only, its events know all.
func rewind(ctx context.Context, tx *sql.Tx, rec *task.Record, all []stored, limit int) (whole bool, err error) {
	end := rec.LastSeq
	for _, s := range all {
		if s.size <= uint64(limit) { //nolint:gosec // not negative
			continue
		}
		var beyond uint64
		err := tx.QueryRowContext(ctx, `SELECT seq FROM task_events WHERE task_id = ? AND artifact_id = ? AND kind = 'chunk'
			AND start + length(body) > ? ORDER BY start LIMIT 1`, rec.ID, s.id, limit).Scan(&beyond)
		if err != nil {
			return false, fmt.Errorf("cannot find the end of artifact %q: %w", s.id, err)
		}
		end = min(end, beyond-1)
	}
	if end == rec.LastSeq {
		return true, nil
	}
	rec.LastSeq = end
	var past task.Metadata
	later := map[string]bool{} // messages that were no history yet
	meta := maps.Clone(rec.Metadata)
	err = each(ctx, tx, func(rows *sql.Rows) error {
		var body []byte
		if err := rows.Scan(&rec.StatusSeq, &body); err != nil {
			return err
		}
		var s storedStatus
		if err := json.Unmarshal(body, &s); err != nil {
			return damagedRow("a status event", err)
		}
		if rec.StatusSeq <= end {
			past, rec.Status = past.Merge(s.Metadata), s.Status
			clear(later)
		}
		if m := s.Status.Message; m != nil {
			later[m.MessageID] = true
		}
		if rec.StatusSeq > end {
			maps.DeleteFunc(meta, func(key string, _ json.RawMessage) bool { return s.Metadata[key] != nil })
		}
		return nil
	}, `SELECT seq, body FROM task_events WHERE task_id = ? AND kind = 'status' ORDER BY seq`, rec.ID)
	rec.Metadata = meta.Merge(past)
	turn := func(m task.Message) bool { return m.Role == task.Agent && later[m.MessageID] }
	if i := slices.IndexFunc(rec.History, turn); i >= 0 {
		rec.History = rec.History[:i]
	}
	return false, err
}

// inline builds an artifact from its first chunks: at most limit bytes of what
// the record includes. Of a record that is not whole, its end is told only if
// it was there.
func inline(ctx context.Context, tx *sql.Tx, rec *task.Record, s stored, limit int, whole bool) (a task.Artifact, size int, err error) {
	var b builder
	sum := s.sum
	if !whole {
		sum = ""
	}
	err = each(ctx, tx, func(rows *sql.Rows) error {
		var c task.Chunk
		var part string
		if err := rows.Scan(&c.Data, &part); err != nil {
			return err
		}
		if err := readPart(&c, part); err != nil {
			return err
		}
		if len(c.Data) > limit-b.size {
			if c.Data = beginning(c, limit-b.size); len(c.Data) > 0 {
				b.add(c)
			}
			return errEnough
		}
		if b.add(c); c.Last {
			sum = c.SHA256
		}
		return nil
	}, `SELECT body, coalesce(part, '') FROM task_events
		WHERE task_id = ? AND artifact_id = ? AND kind = 'chunk' AND seq <= ? ORDER BY start`,
		rec.ID, s.id, rec.LastSeq)
	if err != nil && !errors.Is(err, errEnough) {
		return a, 0, err
	}
	a = task.Artifact{ArtifactID: s.id, Name: s.id, Parts: b.parts()}
	if len(a.Parts) == 0 && whole { // an artifact has a part
		a.Parts = []task.Part{task.TextPart("")}
	}
	var cut bool
	if cut = uint64(b.size) < s.size; cut { //nolint:gosec // a length
		if a.Metadata, err = a.Metadata.Set("truncated", true); err != nil {
			return a, 0, err
		}
	}
	if sum != "" || cut {
		if a.Metadata, err = a.Metadata.Set("total_bytes", s.size); err != nil {
			return a, 0, err
		}
	}
	if sum != "" {
		a.Metadata, err = a.Metadata.Set("sha256", sum)
	}
	return a, b.size, err
}

// beginning is what of a chunk may be shown when there is room for n bytes of
// it: of text whole characters, and nothing of what has a meaning only whole.
func beginning(c task.Chunk, n int) []byte {
	if c.Form != nil && (c.Form.Kind == task.KindData || c.Form.Kind == task.KindURL) {
		return nil
	}
	if !utf8.Valid(c.Data) {
		return c.Data[:n]
	}
	for n > 0 && !utf8.RuneStart(c.Data[n]) {
		n--
	}
	return c.Data[:n]
}
