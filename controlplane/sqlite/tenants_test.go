package sqlite

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const sharedInstance = instance.ID("01900000-0000-7000-8000-000000000001")

// owned is a task of the world below.
type owned struct{ tenant, owner string }

func (o owned) id() string { return o.tenant + "/" + o.owner }

func (o owned) scope() task.Scope { return task.Scope{Tenant: o.tenant, Owner: o.owner} }

func (o owned) prompt() prompt.Ref {
	return prompt.Ref{
		PromptID: "p-" + o.id(), TaskID: o.id(), ContextID: "c", InstanceID: sharedInstance, RunID: "r-" + o.id(),
	}
}

func owners() []owned {
	return []owned{{instance.DefaultTenant, "alice"}, {instance.DefaultTenant, "bob"}, {"blue", "alice"}, {"blue", "bob"}}
}

func viewers() []task.Scope {
	all := []task.Scope{
		{}, {Tenant: "blue"}, {Tenant: "red", Owner: "alice"}, {Tenant: "red", AllOwners: true},
		{Owner: "alice"}, {AllOwners: true}, {Tenant: "blue", Owner: "carol", AllOwners: true}, task.System(),
	}
	for _, o := range owners() {
		all = append(all, o.scope())
	}
	return all
}

// world opens a database in which two principals of two tenants each, with
// equal names, have one task with all that can hang on it: on one instance, in
// one context, with webhooks of one id.
func world(t *testing.T) *DB {
	t.Helper()
	db, err := Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	for _, o := range owners() {
		ctx, id := t.Context(), o.id()
		at := task.Stamp(time.UnixMilli(1_700_000_000_000))
		rec, err := db.Create(ctx, task.New{
			ID: id, ContextID: "c", InstanceID: sharedInstance, Tenant: o.tenant, Owner: o.owner, At: at.Time,
			Message: task.Message{MessageID: "m", Role: task.User, Parts: []task.Part{task.TextPart("hi")}},
			Run:     task.Run{RunID: "r-" + id, Runner: "x", Artifacts: [2]string{"stdout", "stderr"}},
		})
		must(t, err)
		rec, err = db.Move(ctx, id, task.Transition{
			Version: rec.Version, Status: task.Status{State: task.Working, Timestamp: at},
			Turns: []task.Message{{MessageID: "m2", Role: task.User, Parts: []task.Part{task.TextPart("more")}}},
		})
		must(t, err)
		must(t, db.Output(ctx, id, []task.Chunk{
			{ArtifactID: "stdout", Data: []byte("out")},
			{ArtifactID: "data", Data: []byte("{}"), Form: &task.Form{Kind: task.KindData}},
		}, task.Progress{AfterSeq: 2}))
		_, err = db.Raise(ctx, task.Transition{Version: rec.Version, Status: task.Status{State: task.InputRequired, Timestamp: at}},
			prompt.Record{Ref: o.prompt(), Envelope: json.RawMessage(`{}`)})
		must(t, err)
		_, err = db.Webhooks().Put(ctx, o.scope(), hook(id), push.FromNow, 2)
		must(t, err)
	}
	return db
}

