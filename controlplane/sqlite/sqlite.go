// Package sqlite keeps the state of a control plane in one SQLite database and
// implements the stores of the packages that consume them.
//
// It knows how nouns are laid out in tables and nothing of what they are for:
// no HTTP, no machine, no policy. A method that has returned has reached the
// disk (WAL, synchronous=FULL).
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mattn/go-sqlite3"
	"github.com/pressly/goose/v3"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

//go:embed migrations/*.sql
var migrations embed.FS

// readers bounds the connections that only read. SQLite lets them work while
// the one writer writes.
const readers = 8

// checkedSize is the size up to which a database is checked as a whole when it
// is opened; above, damage is found when it is met.
const checkedSize = 128 << 20

// DB is an open database. It is safe for concurrent use.
type DB struct {
	path string
	file os.FileInfo
	wal  *wal
	w    *pool // one connection: writes wait for each other here, not in SQLite
	r    *pool
}

// Open opens or makes the database at path and brings its tables up to date.
// It never deletes anything: a database that is damaged, or was written by a
// newer version, is refused with a fault that says what to do.
func Open(ctx context.Context, path string) (*DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open database %q: %w", path, err)
	}
	// Made here and not by SQLite so that nobody else can ever read it.
	f, err := os.OpenFile(abs, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator's path
	if err != nil {
		return nil, fault(abs, "database.not_writable", "check that the directory exists and is writable", err)
	}
	st, err := f.Stat()
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("cannot open database %q: %w", abs, err)
	}
	l, err := newWAL(abs)
	if err != nil {
		return nil, fmt.Errorf("cannot open database %q: %w", abs, err)
	}
	db := &DB{path: abs, file: st, wal: l}
	if err := db.open(ctx); err != nil {
		return nil, errors.Join(explain(abs, err), db.Close())
	}
	return db, nil
}

func (db *DB) open(ctx context.Context) error {
	db.w = connect(db.path, "_txlock=immediate", 1)
	if err := db.check(ctx); err != nil {
		return err
	}
	if err := db.migrate(ctx); err != nil {
		return err
	}
	db.r = connect(db.path, "_query_only=true", readers)
	return nil
}

// check reads the database before anything is written to it.
func (db *DB) check(ctx context.Context) error {
	st, err := os.Stat(db.path)
	if err != nil {
		return fmt.Errorf("cannot check database: %w", err)
	}
	if st.Size() > checkedSize {
		var n int
		if err := db.w.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&n); err != nil {
			return fmt.Errorf("cannot read database: %w", err)
		}
		return nil
	}
	return quickCheck(ctx, db.w)
}

// sound checks an open database again, unless it is too large for that.
func (db *DB) sound(ctx context.Context) error {
	if st, err := os.Stat(db.path); err != nil || st.Size() > checkedSize {
		return err
	}
	return quickCheck(ctx, db.r)
}

func quickCheck(ctx context.Context, p *pool) error {
	var verdict string
	if err := p.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return fmt.Errorf("cannot check database: %w", err)
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", errDamaged, verdict)
	}
	return nil
}

var (
	errDamaged = errors.New("database is damaged")
	errNewer   = errors.New("database was written by a newer version")
)

func (db *DB) migrate(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("cannot read migrations: %w", err)
	}
	// Out of order: each group of tables numbers its migrations by itself.
	p, err := goose.NewProvider(goose.DialectSQLite3, db.w.DB, dir, goose.WithAllowOutofOrder(true))
	if err != nil {
		return fmt.Errorf("cannot read migrations: %w", err)
	}
	known := map[int64]bool{0: true}
	for _, s := range p.ListSources() {
		known[s.Version] = true
	}
	if err := db.refuseNewer(ctx, known); err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("cannot migrate database: %w", err)
	}
	return nil
}

