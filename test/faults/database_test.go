package faults

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

func (w *world) database() string { return filepath.Join(w.d.StateDir, "sandbox.db") }

// aside moves the database away, with what lies beside it, and returns a
// function that puts it back.
func (w *world) aside(dir string) (back func()) {
	w.Helper()
	move := func(from, to string) {
		w.Helper()
		all, err := filepath.Glob(filepath.Join(from, "sandbox.db*"))
		w.check(err)
		for _, f := range all {
			w.check(os.Rename(f, filepath.Join(to, filepath.Base(f))))
		}
	}
	move(w.d.StateDir, dir)
	return func() {
		w.Helper()
		for _, name := range []string{"-wal", "-shm"} {
			_, err := os.Stat(w.database() + name)
			w.want(os.IsNotExist(err), "a daemon that refused left sandbox.db%s, which would spoil what is put back", name)
		}
		move(dir, w.d.StateDir)
	}
}

// TestDamagedDatabase starts daemons on databases that were damaged while
// machines run. They refuse, say what to do and change nothing; with the
// database put back all is as it was.
func TestDamagedDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rig.Options{})
	w.create("runs")
	w.create("rests")
	w.want(w.act("rests", "stop").State == "succeeded", "it cannot be stopped")
	damages := map[string]func(data []byte) []byte{
		"garbage in the middle": func(data []byte) []byte {
			third := len(data) / 3
			copy(data[third:2*third], bytes.Repeat([]byte("\xde\xad\xbe\xef"), third/4))
			return data
		},
		"half of it": func(data []byte) []byte { return data[:len(data)/2] },
		"its head":   func(data []byte) []byte { copy(data, "this was once a database"); return data },
		"all of it":  func(data []byte) []byte { return bytes.Repeat([]byte{0x55}, len(data)) },
	}
	for name, damage := range damages {
		w.check(w.d.Stop())
		whole, err := os.ReadFile(w.database())
		w.check(err)
		broken := damage(bytes.Clone(whole))
		w.check(os.WriteFile(w.database(), broken, 0o600))
		w.refused("cannot open database", "sandbox.db", "restore a backup", "nothing was changed")
		now, err := os.ReadFile(w.database())
		w.check(err)
		w.want(bytes.Equal(now, broken), "%s: the refused database was changed", name)
		w.check(os.WriteFile(w.database(), whole, 0o600))
		w.launch()
		w.consistent(name)
	}
	w.works("runs")
	w.works("rests")
}

// missing is what is said of a database that is not the one there was.
const missing = "it was lost, or it "

// TestMissingDatabase takes the database away while machines run.
func TestMissingDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rig.Options{})
	w.create("one")
	w.create("two")

	for _, end := range []func() error{w.d.Stop, w.d.Kill} {
		w.check(end())
		back := w.aside(t.TempDir())
		w.refused(missing, "is new, but", "backup", "--accept-empty-database")
		w.refused(missing) // that an empty one lies there now does not make it right
		w.check(os.Remove(w.database()))
		back()
		w.launch()
		w.consistent("put back")
		w.works("one")
	}

	// An empty file is no database either.
	w.check(w.d.Stop())
	whole, err := os.ReadFile(w.database())
	w.check(err)
	w.check(os.WriteFile(w.database(), nil, 0o600))
	w.refused(missing)
	w.check(os.WriteFile(w.database(), whole, 0o600))
	w.launch()
	w.consistent("filled again")

	// The machines are given up: they stay until somebody removes them.
	w.check(w.d.Stop())
	w.aside(t.TempDir())
	w.again("--accept-empty-database", "--orphan-grace", "1ms")
	w.orphaned(2)
	w.check(w.d.Kill())
	w.launch()
	w.orphaned(2)
	for name, id := range w.held {
		w.want(len(w.agents()[id]) == 1, "the machine of %q is gone", name)
		a := w.ask(http.MethodDelete, "/orphans/"+id, nil, "")
		w.want(a.err == nil && a.status < http.StatusMultipleChoices, "removing an orphan got %s", a)
		delete(w.held, name)
	}
	w.orphaned(0)
	w.consistent("given up")
	w.works("three")
}

