package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/metrics"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/echo"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/signing"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/specs"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
)

// daemon is all parts of one sandboxd, wired.
type daemon struct {
	cfg     config
	log     *slog.Logger
	lock    *dirLock
	tokens  *auth.Tokens
	keys    *signing.Keys
	specs   *specs.Handler
	db      *sqlite.DB
	drivers map[string]vm.Driver
	fleet   *fleet.Fleet
	engine  *engine.Engine
	push    *push.Service // nil: off
	agents  func(url string) http.Handler
	metrics *metrics.Metrics
	health  *health
}

// open makes the parts; nothing works before start.
func open(ctx context.Context, c config, log *slog.Logger) (_ *daemon, err error) {
	d := &daemon{cfg: c, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.lock, err = lockStateDir(c.StateDir); err != nil {
		return nil, err
	}
	if d.tokens, err = auth.Open(c.StateDir); err != nil {
		return nil, err
	}
	d.tokens.Report(func(err error) { log.Error("cannot take the change of tokens", "error", err) })
	if d.keys, err = signing.Open(c.StateDir, log, nil); err != nil {
		return nil, err
	}
	if d.specs, err = specs.New(extensions.Schemas); err != nil {
		return nil, err
	}
	if d.db, err = sqlite.Open(ctx, filepath.Join(c.StateDir, "sandbox.db")); err != nil {
		return nil, err
	}
	images, err := store.Open(c.ImageDir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the image store: %w", err)
	}
	if d.drivers, err = openDrivers(ctx, c, log); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot find the name of this host: %w", err)
	}
	d.fleet = fleet.New(fleet.Config{
		Store: d.db.Fleet(), Keeper: d.db.Fleet(), Images: images,
		Drivers: d.drivers, Default: providerLibvirt, Catalog: catalog.Lookup, Tasks: d.db,
		Log: log, Version: version, Host: host, StateDir: c.StateDir, ImageDir: c.ImageDir, Now: time.Now,
		OrphanGrace: c.Fleet.OrphanGrace, AcceptEmpty: c.Fleet.AcceptEmpty,
		Booted: func(provider, accelerator string, took time.Duration) { d.metrics.Booted(provider, accelerator, took) },
	})
	// The engine must outlive ctx by the drain: what guests say while the
	// daemon ends is still stored.
	d.engine = engine.New(context.WithoutCancel(ctx), c.Surface.engine(engine.Config{
		Journal: d.db, Runs: d.db, Reader: d.db, Prompts: d.db, Guests: guests{d.fleet},
		Runners: c.Conformance.runners(adaptercommand.Runner{}, echo.Runner{}), Log: log,
	}))
	d.agents = func(url string) http.Handler { return agentsHandler(ctx, d, url) }
	d.metrics, d.health = newMetrics(ctx, d), newHealth(d)
	return d, nil
}

// start takes up what earlier daemons left.
func (d *daemon) start(ctx context.Context) error {
	if err := d.fleet.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if err := d.engine.Resume(ctx); err != nil {
		return err
	}
	if d.push != nil {
		if err := d.push.Start(ctx); err != nil { // when the engine knows the tasks again
			return err
		}
	}
	return d.db.Sweep(ctx)
}

// announce tells clients on this host where the daemon is: at the address it
// listens on, whatever proxy others come by.
func (d *daemon) announce(local string) error {
	return localhost.Write(d.cfg.StateDir, localhost.Endpoint{
		URL: local, PublicURL: d.cfg.PublicURL, TokenFile: filepath.Join(d.cfg.StateDir, auth.AdminFile),
		PID: os.Getpid(), Version: version,
	})
}

// close lets go of everything, in the reverse order of use. Machines go on.
func (d *daemon) close() error {
	if d.push != nil {
		d.push.Close()
	}
	if d.engine != nil {
		d.engine.Close()
	}
	if d.fleet != nil {
		d.fleet.Close()
	}
	var errs []error
	for _, driver := range d.drivers {
		errs = append(errs, driver.Close())
	}
	if d.db != nil {
		errs = append(errs, d.db.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close()) // and with it the lock
	}
	return errors.Join(errs...)
}