func (db *DB) refuseNewer(ctx context.Context, known map[int64]bool) (err error) {
	var have int
	err = db.w.QueryRowContext(ctx,
		"SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'goose_db_version'").Scan(&have)
	if err != nil {
		return fmt.Errorf("cannot read database version: %w", err)
	}
	if have == 0 {
		return nil
	}
	rows, err := db.w.QueryContext(ctx, "SELECT version_id FROM goose_db_version WHERE is_applied")
	if err != nil {
		return fmt.Errorf("cannot read database version: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var v int64
		if err := rows.Scan(&v); err != nil {
			return fmt.Errorf("cannot read database version: %w", err)
		}
		if !known[v] {
			return fmt.Errorf("%w: migration %d is not known here", errNewer, v)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("cannot read database version: %w", err)
	}
	return nil
}

// Close waits for what is being done and closes the database. Nothing is left
// beside its file then, unless another program has it open.
func (db *DB) Close() error {
	var errs []error
	for _, p := range []*pool{db.r, db.w} { // the writer last and alone: it removes the log
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	return errors.Join(errs...)
}

// write runs fn in the one transaction that may change the database now.
func (db *DB) write(ctx context.Context, fn func(*sql.Tx) error) error {
	if err := db.inPlace(); err != nil {
		return err
	}
	if err := inTx(ctx, db.w, fn); err != nil {
		return storeFault(db.path, err)
	}
	db.wal.fold(ctx, db.w)
	return nil
}

// inPlace reports that the file was taken away, or another put in its place.
// SQLite would go on with what has no name any more, and the next daemon would
// not find what this one has promised to keep.
func (db *DB) inPlace() error {
	now, err := os.Stat(db.path)
	if err == nil && os.SameFile(db.file, now) {
		return nil
	}
	if err == nil {
		err = errors.New("another file is in its place")
	}
	return &instance.Fault{
		Blame: instance.Host, Code: "store.missing",
		Hint: fmt.Sprintf("put it back before sandboxd ends; one that was deleted is still in /proc/%d/fd", os.Getpid()),
		Err:  fmt.Errorf("database %q was taken away: %w", db.path, err),
	}
}

// read runs fn on one consistent state of the database. fn must be short: a
// long reader keeps the write-ahead log from being folded back.
func (db *DB) read(ctx context.Context, fn func(*sql.Tx) error) error {
	return storeFault(db.path, inTx(ctx, db.r, fn))
}

func inTx(ctx context.Context, h *pool, fn func(*sql.Tx) error) error {
	tx, err := h.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("cannot begin transaction: %w", err)
	}
	if err := fn(tx); err != nil {
		if rerr := tx.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
			err = errors.Join(err, rerr)
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("cannot commit transaction: %w", err)
	}
	return nil
}

func explain(path string, err error) error {
	var se sqlite3.Error
	damaged := errors.Is(err, errDamaged) ||
		errors.As(err, &se) && (se.Code == sqlite3.ErrCorrupt || se.Code == sqlite3.ErrNotADB)
	switch {
	case damaged:
		return fault(path, "database.damaged",
			"stop sandboxd, copy the file and its -wal and -shm away, then restore a backup or "+
				"try: sqlite3 DATABASE .recover | sqlite3 NEW; nothing was changed", err)
	case errors.As(err, &se) && (se.Code == sqlite3.ErrBusy || se.Code == sqlite3.ErrLocked || se.Code == sqlite3.ErrProtocol):
		return fault(path, "database.busy",
			"another program holds it: end that (`fuser DATABASE` names it), then start sandboxd again; nothing was changed", err)
	case errors.Is(err, errNewer):
		return fault(path, "database.newer",
			"start the version that wrote it, or a later one; nothing was changed", err)
	}
	return fault(path, "database.unusable", "check the file, its owner and the space on its disk", err)
}

func fault(path, code, hint string, err error) error {
	return &instance.Fault{
		Blame: instance.Host, Code: code, Hint: hint,
		Err: fmt.Errorf("cannot open database %q: %w", path, err),
	}
}
