package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// startReady starts a whole sandboxd that boots machines, for an arm of the
// boots. Close it.
func (b *bench) startReady(ctx context.Context) (*rig.Daemon, error) {
	d, err := rig.Start(ctx, rig.Options{Images: b.sandbox.store, Args: []string{"--log-level", "warn", "--accelerator", b.accel}})
	if err != nil {
		return nil, fmt.Errorf("cannot measure a whole sandboxd: %w", err)
	}
	return d, nil
}

// readyOnce has a machine of the loadout "minimal" made, from the request to
// the end of its operation, and removes it.
func readyOnce(ctx context.Context, d *rig.Daemon) (took time.Duration, err error) {
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		_, gone := d.Must(clean, "rm", "bench")
		err = errors.Join(err, gone)
	}()
	begin := time.Now()
	_, err = d.Must(ctx, "up", imageName, "--name", "bench")
	return time.Since(begin), err
}
