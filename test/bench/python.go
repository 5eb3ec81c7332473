package main

import (
	"bufio"
	"context"
	_ "embed" // the peer is a program in a file
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// requirements are what the Python peer is made of, at its best: with the event
// loop and the HTTP parser that are written in C.
func requirements() []string {
	return []string{"a2a-sdk[http-server,sqlite]==1.3.0", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0"}
}

//go:embed testdata/peer.py
var peerProgram string

// installLimit and readyLimit bound the installation of the peer and its start.
const (
	installLimit = 10 * time.Minute
	readyLimit   = 2 * time.Minute
)

// python is an environment with the SDK.
type python struct {
	program  string
	versions string
}

// preparePython makes the environment in dir if it is not there. It is made
// beside and gets its name when it is whole.
func preparePython(ctx context.Context, dir string, say func(string)) (python, error) {
	p := python{program: filepath.Join(dir, "bin", "python"), versions: strings.Join(requirements(), ", ")}
	stamp := filepath.Join(dir, "requirements.txt")
	want := strings.Join(requirements(), "\n") + "\n"
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
		return p, nil
	}
	say("installing the Python SDK into " + dir + " for the comparison")
	ctx, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	if err := os.RemoveAll(dir); err != nil {
		return p, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return p, err
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", dir},
		append([]string{p.program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"}, requirements()...),
	} {
		out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput() //nolint:gosec // no input of anybody
		if err != nil {
			return p, fmt.Errorf("cannot install it (%s): %w: %s", strings.Join(args[:3], " "), err, lastLine(out))
		}
	}
	return p, os.WriteFile(stamp, []byte(want), 0o600)
}

// lastLine is where programs say what is wrong.
func lastLine(out []byte) string {
	text := strings.TrimSpace(string(out))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// peer is a server of the SDK.
type peer struct {
	url  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// serve starts a server with a store, memory or sqlite. Kill it.
func (p python) serve(ctx context.Context, store, dir string) (*peer, error) {
	program := filepath.Join(dir, "peer.py")
	if err := os.WriteFile(program, []byte(peerProgram), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(p.program, program, store, filepath.Join(dir, "peer.db")) //nolint:noctx // it is killed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                         // as sandboxd is
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &peer{cmd: cmd, done: make(chan struct{})}
	ready := make(chan string, 1)
	go func() {
		defer close(s.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if url, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
				ready <- url
			}
		}
		_ = cmd.Wait() // it is killed, or has said why it ended
	}()
	limit := time.NewTimer(readyLimit)
	defer limit.Stop()
	select {
	case s.url = <-ready:
		return s, nil
	case <-s.done:
		return nil, fmt.Errorf("it ended: %s", lastLine([]byte(said.String())))
	case <-limit.C:
		err = fmt.Errorf("it was not ready within %v", readyLimit)
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.kill()
	return nil, err
}

func (s *peer) kill() {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return // nothing is left to try
	}
	<-s.done
}