func hook(taskID string) push.Hook {
	return push.Hook{TaskID: taskID, ID: "h", Version: "1.0", URL: "https://example.org/"}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused wants no error or the one that says that there is nothing, and
// reports which of the two.
func refused(t *testing.T, err, none error) bool {
	t.Helper()
	if err != nil && !errors.Is(err, none) {
		t.Fatal(err)
	}
	return err != nil
}

// scopedMethods are the methods that act for a caller. Each, given a task,
// reports whether the scope reached it; what it changed is put back.
func scopedMethods(t *testing.T, db *DB) map[string]func(s task.Scope, o owned) bool {
	ctx, hooks := t.Context(), db.Webhooks()
	return map[string]func(s task.Scope, o owned) bool{
		"DB.Task": func(s task.Scope, o owned) bool {
			rec, err := db.Task(ctx, s, o.id(), task.View{History: -1, Inline: 1 << 10})
			if refused(t, err, task.ErrNotFound) {
				return false
			}
			if rec.Tenant != o.tenant || rec.Owner != o.owner || len(rec.History) != 2 || len(rec.Artifacts) != 2 {
				t.Errorf("the task of %v is %+v", o, rec)
			}
			return true
		},
		"DB.Events": func(s task.Scope, o owned) bool {
			events, err := db.Events(ctx, s, o.id(), 0)
			must(t, err)
			return len(events) > 0
		},
		"DB.List": func(s task.Scope, o owned) bool {
			page, err := db.List(ctx, s, task.Filter{InstanceID: sharedInstance, Limit: 9}, task.View{Inline: -1})
			must(t, err)
			if page.Total != len(page.Tasks) {
				t.Errorf("%+v lists %d tasks and counts %d", s, len(page.Tasks), page.Total)
			}
			return slices.ContainsFunc(page.Tasks, func(r task.Record) bool { return r.ID == o.id() })
		},
		"DB.ArtifactSize": func(s task.Scope, o owned) bool {
			_, _, err := db.ArtifactSize(ctx, s, o.id(), "stdout")
			return !refused(t, err, task.ErrNotFound)
		},
		"DB.ReadArtifact": func(s task.Scope, o owned) bool {
			data, err := db.ReadArtifact(ctx, s, o.id(), "stdout", 0)
			must(t, err)
			return len(data) > 0
		},
		"DB.RequestCancel": func(s task.Scope, o owned) bool {
			if refused(t, db.RequestCancel(ctx, s, o.id()), task.ErrNotFound) {
				return false
			}
			run, err := db.Run(ctx, o.id())
			must(t, err)
			ExecForTest(t, db, "UPDATE runs SET cancel_requested = 0")
			return run.CancelRequested
		},
		"DB.Claim": func(s task.Scope, o owned) bool {
			if refused(t, db.Claim(ctx, s, o.prompt(), []byte("y\n"), [2]uint64{}), prompt.ErrNotCurrent) {
				return false
			}
			must(t, db.Restore(ctx, o.prompt()))
			return true
		},
		"Webhooks.Put": func(s task.Scope, o owned) bool {
			_, err := hooks.Put(ctx, s, hook(o.id()), 0, 2)
			return !refused(t, err, task.ErrNotFound)
		},
		"Webhooks.Hooks": func(s task.Scope, o owned) bool {
			all, err := hooks.Hooks(ctx, s, o.id())
			must(t, err)
			return len(all) > 0
		},
		"Webhooks.Delete": func(s task.Scope, o owned) bool {
			must(t, hooks.Delete(ctx, s, o.id(), "h"))
			left, err := hooks.Hooks(ctx, task.System(), o.id())
			must(t, err)
			if len(left) > 0 {
				return false
			}
			_, err = hooks.Put(ctx, task.System(), hook(o.id()), 0, 2)
			must(t, err)
			return true
		},
	}
}

// otherMethods are those without a scope, and why that is right.
func otherMethods() map[string]string {
	const (
		engine = "the engine's, of a task it carries out"
		outbox = "the outbox's"
		keyed  = "by a key that has tenant and principal, see TestKeysOfTenants"
		store  = "a store"
		daemon = "the daemon's: numbers and health, no rows"
	)
	return map[string]string{
		"DB.Create": "makes what it is told to", "DB.Move": engine, "DB.Output": engine, "DB.Released": engine,
		"DB.Run": engine, "DB.OpenRuns": engine,
		"DB.Raise": engine, "DB.Answered": engine, "DB.Restore": engine, "DB.Dialogue": engine,
		"Webhooks.Active": outbox, "Webhooks.Save": outbox,
		"Idempotency.Reserve": keyed, "Idempotency.Answer": keyed,
		"ManagementRequests.Reserve": keyed, "ManagementRequests.Answered": keyed,
		"DB.Fleet": store, "DB.Webhooks": store, "DB.Idempotency": store, "DB.ManagementRequests": store,
		"DB.Counts": daemon, "DB.Probe": daemon, "DB.Sweep": daemon, "DB.Close": daemon,
	}
}

// TestEveryMethodHasAScope: no method of a store is forgotten here. Those of
// Fleet take a tenant, which the tests of fleet are about.
func TestEveryMethodHasAScope(t *testing.T) {
	scoped, other := scopedMethods(t, &DB{}), otherMethods()
	n := 0
	for _, store := range []any{&DB{}, Webhooks{}, Idempotency{}, ManagementRequests{}} {
		typ := reflect.TypeOf(store)
		name := strings.TrimPrefix(typ.String(), "*")
		name = strings.TrimPrefix(name, "sqlite.")
		for i := range typ.NumMethod() {
			m := name + "." + typ.Method(i).Name
			n++
			if _, ok := other[m]; ok == (scoped[m] != nil) {
				t.Errorf("%s must be in exactly one of the two tables", m)
			}
			takes := slices.ContainsFunc(ins(typ.Method(i).Type), func(in reflect.Type) bool {
				return in == reflect.TypeFor[task.Scope]()
			})
			if takes != (scoped[m] != nil) {
				t.Errorf("%s takes a scope: %t", m, takes)
			}
		}
	}
	if n != len(scoped)+len(other) {
		t.Errorf("there are %d methods, and %d in the tables", n, len(scoped)+len(other))
	}
}

func ins(f reflect.Type) (types []reflect.Type) {
	for i := range f.NumIn() {
		types = append(types, f.In(i))
	}
	return types
}

// TestScopes has every scope try every method on every task: it reaches those
// within it, and what is not stays as it is, row for row.
func TestScopes(t *testing.T) {
	db := world(t)
	methods := scopedMethods(t, db)
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		before := dump(t, db)
		for _, allowed := range []bool{false, true} { // first all that must change nothing
			for _, s := range viewers() {
				for _, o := range owners() {
					if s.Includes(o.tenant, o.owner) != allowed {
						continue
					}
					if got := methods[name](s, o); got != allowed {
						t.Errorf("%s: %+v reaches the task of %+v: %t, want %t", name, s, o, got, allowed)
					}
				}
			}
			if after := dump(t, db); !allowed && after != before {
				t.Fatalf("%s changed what was not in its scope:\n%s\nwas\n%s", name, after, before)
			}
		}
	}
}

