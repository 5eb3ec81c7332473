package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A sample of events is so many lines, written so far apart.
const (
	tickCount = 100
	tickPause = 20 * time.Millisecond
)

// events measures how long a line that a command writes is on its way to
// whoever follows its task, against whoever reads its pipe.
func (b *bench) events(ctx context.Context, h *hosted) (Section, error) {
	s := Section{Name: sectionTick, Title: fmt.Sprintf("a line on its way, of %d lines every %v", tickCount, tickPause)}
	stream := quantileArm("from the command's write to the stream's reader", tickCount, h.agent.ticks)
	pipe := quantileArm("from the same program's write to the reader of its pipe", tickCount, b.pipeTicks)
	arms := []*arm{stream, pipe}
	if err := b.rounds(ctx, s.Name, b.n, arms); err != nil {
		return s, err
	}
	s.Notes = []string{"Both ends are on one clock: the machine is a process of this host. Each sample is a quantile of its lines."}
	return s, s.add(withTwins(arms), pair{"stream / pipe: p50", stream, pipe}, pair{"stream / pipe: p99", stream.twin, pipe.twin})
}

func tickArguments() []string { return []string{"tick", strconv.Itoa(tickCount), tickPause.String()} }

// ticks runs the program as a task, follows it and returns how long each line
// took, in seconds.
func (t target) ticks(ctx context.Context) (took []float64, err error) {
	resp, err := t.post(ctx, "/message:stream", adapterMessage(strings.Join(tickArguments(), " ")))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	var rest []byte
	r := bufio.NewReaderSize(resp.Body, 1<<20)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return took, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the stream: %w", err)
		}
		now, err := monotonic()
		if err != nil {
			return nil, err
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		var event struct {
			ArtifactUpdate struct {
				Artifact struct{ Parts []struct{ Text string } }
			}
		}
		if err := json.Unmarshal(data, &event); err != nil {
			return nil, fmt.Errorf("cannot read an event: %w", err)
		}
		for _, p := range event.ArtifactUpdate.Artifact.Parts {
			rest = append(rest, p.Text...)
		}
		for {
			line, more, ok := bytes.Cut(rest, []byte("\n"))
			if !ok {
				break
			}
			if took, err = addTick(took, string(line), now); err != nil {
				return nil, err
			}
			rest = more
		}
	}
}

// pipeTicks is ticks of the program alone.
func (b *bench) pipeTicks(ctx context.Context) (took []float64, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.dir, "guest"), tickArguments()...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	for err == nil && lines.Scan() {
		var now int64
		if now, err = monotonic(); err == nil {
			took, err = addTick(took, lines.Text(), now)
		}
	}
	return took, errors.Join(err, lines.Err(), cmd.Wait())
}

func addTick(took []float64, line string, now int64) ([]float64, error) {
	at, err := tickOf(line)
	if err != nil {
		return nil, err
	}
	return append(took, time.Duration(now-at).Seconds()), nil
}

// tickOf is when a line was written, in nanoseconds of the monotonic clock.
func tickOf(line string) (int64, error) {
	stamp, ok := strings.CutPrefix(line, "tick ")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("the program writes %.100q", line)
	}
	return at, nil
}

func monotonic() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano(), err
}
