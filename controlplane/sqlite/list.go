package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
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
		b := budget{most: f.Bytes}
		var sizes []int
		err = each(ctx, tx, func(rows *sql.Rows) error {
			rec, size, err := scanSized(rows)
			if err != nil {
				return err
			}
			if len(page.Tasks) == f.Limit || len(page.Tasks) > 0 && size > b.room() {
				endPage(&page)
				return errEnough
			}
			b.spend(size)
			page.Tasks, sizes = append(page.Tasks, rec), append(sizes, size)
			return nil
		}, selectPage(where), args...)
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
		return fillPage(ctx, tx, &page, sizes, f.Bytes, v)
	})
	if err != nil {
		return task.Page{}, fmt.Errorf("cannot list tasks of instance %q: %w", f.InstanceID, err)
	}
	return page, nil
}

// fillPage adds history and artifacts to the tasks of a page, whose rows have
// those sizes, and ends it before the first that does not fit any more.
func fillPage(ctx context.Context, tx *sql.Tx, page *task.Page, sizes []int, most int, v task.View) error {
	b := budget{most: most}
	for i := range page.Tasks {
		room := b.room() - sizes[i]
		if i == 0 {
			room = math.MaxInt
		}
		size, err := fill(ctx, tx, &page.Tasks[i], v, room)
		if errors.Is(err, errRoom) {
			page.Tasks = page.Tasks[:i]
			endPage(page)
			return nil
		}
		if err != nil {
			return err
		}
		b.spend(sizes[i] + size)
	}
	return nil
}

// endPage has the next page begin behind the last task of this one.
func endPage(page *task.Page) {
	last := page.Tasks[len(page.Tasks)-1]
	page.Next = &task.Place{StatusMillis: last.Status.Timestamp.UnixMilli(), ID: last.ID}
}

// budget is what a page may hold; of 0, anything.
type budget struct{ most, spent int }

func (b *budget) room() int {
	if b.most == 0 {
		return math.MaxInt
	}
	return b.most - b.spent
}

func (b *budget) spend(n int) { b.spent += n }

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
