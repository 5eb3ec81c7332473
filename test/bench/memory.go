package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const idlePackage = "agentic-sandbox.aiwg.io/sandbox/test/bench/testdata/idle"

const unitMemory = "MiB"

// residence is how many instances a sandboxd has whose memory is looked at.
type residence struct {
	stopped, running int
	arm              *arm
}

func residences() []residence {
	return []residence{{}, {stopped: 10}, {stopped: 100}, {stopped: 1000}, {running: 1}, {running: 10}}
}

func (r residence) String() string {
	switch {
	case r.running > 0:
		return fmt.Sprintf("sandboxd, %d running", r.running)
	case r.stopped > 0:
		return fmt.Sprintf("sandboxd, %d stopped", r.stopped)
	}
	return "sandboxd, no instance"
}

// memory measures what of sandboxd is resident, by how many instances it has,
// against an HTTP server that does nothing.
func (b *bench) memory(ctx context.Context) (s Section, err error) {
	s = Section{Name: sectionMemory, Title: "resident memory of sandboxd, newly started, by its instances"}
	program := filepath.Join(b.dir, "idle")
	if out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", program, idlePackage).CombinedOutput(); err != nil {
		return s, fmt.Errorf("cannot build the idle server: %w\n%s", err, out)
	}
	all := residences()
	var arms []*arm
	for i := range all {
		one := &all[i]
		r, err := b.startRecords(ctx, one.stopped)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		if err := r.daemon.Stop(); err != nil {
			return s, err
		}
		one.arm = &arm{name: one.String(), per: unitMemory, measure: func(ctx context.Context) (float64, error) {
			return r.resident(ctx, one.running)
		}}
		arms = append(arms, one.arm)
	}
	idle := &arm{name: "idle net/http server", per: unitMemory, measure: func(ctx context.Context) (float64, error) {
		return idleResident(ctx, program)
	}}
	arms = append(arms, idle)
	if err := b.rounds(ctx, s.Name, b.n, arms); err != nil {
		return s, err
	}
	var pairs []pair
	for _, r := range all {
		pairs = append(pairs, pair{r.String() + " / idle server", r.arm, idle})
	}
	s.Notes = append(s.Notes, "Instances are processes of the host, whose own memory does not count. Read after one list.")
	s.Notes = append(s.Notes, perInstance(all)...)
	return s, s.add(arms, pairs...)
}

// perInstance divides what instances add to the median of a daemon without.
func perInstance(all []residence) (notes []string) {
	base := all[0].arm.values()
	for _, r := range all[1:] {
		with := r.arm.values()
		if len(base) == 0 || len(with) == 0 {
			continue
		}
		more := (median(with) - median(base)) * (1 << 20) / float64(max(r.stopped, r.running))
		spread := (with[len(with)-1] - with[0] + base[len(base)-1] - base[0]) * (1 << 20) / float64(max(r.stopped, r.running))
		notes = append(notes, fmt.Sprintf("%s: %.0f bytes for each instance, give or take %.0f.", r, more, spread/2))
	}
	return notes
}

// resident starts the daemon, has it make instances, and reads its memory.
func (r *records) resident(ctx context.Context, running int) (mib float64, err error) {
	if err := r.daemon.Launch(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.daemon.Stop()) }()
	for i := range running {
		name := "running-" + strconv.Itoa(i)
		if _, err := r.daemon.Must(ctx, "up", r.loadout, "--name", name); err != nil {
			return 0, err
		}
		defer func() {
			_, gone := r.daemon.Must(context.WithoutCancel(ctx), "rm", name)
			err = errors.Join(err, gone)
		}()
	}
	if _, _, err := request(ctx, r.client, http.MethodGet, r.daemon.URL+"/api/v1/instances", r.header, ""); err != nil {
		return 0, err
	}
	return residentOf(r.daemon.Pid())
}

// idleResident is resident of the idle server.
func idleResident(ctx context.Context, program string) (mib float64, err error) {
	cmd := exec.CommandContext(ctx, program)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the idle server does not start: %w", err)
	}
	url := strings.TrimPrefix(strings.TrimSpace(line), "serving ")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if _, _, err := request(ctx, client, http.MethodGet, url, http.Header{}, ""); err != nil {
		return 0, err
	}
	return residentOf(cmd.Process.Pid)
}

func residentOf(pid int) (mib float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return residentIn(string(status))
}

// residentIn reads a process's status, as proc(5) has it, in MiB.
func residentIn(status string) (mib float64, err error) {
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" && f[2] == "kB" {
			kib, err := strconv.ParseUint(f[1], 10, 64)
			return float64(kib) / 1024, err
		}
	}
	return 0, errors.New("a process's status does not say how much is resident")
}