// orphaned wants so many machines that no instance knows, and no instance.
func (w *world) orphaned(n int) {
	w.Helper()
	var orphans struct {
		Items []struct {
			ID          string
			Running     bool
			RemoveAfter *time.Time `json:"remove_after"`
		}
	}
	w.read("/orphans", &orphans)
	w.want(len(orphans.Items) == n && len(w.instances()) == 0, "there are the orphans %+v, want %d", orphans.Items, n)
	for _, o := range orphans.Items {
		w.want(o.Running && o.RemoveAfter == nil, "%+v is to be removed by itself", o)
	}
}

// TestReadOnlyDatabase starts a daemon that may not write its database, and
// one that may not write its state directory.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rig.Options{})
	w.create("runs")
	for path, parts := range map[string][]string{
		w.database(): {"cannot open database", "sandbox.db", "read-only", "writable"},
		w.d.StateDir: {"cannot write state directory", w.d.StateDir, "read-only", "--state-dir"},
	} {
		w.check(w.d.Stop())
		thaw := w.freeze(path)
		w.refused(parts...)
		thaw()
		w.launch()
		w.consistent("writable again")
		w.works("runs")
	}
}

// freeze makes a file or a directory read-only, also for root.
func (w *world) freeze(path string) (thaw func()) {
	w.Helper()
	info, err := os.Stat(path)
	w.check(err)
	if os.Getuid() != 0 {
		w.check(os.Chmod(path, info.Mode().Perm()&^0o222))
		return func() { w.check(os.Chmod(path, info.Mode().Perm())) }
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		w.Skipf("cannot mount here (%v): run as a user other than root, or with the right to mount", err)
	}
	thaw = sync.OnceFunc(func() { w.check(unix.Unmount(path, unix.MNT_DETACH)) })
	w.Cleanup(thaw) // runs before the world is removed
	w.check(unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	return thaw
}

// TestLockedDatabase has another program hold the database. Who wants to
// change something is told so, who wants to read is served.
func TestLockedDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rig.Options{})
	w.create("runs")
	free := w.lock()
	asked := make(chan answer, 1)
	go func() { asked <- w.ask(http.MethodPost, "/instances/runs:stop", nil, "") }()
	i, ok := w.find("runs")
	w.want(ok && i.State == "running" && len(w.instances()) == 1, "while the database is locked it is %+v", i)
	a := <-asked
	f := a.problem()
	w.want(a.status == http.StatusServiceUnavailable && f.Code == "store.busy" && strings.Contains(f.Remediation, "another program"),
		"with a locked database the answer is %s", a)
	free()
	w.consistent("free again")
	w.works("runs")
	w.works("late")

	// A kill while nothing can be written, and a start.
	free = w.lock()
	w.check(w.d.Kill())
	started := make(chan error, 1)
	go func() { started <- w.d.Launch(w.wake()) }()
	select {
	case err := <-started:
		if err != nil { // it gave up; then it says why
			w.want(strings.Contains(err.Error(), "sandbox.db") && strings.Contains(err.Error(), "another program"), "the message is %v", err)
		}
		free()
		if err != nil {
			w.launch()
		}
	case <-time.After(patience):
		w.Fatal("a daemon waits for a locked database without an end")
	}
	w.consistent("started while it was locked")
}

// lock takes the place of the one who writes, as SQLite does in write-ahead
// mode: byte 120 of the index, https://www.sqlite.org/walformat.html.
func (w *world) lock() (free func()) {
	w.Helper()
	f, err := os.OpenFile(w.database()+"-shm", os.O_RDWR, 0)
	w.check(err)
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: 120, Len: 1}
	w.until("the lock", func() bool { return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l) == nil })
	free = sync.OnceFunc(func() { w.check(f.Close()) })
	w.Cleanup(free)
	return free
}
