package sqlite

import (
	"io/fs"
	"testing"

	"github.com/pressly/goose/v3"
)

// WALLimit is the size at which the write-ahead log is folded back.
const WALLimit = walLimit

// ExecForTest changes a database behind the store's back.
func ExecForTest(t *testing.T, db *DB, query string) {
	t.Helper()
	if _, err := db.w.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

// DownForTest undoes one migration.
func DownForTest(t *testing.T, db *DB, version int64) {
	t.Helper()
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db.w.DB, dir, goose.WithAllowOutofOrder(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ApplyVersion(t.Context(), version, false); err != nil {
		t.Fatal(err)
	}
}
