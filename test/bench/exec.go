package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/bench/wire"
)

// execPerBoot is how many times more often commands are measured than boots:
// they are shorter, and need more to be told from noise.
const execPerBoot = 20

// command measures a whole command over the link against the least that any
// message to the guest costs, and the least that any command costs there.
func (b *bench) command(ctx context.Context, g *guest) (Section, error) {
	s := Section{Name: "exec", Title: "round trips into one running machine"}
	run := &arm{name: "run /bin/true: start, follow, release", measure: func(ctx context.Context) (float64, error) {
		begin := time.Now()
		_, err := g.carry(ctx, io.Discard, "/bin/true")
		return time.Since(begin).Seconds(), err
	}}
	call := &arm{name: "one empty call on the same link", measure: func(ctx context.Context) (float64, error) {
		begin := time.Now()
		_, err := g.link.ListRuns(ctx)
		return time.Since(begin).Seconds(), err
	}}
	echo := &arm{name: fmt.Sprintf("%d bytes echoed over raw vsock", wire.EchoSize), measure: func(ctx context.Context) (float64, error) {
		return echoOnce(ctx, g.echo)
	}}
	spawn := &arm{name: "fork, exec and wait in the guest", measure: func(ctx context.Context) (float64, error) {
		took, err := ask(ctx, g.stream, wire.Request{Op: wire.OpSpawn})
		return took.Seconds(), err
	}}
	arms := []*arm{run, call, echo, spawn}
	if err := b.rounds(ctx, s.Name, b.n*execPerBoot, arms); err != nil {
		return s, err
	}
	s.Notes = []string{"A run is three calls, a control group and a process; the last arm is measured by the guest's clock."}
	return s, s.add(arms,
		pair{"run / raw vsock echo", run, echo}, pair{"empty call / raw vsock echo", call, echo},
		pair{"run / fork and exec in the guest", run, spawn})
}

func echoOnce(ctx context.Context, s stream) (float64, error) {
	if err := bounded(ctx, s); err != nil {
		return 0, err
	}
	var sent, got [wire.EchoSize]byte
	for i := range sent {
		sent[i] = byte(i)
	}
	begin := time.Now()
	_, err := s.Write(sent[:])
	if err == nil {
		_, err = io.ReadFull(s, got[:])
	}
	took := time.Since(begin)
	if err == nil && sent != got {
		err = errors.New("the echo is not what was sent")
	}
	return took.Seconds(), err
}
