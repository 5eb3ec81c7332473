package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const recordedDir = "/state/machines/01a22cd2-ca53-747d-b18b-42de86172705"

// recorded is a command line that libvirt 9.0 really used, a part on each line.
func recorded(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/libvirt.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// TestBare: the bare machine is the same but for what only libvirt can use.
func TestBare(t *testing.T) {
	line, err := bare(recorded(t), recordedDir)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/bare.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(line.in("/own"), "\n") + "\n"
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("testdata/bare.txt (-want +got):\n%s", diff)
	}
	if line.program != "/usr/bin/qemu-system-x86_64" || line.spare != "pci.8" || line.base != "/images/root" ||
		line.path(line.overlay, "/own") != "/own/overlay.qcow2" || line.path(line.initramfs, "/own") != "/own/initramfs" {
		t.Errorf("line is %+v", line)
	}
}

// TestBareRefuses: a machine that would not be the same is not measured.
func TestBareRefuses(t *testing.T) {
	kernelVsock := append(recorded(t), "-device", `{"driver":"vhost-vsock-pci","id":"vsock0","guest-cid":3,"vhostfd":"31","bus":"pci.3"}`)
	line, err := bare(kernelVsock, recordedDir)
	if err != nil || strings.Contains(strings.Join(line.args, " "), "vsock") {
		t.Errorf("the kernel's vsock device: %v", err)
	}
	for name, args := range map[string][]string{
		"nothing":             nil,
		"no option":           {"qemu", "drive"},
		"another directory":   append([]string{"qemu"}, recorded(t)[1:20]...),
		"a file of libvirt's": append(recorded(t), "-netdev", "tap,fd=33,id=net0"),
		"broken JSON":         append(recorded(t), "-device", `{"driver":`),
	} {
		if line, err := bare(args, recordedDir); err == nil {
			t.Errorf("%s gives %q", name, line.args)
		}
	}
}

// shell stands for a QEMU whose guest writes to its console.
func shell(ctx context.Context, t *testing.T, script string) *hypervisor {
	t.Helper()
	h, err := launch(ctx, "/bin/sh", []string{"-c", script}, "ready")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.kill)
	return h
}

func TestLaunch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h := shell(ctx, t, "echo booting; echo it is ready; exec sleep 1000")
	if err := h.await(ctx); err != nil {
		t.Error(err)
	}
	h.kill()
	if s := h.cmd.ProcessState; s == nil || s.Success() {
		t.Errorf("after kill: %v", s)
	}
	err := shell(ctx, t, "echo panic >&2; exit 3").await(ctx)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "panic") {
		t.Errorf("an early end gives %v", err)
	}
	silent := shell(ctx, t, "echo hello; exec sleep 1000")
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := silent.await(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent guest gives %v", err)
	}
	if _, err := launch(ctx, "/nonexistent/qemu", nil, "ready"); err == nil {
		t.Error("a program that is not there was started")
	}
}

// TestOutput: the output of a run comes in pieces of any size, and everything
// that is wrong with it is seen.
func TestOutput(t *testing.T) {
	data := []byte("some data of a guest's")
	var sum output
	sum.left = uint64(len(data))
	_, _ = sum.Write(data)
	var sent bytes.Buffer
	sent.Write(data)
	for v := sum.sum.Value(); sent.Len() < len(data)+8; v >>= 8 {
		sent.WriteByte(byte(v))
	}
	take := func(stream []byte, piece int) error {
		o := &output{left: uint64(len(data))}
		if _, err := io.CopyBuffer(struct{ io.Writer }{o}, struct{ io.Reader }{bytes.NewReader(stream)}, make([]byte, piece)); err != nil {
			return err
		}
		return o.check()
	}
	for _, piece := range []int{1, 3, 8, 25, 1000} {
		if err := take(sent.Bytes(), piece); err != nil {
			t.Errorf("in pieces of %d: %v", piece, err)
		}
	}
	flipped := bytes.Clone(sent.Bytes())
	flipped[3] ^= 1
	for name, bad := range map[string][]byte{
		"changed": flipped, "cut": sent.Bytes()[:10], "without checksum": data, "with more": append(sent.Bytes(), 0),
	} {
		if err := take(bad, 7); err == nil {
			t.Errorf("data %s is not seen", name)
		}
	}
}