// dump is all that is stored.
func dump(t *testing.T, db *DB) string {
	t.Helper()
	var b strings.Builder
	for _, table := range tables(t, db) {
		fmt.Fprintln(&b, table)
		for _, row := range rowsOf(t, db, "SELECT * FROM "+table) {
			fmt.Fprintln(&b, row...)
		}
	}
	return b.String()
}

func tables(t *testing.T, db *DB) (names []string) {
	t.Helper()
	for _, row := range rowsOf(t, db, `SELECT name FROM sqlite_schema
		WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'goose_%' ORDER BY name`) {
		names = append(names, fmt.Sprint(row[0]))
	}
	return names
}

func rowsOf(t *testing.T, db *DB, query string, args ...any) (all [][]any) {
	t.Helper()
	rows, err := db.r.QueryContext(t.Context(), query, args...)
	must(t, err)
	defer func() { must(t, rows.Close()) }()
	columns, err := rows.Columns()
	must(t, err)
	for rows.Next() {
		row, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		must(t, rows.Scan(into...))
		for i := range row {
			if b, ok := row[i].([]byte); ok {
				row[i] = string(b)
			}
		}
		all = append(all, row)
	}
	must(t, rows.Err())
	return all
}

// TestEveryRowHasATenant: every table but those of the daemon itself has a
// tenant, and what hangs on a task has the task's.
func TestEveryRowHasATenant(t *testing.T) {
	db := world(t)
	none := []string{"fleet_state", "orphans", "probe"} // of the host, which is nobody's
	for _, table := range tables(t, db) {
		columns := rowsOf(t, db, `SELECT name FROM pragma_table_info(?) WHERE "notnull" = 1`, table)
		has := func(name string) bool {
			return slices.ContainsFunc(columns, func(row []any) bool { return row[0] == name })
		}
		if has("tenant") == slices.Contains(none, table) {
			t.Errorf("table %s has a tenant: %t", table, has("tenant"))
		}
		if !has("task_id") || table == "idempotency" {
			continue // whose task may not have been made
		}
		for _, o := range owners() {
			got := rowsOf(t, db, `SELECT DISTINCT tenant FROM `+table+` WHERE task_id = ?`, o.id())
			if len(got) != 1 || got[0][0] != o.tenant {
				t.Errorf("table %s: rows of %+v have the tenants %v", table, o, got)
			}
		}
	}
}

