package sqlite

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pressly/goose/v3"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestTenantsUpgrade: what was stored before rows had tenants is that of its
// task, and stays when the tables go back and forth.
func TestTenantsUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	old := connect(path, "_txlock=immediate", 1)
	dir, err := fs.Sub(migrations, "migrations")
	must(t, err)
	p, err := goose.NewProvider(goose.DialectSQLite3, old.DB, dir)
	must(t, err)
	_, err = p.UpTo(t.Context(), 699)
	must(t, err)
	for _, stmt := range []string{
		`INSERT INTO tasks (id, context_id, instance_id, owner, state, status_ms, version, last_seq, created_ms)
			VALUES ('t', 'c', 'i', 'alice', 'TASK_STATE_WORKING', 1, 1, 1, 1)`,
		`INSERT INTO tasks (id, tenant, context_id, instance_id, owner, state, status_ms, version, last_seq, created_ms)
			VALUES ('b', 'blue', 'c', 'i', 'alice', 'TASK_STATE_WORKING', 1, 1, 1, 1)`,
		`INSERT INTO task_events (task_id, seq, kind, body) VALUES ('b', 1, 'status', X'7b7d')`,
		`INSERT INTO task_messages (task_id, n, body) VALUES ('t', 1, '{}')`,
		`INSERT INTO task_events (task_id, seq, kind, body) VALUES ('t', 1, 'status', X'7b7d')`,
		`INSERT INTO artifacts (task_id, artifact_id, n, size) VALUES ('t', 'stdout', 0, 0)`,
		`INSERT INTO runs (task_id, run_id, instance_id, runner, spec, stdout_artifact, stderr_artifact)
			VALUES ('t', 'r', 'i', 'x', X'', 'stdout', 'stderr')`,
		`INSERT INTO push_hooks (task_id, id, version, url, token, scheme, credentials, created_ms, state, delivered)
			VALUES ('t', 'h', '1.0', 'u', '', '', '', 1, 'active', 0)`,
		`INSERT INTO prompts (id, task_id, n, context_id, instance_id, run_id, task_version, state, envelope, deadline_ms, start)
			VALUES ('p', 't', 1, 'c', 'i', 'r', 1, 'open', '{}', 0, 0)`,
		`INSERT INTO idempotency (principal, instance_id, message_id, hash, task_id, created_ms) VALUES ('alice', 'i', 'm', 'h', 't', 1)`,
	} {
		if _, err := old.ExecContext(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	must(t, old.close())
	hanging := []string{"task_messages", "task_events", "artifacts", "runs", "push_hooks", "prompts", "idempotency"}
	open := func() *DB {
		db, err := Open(t.Context(), path)
		must(t, err)
		return db
	}
	db := open()
	for range 2 { // up, down and up again
		for _, table := range hanging {
			if got := fmt.Sprint(rowsOf(t, db, "SELECT tenant FROM "+table+" WHERE task_id = 't'")); got != "[[default]]" {
				t.Errorf("%s has the tenants %s", table, got)
			}
		}
		if got := fmt.Sprint(rowsOf(t, db, "SELECT tenant FROM task_events WHERE task_id = 'b'")); got != "[[blue]]" {
			t.Errorf("what hangs on a task of blue has the tenants %s", got)
		}
		if rec, err := db.Task(t.Context(), task.Scope{Owner: "alice"}, "t", task.View{}); err != nil || rec.Tenant != instance.DefaultTenant {
			t.Errorf("the task is %+v, %v", rec, err)
		}
		// The same key of another tenant has no place in the older table.
		ExecForTest(t, db, `INSERT INTO idempotency (tenant, principal, instance_id, message_id, hash, task_id, created_ms)
			VALUES ('blue', 'alice', 'i', 'm', 'h', 't2', 2)`)
		DownForTest(t, db, 700)
		for _, table := range hanging {
			columns := rowsOf(t, db, `SELECT name FROM pragma_table_info(?)`, table)
			if slices.ContainsFunc(columns, func(row []any) bool { return row[0] == "tenant" }) {
				t.Errorf("%s still has tenants", table)
			}
			if n := len(rowsOf(t, db, "SELECT 1 FROM "+table+" WHERE task_id = 't'")); n != 1 {
				t.Errorf("%s has %d rows", table, n)
			}
		}
		must(t, db.Close())
		db = open()
	}
	must(t, db.Close())
}
