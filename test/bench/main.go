// Command bench measures the sandbox against the least that the same work can
// cost on the same host: boots against a bare QEMU, commands against raw vsock
// and against fork and exec in the guest, data against virtio-serial, long lists
// and many watchers against bare servers. It uses the real driver, link and
// images. README.md says how to read what it prints.
//
// Absolute times say more of the host than of us, so nothing is asserted, and
// what counts are ratios of medians between arms that take turns. The exit
// status is 1 when something could not be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/kvm"
	"agentic-sandbox.aiwg.io/sandbox/test/bench/wire"
)

// The sections, in the order in which they are measured: boots come first, and
// nothing else runs beside them.
const (
	sectionBoot = "boot"
	sectionExec = "exec"
	sectionBulk = "bulk"
	sectionSend = "send"
	sectionTick = "event"
	sectionFill = "artifact"

	sectionList   = "list"
	sectionWatch  = "watch"
	sectionMemory = "memory"
)

// options are what the command line says.
type options struct {
	n        int
	mib      int
	artifact int
	only     []string
	json     bool
	verbose  bool
	accel    string
	version  string
	images   string
	guestDir string
	work     string
	python   string
}

// bench is one run of the program.
type bench struct {
	options
	size     uint64 // of one bulk transfer, in bytes
	dir      string // removed at the end
	sandbox  *sandbox
	log      io.Writer
	failures []string
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == probeCommand {
		os.Exit(kvm.ProbeMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, o, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func parse(args []string, w io.Writer) (options, error) {
	o := options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(w)
	f.IntVar(&o.n, "n", 5, fmt.Sprintf("rounds of boots and of bulk; commands have %d times as many", execPerBoot))
	f.IntVar(&o.mib, "size", 32, fmt.Sprintf("MiB of one bulk transfer, a multiple of %d", outputPart))
	f.IntVar(&o.artifact, "artifact", 256, "MiB of one artifact")
	known := []string{sectionBoot, sectionExec, sectionBulk, sectionSend, sectionTick, sectionFill,
		sectionList, sectionWatch, sectionMemory}
	only := f.String("only", strings.Join(known, ","), "what to measure")
	f.BoolVar(&o.json, "json", false, "print JSON with all samples instead of a table")
	f.BoolVar(&o.verbose, "v", false, "show the log of the driver")
	f.StringVar(&o.accel, "accel", "auto", "auto, kvm or tcg")
	f.StringVar(&o.version, "version", unknown, "version of the project, for the report")
	f.StringVar(&o.images, "images", fromEnv("SANDBOX_TEST_IMAGES", ".build/images"), "image store")
	f.StringVar(&o.guestDir, "guest", fromEnv("SANDBOX_TEST_GUEST", ".build/work/guest"), "the guest's kernel and modules")
	f.StringVar(&o.work, "work", ".build/work", "where a fetched kernel module is kept")
	f.StringVar(&o.python, "python", ".build/bench/python", "where the Python peer is installed when it is missing")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.only = strings.Split(*only, ",")
	for _, s := range o.only {
		if !slices.Contains(known, s) {
			return o, fmt.Errorf("cannot measure %q: choose of %s", s, strings.Join(known, ","))
		}
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("cannot use %q: there are only flags", f.Arg(0))
	case o.n < 1 || o.mib < 1 || o.mib%outputPart != 0 || uint64(o.mib)<<20 > wire.MaxSize:
		return o, fmt.Errorf("-n must be at least 1, and -size a multiple of %d, at most %d", outputPart, wire.MaxSize>>20)
	case o.artifact < 1 || uint64(o.artifact)<<20 > wire.MaxSize:
		return o, fmt.Errorf("-artifact must be at least 1, at most %d", wire.MaxSize>>20)
	case o.accel != "auto" && o.accel != "kvm" && o.accel != "tcg":
		return o, fmt.Errorf("cannot use -accel %q: want auto, kvm or tcg", o.accel)
	}
	return o, absolute(&o.images, &o.guestDir, &o.work, &o.python)
}

func fromEnv(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func run(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	b := &bench{options: o, size: uint64(o.mib) << 20, log: stderr}
	if b.dir, err = os.MkdirTemp("", "sandbox-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	// The hypervisor may run as another user, who must get through.
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return err
	}
	level := slog.LevelError
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	if b.sandbox, err = openSandbox(ctx, o, b.dir, log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.sandbox.driver.Close()) }()

	report := Report{Host: stamp(ctx, o.version, b.sandbox.caps, b.sandbox.image.Manifest)}
	if err := b.measure(ctx, &report); err != nil {
		return err
	}
	report.Host.end()
	report.Failures = b.failures
	if o.json {
		err = report.writeJSON(stdout)
	} else {
		err = report.writeTable(stdout)
	}
	if err == nil && len(b.failures) > 0 {
		err = fmt.Errorf("%d things could not be measured", len(b.failures))
	}
	return err
}

// measure does the wanted sections. What fails in one is told in the report;
// an error means that ctx has ended or that there is no machine to measure.
func (b *bench) measure(ctx context.Context, r *Report) error {
	keep := func(s Section, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.fail(fmt.Errorf("%s: %w", s.Name, err))
		}
		r.Sections = append(r.Sections, s)
		return nil
	}
	if slices.Contains(b.only, sectionBoot) {
		if err := keep(b.cold(ctx)); err != nil {
			return err
		}
	}
	if b.wants(sectionExec, sectionBulk, sectionSend, sectionTick, sectionFill) {
		if err := b.guests(ctx, keep); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context) (Section, error)
	}{{sectionList, b.lists}, {sectionWatch, b.fanout}, {sectionMemory, b.memory}} {
		if slices.Contains(b.only, part.name) {
			if err := keep(part.measure(ctx)); err != nil {
				return err
			}
		}
	}
	return nil
}

// guests measures what needs the guest program.
func (b *bench) guests(ctx context.Context, keep func(Section, error) error) error {
	program, err := buildGuest(ctx, b.dir)
	if err != nil {
		return err
	}
	if b.wants(sectionExec, sectionBulk) {
		if err := b.machine(ctx, program, keep); err != nil {
			return err
		}
	}
	if b.wants(sectionSend, sectionTick, sectionFill) {
		return b.daemon(ctx, keep)
	}
	return nil
}

// wants reports whether one of the sections is to be measured.
func (b *bench) wants(sections ...string) bool {
	return slices.ContainsFunc(sections, func(s string) bool { return slices.Contains(b.only, s) })
}

// machine measures what goes into one running machine and out of it.
func (b *bench) machine(ctx context.Context, program []byte, keep func(Section, error) error) error {
	g, err := startGuest(ctx, b.sandbox, program)
	if err != nil {
		return err
	}
	if slices.Contains(b.only, sectionExec) {
		err = keep(b.command(ctx, g))
	}
	if err == nil && slices.Contains(b.only, sectionBulk) {
		err = keep(b.bulk(ctx, g, program))
	}
	return errors.Join(err, g.close(ctx))
}

// fail notes what went wrong; the rest is still worth measuring.
func (b *bench) fail(err error) {
	b.failures = append(b.failures, err.Error())
	b.say("failed: " + err.Error())
}

func (b *bench) say(text string) { fmt.Fprintln(b.log, text) }

// progress tells the newest samples of a round, sparsely.
func (b *bench) progress(section string, round, n int, arms []*arm) {
	if round < 0 || (round+1)%max(1, n/5) != 0 {
		return
	}
	var parts []string
	for _, a := range arms {
		v, ok := a.byRound[round]
		if !ok {
			parts = append(parts, "failed")
			continue
		}
		parts = append(parts, Summary{Unit: a.unit()}.text(v))
	}
	b.say(fmt.Sprintf("%s %d/%d: %s", section, round+1, n, strings.Join(parts, ", ")))
}
