package kvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test program be its own probe and its own stubborn child.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "kvm-probe":
			os.Exit(ProbeMain())
		case "hang-after-C":
			_, _ = os.Stdout.WriteString("ABC")
			<-make(chan struct{}) // the test's deadline ends it
		case "die-after-C":
			_, _ = os.Stdout.WriteString("ABC")
			os.Exit(3)
		case "lie":
			_, _ = os.Stdout.WriteString("ABCDEFGH\n{\"pass\":true}\n")
			os.Exit(0)
		case "pass":
			_, _ = os.Stdout.WriteString("ABCDEFGHI\n{\"pass\":true}\n")
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func qemu(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("no QEMU; to enable: apt-get install qemu-system-x86")
	}
	return path
}

// The image is right if it passes on a processor that is: the emulated one.
func TestImagePassesUnderEmulation(t *testing.T) {
	o := Options{QEMU: qemu(t), Deadline: 90 * time.Second}
	out, err := o.qemu(t.Context(), "tcg", "max")
	if err != nil {
		t.Fatal(err)
	}
	if v := out.verdict(); !v.Usable || v.Stage != "ABCDEFGHI" || v.Reason != "" {
		t.Errorf("outcome %+v, verdict %+v", out, v)
	}
}

// An old processor without the features a kernel needs is found out.
func TestImageFailsWithoutLongMode(t *testing.T) {
	o := Options{QEMU: qemu(t), Deadline: 90 * time.Second}
	out, err := o.qemu(t.Context(), "tcg", "qemu32")
	if err != nil {
		t.Fatal(err)
	}
	v := out.verdict()
	if v.Usable || v.Stage != "AB" || !strings.Contains(v.Reason, "after stage B (protected mode)") {
		t.Errorf("outcome %+v, verdict %+v", out, v)
	}
}

func TestImageFitsAndLinks(t *testing.T) {
	rom := buildROM()
	if len(rom) != romSize {
		t.Fatalf("image has %d bytes", len(rom))
	}
	for i, b := range rom[0x4000:0xFFF0] {
		if b != 0 {
			t.Fatalf("byte %#x beyond the code is %#x", 0x4000+i, b)
		}
	}
}