// TestKeysOfTenants: equal keys of equal names in two tenants are two
// messages, and one tenant's do not make another's be forgotten.
func TestKeysOfTenants(t *testing.T) {
	db := world(t)
	ctx, now := t.Context(), time.UnixMilli(1_767_225_600_000)
	for _, o := range owners() {
		k := idempotency.Key{Tenant: o.tenant, Principal: o.owner, Instance: sharedInstance, MessageID: "m"}
		got, err := db.Idempotency().Reserve(ctx, k, idempotency.Reservation{Hash: "hash", TaskID: o.id()}, now,
			idempotency.Bounds{TTL: time.Hour, Entries: 1})
		if err != nil || got.TaskID != o.id() {
			t.Errorf("the message of %+v is %+v, %v", o, got, err)
		}
		mk := once.Key{Tenant: o.tenant, Principal: o.owner, Name: "n"}
		request, err := db.ManagementRequests().Reserve(ctx, mk, once.Reservation{Hash: "hash", OperationID: o.id()}, now,
			once.Bounds{TTL: time.Hour, Entries: 1})
		if err != nil || request.OperationID != o.id() {
			t.Errorf("the request of %+v is %+v, %v", o, request, err)
		}
	}
	first := owners()[0]
	k := idempotency.Key{Principal: first.owner, Instance: sharedInstance, MessageID: "m"} // of the default tenant
	must(t, db.Idempotency().Answer(ctx, k, first.id(), []byte("mine")))
	mk := once.Key{Tenant: first.tenant, Principal: first.owner, Name: "n"}
	must(t, db.ManagementRequests().Answered(ctx, mk, first.id(), once.Answer{Status: 200, Body: []byte("mine")}))
	for _, table := range []string{"idempotency", "management_idempotency"} {
		got := rowsOf(t, db, "SELECT tenant, principal, answered FROM "+table+" ORDER BY tenant, principal")
		want := "[[blue alice 0] [blue bob 0] [default alice 1] [default bob 0]]"
		if fmt.Sprint(got) != want {
			t.Errorf("%s has %v, want %s", table, got, want)
		}
	}
}

// TestListsUseTheirIndex asks SQLite how it will find the rows of a page.
func TestListsUseTheirIndex(t *testing.T) {
	db := world(t)
	for name, f := range map[string]task.Filter{
		"plain": {}, "context": {ContextID: "c"}, "state": {State: task.Working}, "since": {Since: time.UnixMilli(1)},
	} {
		for _, s := range []task.Scope{{Owner: "alice"}, {AllOwners: true}} {
			f.InstanceID = sharedInstance
			where, args := listed(s, f)
			counted := strings.Join(where, " AND ")
			for _, q := range []string{selectPage(where), "SELECT count(*) FROM tasks WHERE " + counted} {
				var plan strings.Builder
				all := args
				if strings.Contains(q, "LIMIT") {
					all = append(slices.Clone(args), 9)
				}
				for _, row := range rowsOf(t, db, "EXPLAIN QUERY PLAN "+q, all...) {
					fmt.Fprintln(&plan, row[3])
				}
				if !strings.Contains(plan.String(), "tasks_listed (tenant=? AND instance_id=?") || strings.Contains(plan.String(), "TEMP") {
					t.Errorf("%s, %+v: %s is found by %s", name, s, q, plan.String())
				}
			}
		}
	}
}
