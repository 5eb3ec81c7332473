package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
)

// walLimit is the size at which the write-ahead log is folded back and begun
// anew, in bytes. SQLite folds it back by itself every thousand pages, but
// begins it anew only at a moment when nobody reads, and readers that follow a
// task's output closely may leave it none.
const walLimit = 16 << 20

// wal is the write-ahead log of a database.
type wal struct {
	path string
	next atomic.Int64 // size at which to fold it back
}

func newWAL(database string) (*wal, error) {
	// It lies beside the file itself, not beside a link to it.
	real, err := filepath.EvalSymlinks(database)
	if err != nil {
		return nil, err
	}
	l := &wal{path: real + "-wal"}
	l.next.Store(walLimit)
	return l, nil
}

// fold begins the log anew if it has grown too large. It waits for the readers
// of this moment, new ones are not held up. One that stays too long, such as a
// backup by another program, is given time until the log has grown as much
// again. What was written is durable whether folding succeeds or not, so there
// is nobody to tell.
func (l *wal) fold(ctx context.Context, w *pool) {
	st, err := os.Stat(l.path)
	if err != nil || st.Size() < l.next.Load() {
		return
	}
	var busy, pages, folded int
	err = w.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &folded)
	if err != nil || busy != 0 {
		l.next.Store(st.Size() + walLimit)
		return
	}
	l.next.Store(walLimit)
}