// The emitter's bytes must be those of the mnemonics beside them; objdump is
// the judge, and finds no byte that is no instruction.
func TestImageDisassembles(t *testing.T) {
	objdump, err := exec.LookPath("objdump")
	if err != nil {
		t.Skip("no objdump; to enable: apt-get install binutils")
	}
	a := newAsm()
	a.real()
	a.protected()
	protected := a.labels["protected"]
	a.long()
	long := a.labels["long"]
	a.faults()
	a.timer()
	a.user()
	a.handlers()
	end := len(a.code)
	a.tables()
	file := filepath.Join(t.TempDir(), "rom")
	if err := os.WriteFile(file, a.link(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		mode       string
		start, end int
		want       []string
	}{
		{"i8086", 0, protected, []string{"lgdtl", "ljmpl"}},
		{"i386", protected, long, []string{"rep stos", "wrmsr", "ljmp"}},
		{"i386:x86-64", long, end, []string{"ltr", "int3", "invlpg", "hlt", "iretq", "syscall"}},
	} {
		out, err := exec.CommandContext(t.Context(), objdump, "-D", "-b", "binary", "-m", part.mode,
			"--start-address", address(part.start), "--stop-address", address(part.end), file).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if strings.Contains(string(out), "(bad)") {
			t.Errorf("%s holds what is no instruction:\n%s", part.mode, out)
		}
		for _, w := range part.want {
			if !strings.Contains(string(out), w) {
				t.Errorf("%s has no %q:\n%s", part.mode, w, out)
			}
		}
	}
}

func TestVerdictExplains(t *testing.T) {
	for _, c := range []struct {
		name string
		out  outcome
		want string // part of the reason; "" is usable
	}{
		{"all", outcome{letters: "ABCDEFGHI", pass: true}, ""},
		{"fault", outcome{letters: "ABC", trouble: "KVM internal error"}, "faults after stage C (long mode), at \"breakpoint"},
		{"hang", outcome{letters: "ABCDE", late: true}, "hangs after stage E"},
		{"nothing", outcome{late: true}, "hangs before its first stage"},
		{"setup", outcome{setup: true, trouble: "cannot create machine"}, "cannot be set up"},
		{"pass without the stages", outcome{letters: "ABC", pass: true}, "after stage C"},
		{"noise", outcome{letters: "ABCDEFGHIZ", pass: true}, "after stage I"},
		{"out of order", outcome{letters: "ACBDEFGHI", pass: true}, "after stage A"},
		{"slow", outcome{letters: "ABCDEFGHI", trouble: "instructions are emulated"}, "instructions are emulated"},
	} {
		v := c.out.verdict()
		if v.Usable != (c.want == "") || !strings.Contains(v.Reason, c.want) {
			t.Errorf("%s: %+v", c.name, v)
		}
		if !v.Usable && v.Reason == "" {
			t.Errorf("%s: no reason", c.name)
		}
	}
}

func TestNoDevice(t *testing.T) {
	v, err := Prove(t.Context(), Options{Device: filepath.Join(t.TempDir(), "kvm"), QEMU: "/nonexistent"})
	if err != nil || v.Usable || !strings.Contains(v.Reason, "there is no ") || v.Remedy == "" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestUnopenable(t *testing.T) {
	v := unopenable("/dev/kvm", &fs.PathError{Op: "open", Path: "/dev/kvm", Err: unix.EACCES})
	if v.Usable || !strings.Contains(v.Reason, "permission denied") || !strings.Contains(v.Remedy, "usermod -aG kvm") {
		t.Errorf("%+v", v)
	}
	v = unopenable("/dev/kvm", &fs.PathError{Op: "open", Path: "/dev/kvm", Err: unix.ENODEV})
	if v.Usable || v.Reason == "" {
		t.Errorf("%+v", v)
	}
}

// fakeDevice is a file that can be opened and answers no ioctl.
func fakeDevice(t *testing.T) string {
	t.Helper()
	dev := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(dev, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dev
}

func TestDeviceThatIsNone(t *testing.T) {
	v, err := Prove(t.Context(), Options{Device: fakeDevice(t), ProbeCommand: []string{self(t), "kvm-probe"}, Deadline: time.Minute})
	if err != nil || v.Usable || !strings.Contains(v.Reason, "cannot be set up") {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestStubbornChildren(t *testing.T) {
	for name, want := range map[string]string{
		"hang-after-C": "hangs after stage C",
		"die-after-C":  "faults after stage C",
		"lie":          "after stage H",
	} {
		t.Run(name, func(t *testing.T) {
			deadline := time.Minute
			if strings.HasPrefix(name, "hang") {
				deadline = time.Second
			}
			dir := t.TempDir()
			o := Options{Device: fakeDevice(t), ProbeCommand: []string{self(t), name}, CacheDir: dir, BootID: "boot", Deadline: deadline}
			v, err := Prove(t.Context(), o)
			if err != nil || v.Usable || !strings.Contains(v.Reason, want) {
				t.Errorf("%+v, %v", v, err)
			}
			// What may be the fault of a busy host is not kept.
			_, kept := readCache(dir, o.key())
			if kept == strings.HasPrefix(name, "hang") {
				t.Errorf("kept is %v", kept)
			}
		})
	}
}

func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := Prove(ctx, Options{Device: fakeDevice(t), ProbeCommand: []string{self(t), "hang-after-C"}, Deadline: time.Hour})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("answers %v", err)
	}
}

func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "cache")
	binary := filepath.Join(t.TempDir(), "qemu")
	script := "#!/bin/sh\nprintf ABCDEFGHI; echo >>" + binary + ".runs; exit 99\n"
	if err := os.WriteFile(binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	runs := func() int {
		b, err := os.ReadFile(binary + ".runs")
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	o := Options{Device: fakeDevice(t), QEMU: binary, CacheDir: dir, BootID: "one", Deadline: time.Minute}
	prove := func(o Options, wantRuns int) {
		t.Helper()
		v, err := Prove(t.Context(), o)
		if err != nil || !v.Usable || v.Stage != "ABCDEFGHI" {
			t.Errorf("%+v, %v", v, err)
		}
		if n := runs(); n != wantRuns {
			t.Errorf("QEMU ran %d times, want %d", n, wantRuns)
		}
	}
	prove(o, 1)
	prove(o, 1)
	next := o
	next.BootID = "two"
	prove(next, 2)
	if err := os.WriteFile(binary, []byte(script+"# newer\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	prove(next, 3)
	next.ProbeCommand = []string{self(t), "pass"}
	prove(next, 4)
	if err := os.WriteFile(filepath.Join(dir, cacheName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	prove(next, 5)
}

// Whatever this host has, both ways must come to a verdict, to the same one,
// and in time.
func TestThisHost(t *testing.T) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		t.Skip("no /dev/kvm; to enable: modprobe kvm_intel or kvm_amd")
	}
	ways := map[string]Options{
		"ioctl": {ProbeCommand: []string{self(t), "kvm-probe"}},
		"qemu":  {QEMU: qemu(t)},
	}
	verdicts := map[string]Verdict{}
	for name, o := range ways {
		o.Deadline = 30 * time.Second
		v, err := Prove(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %+v", name, v)
		if !v.Usable && v.Reason == "" {
			t.Errorf("%s: no reason", name)
		}
		verdicts[name] = v
	}
	if verdicts["ioctl"].Usable != verdicts["qemu"].Usable {
		t.Errorf("the ways disagree: %+v", verdicts)
	}
}

func address(n int) string { return fmt.Sprintf("%#x", n) }
