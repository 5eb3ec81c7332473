package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// program is a client that is a program of its own. What it is told goes to
// its standard input, so that the token is in no argument and no environment.
type program struct {
	path string
	args []string
}

// javascript is the client in JavaScript. Node.js looks for modules beside the
// file that imports them, so its files go to a place with the modules in it.
func javascript(t *testing.T, dir string) program {
	t.Helper()
	work := t.TempDir()
	files, err := filepath.Glob("js/*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "js", "node_modules"), filepath.Join(work, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return program{path: filepath.Join(dir, "bin", "node"), args: []string{filepath.Join(work, "client.mjs")}}
}

func (p program) run(ctx context.Context, s setup, report func(result), restart func() error) error {
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	told := json.NewEncoder(in)
	err = told.Encode(s)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for err == nil && lines.Scan() {
		var r result
		switch err = json.Unmarshal(lines.Bytes(), &r); {
		case err != nil:
			err = fmt.Errorf("cannot read %.200q: %w", lines.Text(), err)
		case r.Barrier != "":
			if err = restart(); err == nil {
				err = told.Encode("restarted")
			}
		default:
			report(r)
		}
	}
	if err == nil {
		err = lines.Err()
	}
	if err != nil {
		_ = cmd.Process.Kill()
	}
	if waitErr := cmd.Wait(); err == nil {
		err = waitErr
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	return nil
}
