package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

func walSize(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// batch is the next n chunks of 64 KiB of a task's output.
func batch(p *task.Progress, n int) []task.Chunk {
	chunks := make([]task.Chunk, n)
	for i := range chunks {
		chunks[i] = task.Chunk{ArtifactID: "stdout", Offset: p.Received[0], Data: make([]byte, 64<<10)}
		p.AfterSeq++
		p.Received[0] += 64 << 10
	}
	return chunks
}

// follow reads a task's output again and again until ctx ends, so that some
// reader is at work at any time.
func follow(ctx context.Context, t *testing.T, db *sqlite.DB, id string) {
	t.Helper()
	for ctx.Err() == nil {
		var offset uint64
		for {
			data, err := db.ReadArtifact(ctx, task.System(), id, "stdout", offset)
			if err != nil && ctx.Err() == nil {
				t.Errorf("reading at %d: %v", offset, err)
			}
			if err != nil || len(data) == 0 {
				break
			}
			offset += uint64(len(data))
		}
	}
}

// TestWALIsBounded: 64 MiB go through the write-ahead log while readers follow
// one another without a pause, and it does not grow with them.
func TestWALIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db := open(t, path)
	create(t, db, "t")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { follow(ctx, t, db, "t") })
	}
	var p task.Progress
	var most int64
	for range 64 {
		if err := db.Output(t.Context(), "t", batch(&p, 16), p); err != nil {
			t.Fatal(err)
		}
		most = max(most, walSize(t, path))
	}
	cancel()
	wg.Wait()
	t.Logf("the log had %d KiB at most", most>>10)
	// Twice: on a very slow host a reader may outstay one folding.
	if most > 2*sqlite.WALLimit+4<<20 {
		t.Errorf("the log grew to %d KiB", most>>10)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	checkAlone(t, path)
}

// TestWALOutlivesForeignReader: another program that reads for long keeps the
// log from being folded back, but not us from writing.
func TestWALOutlivesForeignReader(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for SQLite's busy timeout, 10 s; to enable: go test without -short")
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	db := open(t, path)
	create(t, db, "t")
	foreign, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	tx, err := foreign.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM tasks").Scan(&n); err != nil || n != 1 {
		t.Fatalf("%d tasks, %v", n, err)
	}
	var p task.Progress
	write := func(mib int) {
		t.Helper()
		for range mib {
			if err := db.Output(t.Context(), "t", batch(&p, 16), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(sqlite.WALLimit>>20 + 4)
	if size := walSize(t, path); size < sqlite.WALLimit {
		t.Errorf("the log has %d KiB under a reader", size>>10)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	write(3 * sqlite.WALLimit >> 20)
	if size := walSize(t, path); size > 2*sqlite.WALLimit+4<<20 {
		t.Errorf("the log has %d KiB though the reader has gone", size>>10)
	}
}

// checkAlone checks that nothing was left beside a closed database.
func checkAlone(t *testing.T, path string) {
	t.Helper()
	left, err := filepath.Glob(path + "-*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// TestCloseLeavesNothingBeside: however busy the database is, Close waits for
// what is under way and then its file is all there is.
func TestCloseLeavesNothingBeside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	for round := range 20 {
		db, err := sqlite.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprintf("t%d", round)
		create(t, db, id)
		ctx, cancel := context.WithCancel(t.Context())
		var wg, begun sync.WaitGroup
		again := func(work func() error) {
			begun.Add(1)
			wg.Go(func() {
				err := work()
				begun.Done()
				for err == nil {
					err = work()
				}
			})
		}
		for range 4 {
			again(func() error { _, err := db.Events(ctx, task.System(), id, 0); return err })
		}
		var p task.Progress
		again(func() error { return db.Output(ctx, id, batch(&p, 2), p) })
		begun.Wait()
		if round%2 == 0 {
			cancel() // what is cut off may still hold a connection for a while
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
		checkAlone(t, path)
		if err := db.Close(); err != nil {
			t.Errorf("closing again: %v", err)
		}
		wg.Wait()
		cancel()
		checkAlone(t, path)
	}
}
