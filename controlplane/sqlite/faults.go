package sqlite

import (
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// trouble is a condition of the database that an operator can mend.
type trouble struct{ code, hint string }

// troubles are the conditions, by SQLite's word for them.
func troubles() map[sqlite3.ErrNo]trouble {
	return map[sqlite3.ErrNo]trouble{
		sqlite3.ErrFull: {"store.full", "free space on the disk of the state directory: " +
			"remove instances that you do not need with `sandboxctl rm`"},
		sqlite3.ErrBusy: {"store.busy", "another program holds the database: end it, then try again"},
		sqlite3.ErrLocked: {
			"store.busy", "another program holds the database: end it, then try again",
		},
		sqlite3.ErrReadonly: {"store.read_only", "make the state directory and its files writable for sandboxd, then restart it"},
		sqlite3.ErrCantOpen: {"store.unreachable", "check that the state directory is there and that files can be opened"},
		sqlite3.ErrIoErr:    {"store.io", "check the disk of the state directory: `dmesg` and free space say more"},
		sqlite3.ErrCorrupt: {
			"store.damaged", "stop sandboxd, copy the database away, then restore a backup or try " +
				"`sqlite3 DATABASE .recover | sqlite3 NEW`",
		},
		sqlite3.ErrNotADB: {"store.damaged", "stop sandboxd and restore the database from a backup"},
	}
}

// damagedRow says that a row holds what nobody stored: SQLite checks how rows are
// laid out, not what is in them.
func damagedRow(what string, err error) error {
	return fmt.Errorf("%w: cannot decode %s: %w", errDamaged, what, err)
}

// storeFault makes the errors of SQLite that an operator can mend faults of
// the host. Others, and what is a fault already, stay as they are.
func storeFault(path string, err error) error {
	var lite sqlite3.Error
	var known *instance.Fault
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, errDamaged):
		lite.Code = sqlite3.ErrCorrupt
	case !errors.As(err, &lite):
		return err
	}
	t, ok := troubles()[lite.Code]
	if !ok {
		return err
	}
	return &instance.Fault{
		Blame: instance.Host, Code: t.code, Hint: t.hint,
		Err: fmt.Errorf("database %q: %w", path, err),
	}
}
