package sqlite

import "testing"

// WALLimit is the size at which the write-ahead log is folded back.
const WALLimit = walLimit

// ExecForTest changes a database behind the store's back.
func ExecForTest(t *testing.T, db *DB, query string) {
	t.Helper()
	if _, err := db.w.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}
