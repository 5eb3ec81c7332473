package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sampleReport(t *testing.T) Report {
	t.Helper()
	whole := &arm{name: "sandbox", byRound: map[int]float64{0: 2.5, 1: 2, 2: 3}}
	plain := &arm{name: "bare QEMU", byRound: map[int]float64{0: 2, 2: 2}, failed: 1}
	boot := Section{Name: "boot", Title: "cold boot", Notes: []string{"A note."}}
	if err := boot.add([]*arm{whole, plain}, pair{"sandbox / bare QEMU", whole, plain}); err != nil {
		t.Fatal(err)
	}
	boot.Phases = phases([]bootSample{
		{total: 2 * time.Second, spans: []span{{"create", 500 * time.Microsecond}, {"kernel to /init", time.Second}}},
		{total: 3 * time.Second, spans: []span{{"create", 600 * time.Microsecond}, {"kernel to /init", 2 * time.Second}}},
	})
	vsock := &arm{name: "vsock", per: unitRate, byRound: map[int]float64{0: 32.04, 1: 1234}}
	bulk := Section{Name: "bulk", Title: "32 MiB"}
	if err := bulk.add([]*arm{vsock}); err != nil {
		t.Fatal(err)
	}
	return Report{
		Host: Host{
			Time: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), Version: "v1", OS: "Debian", Kernel: "6.1", Virt: "none",
			CPU: "a processor", CPUs: 2, Governor: "performance", Memory: 8 << 30, Go: "go1.25",
			Accelerator: "tcg", AcceleratorReason: "no /dev/kvm", Vsock: "vhost-vsock",
			Versions: map[string]string{"qemu": "7.2", "libvirt": "9.0.0"}, Image: "minimal@sha256:0", GuestKernel: "6.1",
			KernelSum: "00112233445566778899", Initramfs: "ffeeddccbbaa99887766",
			LoadBefore: "0.1 0.2 0.3", LoadAfter: "2.5 1 1", Stolen: .015, Took: 90 * time.Second,
		},
		Sections: []Section{boot, bulk},
		Failures: []string{"boot: bare QEMU: no luck"},
	}
}

func TestTable(t *testing.T) {
	r := sampleReport(t)
	var got bytes.Buffer
	if err := r.writeTable(&got); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/table.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("testdata/table.txt (-want +got):\n%s", diff)
	}
}

// TestJSON: whoever computes with the report finds everything in it again.
func TestJSON(t *testing.T) {
	r := sampleReport(t)
	var text bytes.Buffer
	if err := r.writeJSON(&text); err != nil {
		t.Fatal(err)
	}
	var back Report
	d := json.NewDecoder(&text)
	d.DisallowUnknownFields()
	if err := d.Decode(&back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back, cmp.AllowUnexported(Host{}, ticks{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		2.5: "2.50 s", 12.345: "12.3 s", 123.4: "123 s", .0123: "12.3 ms", .000945: "945 µs", -.02: "-20.0 ms", 0: "0 µs",
	} {
		if got := seconds(v); got != want {
			t.Errorf("seconds(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{.4039: "0.404", 1.066: "1.07", 35.91: "35.9", 999.7: "1000", 1234.5: "1234"} {
		if got := digits(v); got != want {
			t.Errorf("digits(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	t.Setenv("SANDBOX_TEST_IMAGES", "/built/images")
	var said bytes.Buffer
	o, err := parse([]string{"-n", "3", "-only", "exec,bulk", "-size", "8"}, &said)
	if err != nil || o.n != 3 || o.mib != 8 || o.images != "/built/images" || !filepath.IsAbs(o.work) ||
		strings.Join(o.only, "+") != "exec+bulk" {
		t.Errorf("options are %+v, %v", o, err)
	}
	for _, bad := range [][]string{
		{"-only", "sleep"}, {"-n", "0"}, {"-size", "0"}, {"-size", "16388"}, {"-size", "6"}, {"-artifact", "0"}, {"-accel", "xen"}, {"more"}, {"-nope"},
	} {
		if _, err := parse(bad, &said); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestGuestGives runs the real program of the guest, here.
func TestGuestGives(t *testing.T) {
	dir := t.TempDir()
	if _, err := buildGuest(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	o := output{left: 3 << 20}
	give := exec.CommandContext(t.Context(), filepath.Join(dir, "guest"), "give", "3145728", "7")
	give.Stdout = &o
	if err := give.Run(); err != nil {
		t.Fatal(err)
	}
	if err := o.check(); err != nil {
		t.Error(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "guest"), "tick", "3", "1ms").Output()
	var stamps []int64
	for line := range strings.Lines(string(out)) {
		stamp, perr := tickOf(strings.TrimSpace(line))
		if perr != nil {
			t.Error(perr)
		}
		stamps = append(stamps, stamp)
	}
	if err != nil || len(stamps) != 3 || !slices.IsSorted(stamps) || stamps[0] <= 0 {
		t.Errorf("ticks %v, %v", stamps, err)
	}
	if err := exec.CommandContext(t.Context(), filepath.Join(dir, "guest"), "take").Run(); err == nil {
		t.Error("a guest that cannot do what it is asked for ends well")
	}
}
