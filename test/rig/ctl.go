package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Result is what one run of sandboxctl gave.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Ctl runs sandboxctl against the daemon. A status other than 0 is no error.
func (d *Daemon) Ctl(ctx context.Context, args ...string) (Result, error) {
	var stdout, stderr bytes.Buffer
	code, err := d.CtlTo(ctx, &stdout, &stderr, args...)
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: code}, err
}

// CtlTo is Ctl with the output going where the caller wants it.
func (d *Daemon) CtlTo(ctx context.Context, stdout, stderr io.Writer, args ...string) (int, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "sandboxctl"), args...)
	cmd.Env = append(os.Environ(), "SANDBOX_SERVER=", "SANDBOX_TOKEN=", "SANDBOX_STATE_DIR="+d.StateDir)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// Must runs sandboxctl and wants status 0.
func (d *Daemon) Must(ctx context.Context, args ...string) (string, error) {
	r, err := d.Ctl(ctx, args...)
	if err != nil {
		return "", err
	}
	if r.Code != 0 {
		return "", fmt.Errorf("sandboxctl %s: status %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout, nil
}

// Token is the administrator's token.
func (d *Daemon) Token() (string, error) {
	b, err := os.ReadFile(filepath.Join(d.StateDir, "admin.token"))
	return strings.TrimSpace(string(b)), err
}
