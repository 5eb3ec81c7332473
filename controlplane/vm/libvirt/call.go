package libvirt

import (
	"context"
	"errors"
	"fmt"

	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// errClosed is returned by everything after Close.
var errClosed = errors.New("driver is closed")

// call runs f, which calls libvirt and cannot be interrupted, and stops
// waiting when ctx ends. What f then still does is lost, so only questions and
// repeatable commands may go this way. Close waits for f.
func (d *Driver) call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !d.spawn(func() { done <- f() }) {
		return errClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withDomain runs f on the machine's domain.
func (d *Driver) withDomain(id instance.ID, f func(*lv.Domain) error) error {
	dom, err := d.session.conn.LookupDomainByUUIDString(string(id))
	if err != nil {
		return fmt.Errorf("cannot find domain: %w", err)
	}
	defer func() { _ = dom.Free() }()
	return f(dom)
}

// noDomain reports whether an error says that the domain does not exist, or
// exists no longer.
func noDomain(err error) bool {
	var e lv.Error
	return errors.As(err, &e) && e.Code == lv.ERR_NO_DOMAIN
}

// ended reports whether an error says that the domain does not run.
func notRunning(err error) bool {
	var e lv.Error
	return errors.As(err, &e) && (e.Code == lv.ERR_NO_DOMAIN || e.Code == lv.ERR_OPERATION_INVALID)
}

// state asks for a domain's state. libvirt answers from memory.
func (d *Driver) state(id instance.ID) (state lv.DomainState, reason int, err error) {
	err = d.withDomain(id, func(dom *lv.Domain) error {
		var err error
		state, reason, err = dom.GetState()
		return err
	})
	return state, reason, err
}
