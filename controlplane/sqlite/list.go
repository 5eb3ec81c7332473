package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"unicode/utf8"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// List implements task.Reader.
func (db *DB) List(ctx context.Context, s task.Scope, f task.Filter, v task.View) (page task.Page, err error) {
	where, args := listed(s, f)
	add := func(clause string, values ...any) {
		where = append(where, clause)
		args = append(args, values...)
	}
	err = db.read(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT count(*) FROM tasks WHERE "+strings.Join(where, " AND "), args...).Scan(&page.Total)
		if err != nil {
			return err
		}
		if f.After != nil {
			add("(status_ms, id) < (?, ?)", f.After.StatusMillis, f.After.ID)
		}
		args = append(args, f.Limit+1) // one more tells whether there is a next page
		err = each(ctx, tx, func(rows *sql.Rows) error {
			rec, err := scanTask(rows)
			page.Tasks = append(page.Tasks, rec)
			return err
		}, selectPage(where), args...)
		if err != nil {
			return err
		}
		if len(page.Tasks) > f.Limit {
			page.Tasks = page.Tasks[:f.Limit]
			last := page.Tasks[f.Limit-1]
			page.Next = &task.Place{StatusMillis: last.Status.Timestamp.UnixMilli(), ID: last.ID}
		}
		for i := range page.Tasks {
			if err := fill(ctx, tx, &page.Tasks[i], v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return task.Page{}, fmt.Errorf("cannot list tasks of instance %q: %w", f.InstanceID, err)
	}
	return page, nil
}

// listed is what tasks of a list have in common. The scope is part of it by
// plain comparisons, so that the index of lists, which begins with the tenant,
// serves it.
func listed(s task.Scope, f task.Filter) (where []string, args []any) {
	add := func(clause string, value any) {
		where = append(where, clause)
		args = append(args, value)
	}
	if !s.Everywhere() {
		add("tenant = ?", s.TenantOrDefault())
	}
	add("instance_id = ?", string(f.InstanceID))
	if !s.Everywhere() && !s.AllOwners {
		add("owner = ?", s.Owner)
	}
	if f.ContextID != "" {
		add("context_id = ?", f.ContextID)
	}
	if f.State != "" {
		add("state = ?", string(f.State))
	}
	if !f.Since.IsZero() {
		add("status_ms >= ?", millis(f.Since))
	}
	return where, args
}

func selectPage(where []string) string {
	return selectTask + " WHERE " + strings.Join(where, " AND ") + " ORDER BY status_ms DESC, id DESC LIMIT ?"
}

// builder joins chunks of one kind into one part each. What has a form is a
// part of its own.
type builder struct {
	size int
	runs []run
}

type run struct {
	form *task.Form
	text bool
	data []byte
}

func (b *builder) add(c task.Chunk) {
	b.size += len(c.Data)
	text := utf8.Valid(c.Data)
	if n := len(b.runs); n > 0 && c.Form == nil && b.runs[n-1].form == nil && b.runs[n-1].text == text {
		b.runs[n-1].data = append(b.runs[n-1].data, c.Data...)
		return
	}
	b.runs = append(b.runs, run{form: c.Form, text: text, data: append([]byte(nil), c.Data...)})
}

func (b *builder) parts() []task.Part {
	parts := make([]task.Part, 0, len(b.runs))
	for _, r := range b.runs {
		parts = append(parts, task.Chunk{Data: r.data, Form: r.form}.Part())
	}
	return parts
}
