package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/images/initramfs"
)

// readyLine is what the agent writes to the console when it listens.
const readyLine = "sandbox-agent ready"

// span is a named part of one boot.
type span struct {
	name string
	took time.Duration
}

// bootSample is one boot of the driver's, in parts that add up to the whole.
type bootSample struct {
	total, afterCreate time.Duration
	spans              []span
}

// cold measures boots until the agent has answered against a bare QEMU with
// the same kernel, initramfs, disk and machine until the agent listens.
func (b *bench) cold(ctx context.Context) (s Section, err error) {
	s = Section{Name: "boot", Title: fmt.Sprintf("cold boot of image %q, %d CPU, %d MiB", imageName, machineCPUs, machineMemory>>20)}
	var (
		line    bareLine
		last    bootSample
		samples []bootSample
	)
	whole := &arm{name: "sandbox: create to agent answered"}
	later := &arm{name: "sandbox: start to agent answered", byRound: map[int]float64{}}
	plain := &arm{name: "bare QEMU: process to agent listens"}
	whole.measure = func(ctx context.Context) (float64, error) {
		var err error
		if last, line, err = b.bootOnce(ctx); err != nil {
			return 0, err
		}
		samples = append(samples, last)
		return last.total.Seconds(), nil
	}
	arms := []*arm{whole, plain}
	pairs := []pair{{"sandbox from create / bare QEMU", whole, plain}, {"sandbox from start / bare QEMU", later, plain}}
	if d, err := b.startReady(ctx); err != nil {
		b.fail(fmt.Errorf("%s: %w", s.Name, err))
	} else {
		defer func() { err = errors.Join(err, d.Stop(), d.Remove()) }()
		plane := &arm{name: "sandboxd: create to ready", measure: func(ctx context.Context) (float64, error) {
			took, err := readyOnce(ctx, d)
			return took.Seconds(), err
		}}
		arms = append(arms, plane)
		pairs = append(pairs, pair{"sandboxd, create to ready / bare QEMU", plane, plain})
	}
	plain.measure = func(ctx context.Context) (float64, error) {
		took, err := b.bootBare(ctx, line)
		return took.Seconds(), err
	}
	if err := b.rounds(ctx, s.Name, b.n, arms); err != nil {
		return s, err
	}
	if len(samples) > len(whole.byRound) {
		samples = samples[1:] // the one for warming up
	}
	for i, round := range slices.Sorted(maps.Keys(whole.byRound)) {
		later.byRound[round] = samples[i].afterCreate.Seconds()
	}
	s.Phases = phases(samples)
	s.Notes = []string{
		"Neither overlay nor initramfs of the bare machine counts: they are made before its process starts.",
		"sandboxd's machine is of the loadout \"minimal\", the same; create to ready is sandboxctl up, from its start to its end.",
		"firmware is what lies between the machine's start and the kernel's clock, placed by the uptime in the agent's answer.",
	}
	return s, s.add(slices.Insert(arms, 1, later), pairs...)
}

// bootOnce boots one machine and removes it.
func (b *bench) bootOnce(ctx context.Context) (sample bootSample, line bareLine, err error) {
	m, t, err := b.sandbox.boot(ctx)
	if err != nil {
		return sample, line, err
	}
	defer func() { err = errors.Join(err, m.close(ctx)) }()
	args, dir, err := m.hypervisor(ctx)
	if err != nil {
		return sample, line, err
	}
	if line, err = bare(args, dir); err != nil {
		return sample, line, err
	}
	h := m.link.Hello()
	up := h.GetUptime().AsDuration()
	sample = bootSample{total: t.answered.Sub(t.begin), afterCreate: t.answered.Sub(t.created)}
	sample.spans = []span{
		{"create: overlay, initramfs", t.created.Sub(t.begin)},
		{"start: libvirt, plug, resume", t.started.Sub(t.created)},
		{"firmware", t.answered.Sub(t.started) - up},
	}
	at := time.Duration(0)
	for i, mark := range h.GetBootMarks() {
		name := "agent: " + mark.GetName()
		if i == 0 {
			name = "kernel to /init"
		}
		sample.spans = append(sample.spans, span{name, mark.GetSinceKernel().AsDuration() - at})
		at = mark.GetSinceKernel().AsDuration()
	}
	sample.spans = append(sample.spans, span{"link: listening to answered", up - at})
	return sample, line, nil
}

// phases summarizes the spans of several boots.
func phases(samples []bootSample) []Phase {
	var all []Phase
	if len(samples) == 0 {
		return nil
	}
	for i, first := range samples[0].spans {
		var took, share []float64
		for _, s := range samples {
			if i < len(s.spans) && s.spans[i].name == first.name {
				took = append(took, s.spans[i].took.Seconds())
				share = append(share, s.spans[i].took.Seconds()/s.total.Seconds())
			}
		}
		slices.Sort(took)
		slices.Sort(share)
		all = append(all, Phase{
			Name: first.name, Median: median(took), Share: median(share), Min: took[0], Max: took[len(took)-1],
		})
	}
	return all
}

// bootBare starts the same machine by itself and waits until its agent listens.
func (b *bench) bootBare(ctx context.Context, line bareLine) (took time.Duration, err error) {
	if line.program == "" {
		return 0, errors.New("no machine of the driver's has been started whose command line could be taken")
	}
	id, err := instance.NewID()
	if err != nil {
		return 0, err
	}
	config, err := bootConfig(id)
	if err != nil {
		return 0, err
	}
	dir := filepath.Join(b.dir, "bare-"+id.String())
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	base, err := os.ReadFile(b.sandbox.image.Initramfs)
	if err != nil {
		return 0, err
	}
	base = append(base, make([]byte, (4-len(base)%4)%4)...)
	if err := line.prepare(ctx, dir, append(base, initramfs.BootConfigSegment(config)...)); err != nil {
		return 0, err
	}
	begin := time.Now()
	h, err := launch(ctx, line.program, line.in(dir), readyLine)
	if err != nil {
		return 0, err
	}
	defer h.kill()
	if err := h.await(ctx); err != nil {
		return 0, err
	}
	return time.Since(begin), nil
}
