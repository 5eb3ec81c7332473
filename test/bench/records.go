package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "github.com/mattn/go-sqlite3" // the daemon's database

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// template is the instance that the daemon makes and stops itself; the others
// are its copies. The name is in no other place of its record.
const template = "bench-template"

// teams is how many values the label "team" has among the copies.
const teams = 10

// records is a sandboxd that was started upon so many stopped instances, whose
// machines are processes of this host.
type records struct {
	daemon  *rig.Daemon
	dir     string // of the workspace and the loadout
	loadout string
	header  http.Header
	client  *http.Client
}

func newRecordsClient() *records {
	return &records{client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
}

// startRecords has a daemon make one instance and stop it, and copies its
// record, and the files of its machine, while the daemon is down. Close it.
func (b *bench) startRecords(ctx context.Context, n int) (r *records, err error) {
	r = newRecordsClient()
	if r.dir, err = os.MkdirTemp("/var/tmp", "sandbox-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	workspace := filepath.Join(r.dir, "workspace")
	r.loadout = filepath.Join(r.dir, "loadout.yaml")
	text := "apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: bench}\nruntime_options: {kind: host}\n" +
		"image: " + imageName + "\nrunners: [echo]\nworkspace: {path: " + workspace + "}\n"
	if err := errors.Join(os.Mkdir(workspace, 0o755), os.WriteFile(r.loadout, []byte(text), 0o600)); err != nil {
		return r, err
	}
	args := []string{"--enable-host-provider", "--log-level", "warn", "--accelerator", b.accel}
	if r.daemon, err = rig.Start(ctx, rig.Options{Args: args}); err != nil {
		return r, err
	}
	token, err := r.daemon.Token()
	if err != nil {
		return r, err
	}
	r.header = http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}
	if n == 0 {
		return r, nil
	}
	if _, err := r.daemon.Must(ctx, "up", r.loadout, "--name", template); err != nil {
		return r, err
	}
	if _, err := r.daemon.Must(ctx, "stop", template); err != nil {
		return r, err
	}
	if err := r.daemon.Stop(); err != nil {
		return r, err
	}
	if err := multiply(ctx, r.daemon.StateDir, n-1); err != nil {
		return r, fmt.Errorf("cannot copy the record of a stopped instance: %w", err)
	}
	return r, r.daemon.Launch(ctx)
}

// close ends the daemon; what it has left goes with its state directory.
func (r *records) close() error {
	var err error
	if r.daemon != nil {
		err = errors.Join(r.daemon.Stop(), r.daemon.Remove())
	}
	r.client.CloseIdleConnections()
	return errors.Join(err, os.RemoveAll(r.dir))
}

// request does one request and reads its answer, which must be a good one.
func request(ctx context.Context, c *http.Client, method, url string, header http.Header, body string) (http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header = header
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s %s is answered %s: %.300q", method, req.URL.Path, resp.Status, text)
	}
	return resp.Header, text, nil
}

// multiply copies the record of the template n times, and the directory of
// its machine. No daemon may be at work there.
func multiply(ctx context.Context, stateDir string, n int) (err error) {
	db, err := sql.Open("sqlite3", filepath.Join(stateDir, "sandbox.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var id, columns string
	err = db.QueryRowContext(ctx, `SELECT id FROM instances WHERE name = ?`, template).Scan(&id)
	if err == nil {
		err = db.QueryRowContext(ctx, `SELECT group_concat(name) FROM pragma_table_info('instances')`).Scan(&columns)
	}
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing after the commit
	insert, err := tx.PrepareContext(ctx, copyStatement(strings.Split(columns, ",")))
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }() // the transaction's end closes it
	machines := filepath.Join(stateDir, "host", "machines")
	for i := range n {
		fresh, err := instance.NewID()
		if err != nil {
			return err
		}
		c := newCopy(i, fresh.String())
		if _, err := insert.ExecContext(ctx, id, c.id, template, c.name, c.labels); err != nil {
			return err
		}
		if err := copyMachine(machines, id, c); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// recordCopy is what tells a copy from the template.
type recordCopy struct{ id, name, labels string }

func newCopy(i int, id string) recordCopy {
	return recordCopy{id, fmt.Sprintf("agent-%05d", i), fmt.Sprintf(`{"team":"t%d","seat":"s%d"}`, i%teams, i)}
}

// copyStatement copies the row with id ?1 and name ?3 to id ?2 and name ?4,
// with the labels ?5. Wherever else id or name stand in the row, the new ones
// take their place.
func copyStatement(columns []string) string {
	values := slices.Clone(columns)
	for i, c := range columns {
		switch c {
		case "id":
			values[i] = "?2"
		case "name":
			values[i] = "?4"
		case "labels":
			values[i] = "?5"
		case "plan", "handle":
			values[i] = "replace(replace(" + c + ", ?1, ?2), ?3, ?4)"
		}
	}
	return "INSERT INTO instances (" + strings.Join(columns, ", ") + ") SELECT " + strings.Join(values, ", ") +
		" FROM instances WHERE id = ?1"
}

// copyMachine copies what a stopped machine has on disk.
func copyMachine(machines, id string, c recordCopy) error {
	from, to := filepath.Join(machines, id), filepath.Join(machines, c.id)
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := os.Mkdir(filepath.Join(to, e.Name()), 0o700); err != nil {
				return err
			}
			continue
		}
		text, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		text = bytes.ReplaceAll(text, []byte(id), []byte(c.id))
		text = bytes.ReplaceAll(text, []byte(template), []byte(c.name))
		if err := os.WriteFile(filepath.Join(to, e.Name()), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
