package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// mostFills bounds the rounds: each leaves an artifact on the disk.
const mostFills = 3

func (b *bench) artifactSize() uint64 { return uint64(b.artifact) << 20 } //nolint:gosec // checked to be positive

// fills measures how fast what a command writes becomes an artifact, against
// the same bytes over a stream to somebody who drops them, or writes them to a
// file.
func (b *bench) fills(ctx context.Context, h *hosted) (Section, error) {
	size := b.artifactSize()
	s := Section{Name: sectionFill, Title: fmt.Sprintf("%d MiB of a command's output", b.artifact)}
	seed := uint64(0)
	checked := false
	task := rateArm("to the end of its task, as an artifact", size, func(ctx context.Context) (time.Duration, error) {
		seed++
		took, id, err := h.agent.fill(ctx, size, seed)
		if err == nil && !checked { // reading it all takes as long again
			err = h.agent.checkFill(ctx, id, size)
			checked = true
		}
		return took, err
	})
	stream := rateArm("over a unix stream, dropped", size, func(ctx context.Context) (time.Duration, error) {
		seed++
		return b.bareFill(ctx, size, seed, "")
	})
	file := rateArm("over a unix stream, to a file, flushed", size, func(ctx context.Context) (time.Duration, error) {
		seed++
		return b.bareFill(ctx, size, seed, filepath.Join(h.daemon.StateDir, "bare-fill"))
	})
	arms := []*arm{task, stream, file}
	if err := b.rounds(ctx, s.Name, min(b.n, mostFills), arms); err != nil {
		return s, err
	}
	s.Notes = []string{"More is better. The artifact is on disk, hashed, and can be fetched when its task has ended."}
	return s, s.add(arms, pair{"artifact / unix stream", task, stream}, pair{"artifact / unix stream to a file", task, file})
}

// fill has a command write, and returns how long its task took.
func (t target) fill(ctx context.Context, size, seed uint64) (took time.Duration, taskID string, err error) {
	begin := time.Now()
	a, err := t.send(ctx, adapterMessage(fmt.Sprintf("give %d %d", size, seed)))
	return time.Since(begin), a.Task.ID, err
}

// checkFill fetches what was written and checks it.
func (t target) checkFill(ctx context.Context, taskID string, size uint64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url+"/tasks/"+taskID+"/artifacts/stdout", http.NoBody)
	if err != nil {
		return err
	}
	req.Header = t.header
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	out := output{left: size}
	_, err = io.Copy(&out, resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("the artifact is answered %s", resp.Status))
	}
	return errors.Join(err, resp.Body.Close(), out.check())
}

// bareFill is fill without anything in between: the program's output is one
// end of a pair of unix sockets.
func (b *bench) bareFill(ctx context.Context, size, seed uint64, path string) (took time.Duration, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot make a stream: %w", err)
	}
	mine, its := os.NewFile(uintptr(pair[0]), "stream"), os.NewFile(uintptr(pair[1]), "stream") //nolint:gosec // descriptors
	defer func() { err = errors.Join(err, mine.Close()) }()
	out := output{left: size}
	sink := io.Writer(&out)
	var file *os.File
	if path != "" {
		if file, err = os.Create(path); err != nil {
			return 0, errors.Join(err, its.Close())
		}
		defer func() { err = errors.Join(err, file.Close(), os.Remove(path)) }()
		sink = io.MultiWriter(&out, file)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.dir, "guest"), "give", strconv.FormatUint(size, 10), strconv.FormatUint(seed, 10))
	cmd.Stdout = its
	begin := time.Now()
	err = cmd.Start()
	if err := errors.Join(err, its.Close()); err != nil { // ours: the program has its own
		return 0, err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{sink}, struct{ io.Reader }{mine}, make([]byte, 64<<10))
	if file != nil {
		err = errors.Join(err, file.Sync())
	}
	took = time.Since(begin)
	return took, errors.Join(err, cmd.Wait(), out.check())
}
