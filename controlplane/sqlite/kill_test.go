package sqlite_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const writerEnv = "SANDBOX_TEST_SQLITE_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerEnv); path != "" {
		if err := write(context.Background(), path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// content of the chunk that ends at seq.
func content(id string, seq uint64) []byte {
	return []byte(strings.Repeat(fmt.Sprintf("%s %d\n", id, seq), int(seq%97)+1))
}

// write makes a task and appends to it for ever, saying what is stored.
func write(ctx context.Context, path string) error {
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		return err
	}
	id := fmt.Sprintf("task-%d", os.Getpid())
	rec, err := db.Create(ctx, newTask(id))
	if err != nil {
		return err
	}
	if _, err := move(ctx, db, rec, task.Working); err != nil {
		return err
	}
	var p task.Progress
	for {
		p.AfterSeq++
		data := content(id, p.AfterSeq)
		c := task.Chunk{ArtifactID: "stdout", Offset: p.Received[0], Data: data}
		p.Received[0] += uint64(len(data))
		if err := db.Output(ctx, id, []task.Chunk{c}, p); err != nil {
			return err
		}
		fmt.Printf("%s %d\n", id, p.AfterSeq)
	}
}

// TestKill kills a writer in the middle of writing, again and again: what it
// had been told is stored is stored, and nothing is there by half.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	said := map[string]uint64{}
	for round := range 8 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$") //nolint:gosec // itself
		cmd.Env = append(os.Environ(), writerEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for sc := bufio.NewScanner(out); sc.Scan(); {
			var id string
			var seq uint64
			if _, err := fmt.Sscanf(sc.Text(), "%s %d", &id, &seq); err != nil {
				break // the last line was cut off
			}
			said[id] = seq
			if lines++; lines == 20+30*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // it was killed
		if lines == 0 {
			t.Fatal("the writer wrote nothing")
		}
		checkStored(t, path, said)
	}
}

func checkStored(t *testing.T, path string, said map[string]uint64) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	for id, seq := range said {
		run, err := db.Run(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		p := run.Progress
		if p.AfterSeq < seq || p.AfterSeq > seq+64 { // some lines may have been lost in the pipe
			t.Errorf("%s is stored up to %d, the writer said %d", id, p.AfterSeq, seq)
		}
		var offset, chunk uint64
		for {
			events, err := db.Events(t.Context(), task.System(), id, chunk+2) // 1 and 2 are the states
			if err != nil {
				t.Fatal(err)
			}
			if len(events) == 0 {
				break
			}
			for _, e := range events {
				chunk++
				if e.Seq != chunk+2 || e.Chunk.Offset != offset || string(e.Chunk.Data) != string(content(id, chunk)) {
					t.Fatalf("%s: event %d is not chunk %d", id, e.Seq, chunk)
				}
				offset += uint64(len(e.Chunk.Data))
			}
		}
		if chunk != p.AfterSeq || offset != p.Received[0] {
			t.Errorf("%s has %d chunks and %d bytes, its position says %d and %d", id, chunk, offset, p.AfterSeq, p.Received[0])
		}
	}
}

// TestManyReadersOneWriter: readers are not held up by a writer, and see
// states that belong together.
func TestManyReadersOneWriter(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	create(t, db, "t")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const chunks = 50
	errs := make(chan error, 9)
	go func() {
		var p task.Progress
		for range chunks {
			p.AfterSeq++
			c := task.Chunk{ArtifactID: "stdout", Offset: p.Received[0], Data: []byte("x")}
			p.Received[0]++
			if err := db.Output(ctx, "t", []task.Chunk{c}, p); err != nil {
				errs <- err
				return
			}
		}
		errs <- nil
	}()
	for range 8 {
		go func() {
			for {
				rec, err := db.Task(ctx, task.System(), "t", task.View{Inline: 1 << 20})
				if err != nil {
					errs <- err
					return
				}
				have := 0
				if len(rec.Artifacts) > 0 {
					have = len(*rec.Artifacts[0].Parts[0].Text)
				}
				if uint64(have)+1 != rec.LastSeq {
					errs <- fmt.Errorf("a reader sees %d bytes at event %d", have, rec.LastSeq)
					return
				}
				if have == chunks {
					errs <- nil
					return
				}
			}
		}()
	}
	for range 9 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
