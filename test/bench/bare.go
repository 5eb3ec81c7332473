package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// bareLine is the command line of a machine of the driver's without what only
// libvirt can use: the same machine, but started by nobody but us. It is made
// from a real one, so that it cannot lag behind what the driver does.
type bareLine struct {
	program string
	args    []string
	dir     string // of the machine it was taken from
	// initramfs and overlay are paths below dir; base is what the overlay
	// stands on.
	initramfs, overlay, base string
	// spare is a root port that nothing is plugged into.
	spare string
}

// console is the device behind the guest's serial port.
const console = "charserial0"

// device is the part of a -device or -blockdev argument we look at.
type device struct {
	Driver   string
	ID       string
	Bus      string
	Filename string
}

// bare takes a command line of the driver's apart.
func bare(line []string, dir string) (bareLine, error) {
	if len(line) == 0 {
		return bareLine{}, errors.New("cannot use an empty command line")
	}
	b := bareLine{program: line[0], dir: dir}
	var ports []string
	used := map[string]bool{}
	for i := 1; i < len(line); i++ {
		option := line[i]
		if !strings.HasPrefix(option, "-") {
			return bareLine{}, fmt.Errorf("cannot read QEMU's command line at %q", option)
		}
		value, has := "", i+1 < len(line) && !strings.HasPrefix(line[i+1], "-")
		if has {
			i++
			value = line[i]
		}
		var d device
		if strings.HasPrefix(value, "{") {
			if err := json.Unmarshal([]byte(value), &d); err != nil {
				return bareLine{}, fmt.Errorf("cannot read QEMU's option %s %q: %w", option, value, err)
			}
		}
		used[d.Bus] = true
		switch {
		case d.Driver == "pcie-root-port":
			ports = append(ports, d.ID)
		case option == "-initrd":
			b.initramfs = value
		case option == "-blockdev" && d.Driver == "file" && strings.HasPrefix(d.Filename, dir+"/"):
			b.overlay = d.Filename
		case option == "-blockdev" && d.Driver == "file":
			b.base = d.Filename
		}
		if value, keep := bareOption(option, value, d); keep {
			b.args = append(b.args, option)
			if has {
				b.args = append(b.args, value)
			}
		}
	}
	if i := slices.IndexFunc(ports, func(p string) bool { return !used[p] }); i >= 0 {
		// The last one: the driver plugs into the first.
		for _, p := range ports[i:] {
			if !used[p] {
				b.spare = p
			}
		}
	}
	return b, b.check()
}

// bareOption says what becomes of an option of libvirt's.
func bareOption(option, value string, d device) (string, bool) {
	switch {
	case option == "-S", option == "-mon", option == "-add-fd", option == "-uuid",
		// Nobody here would end a QEMU that outlives its guest.
		option == "-no-shutdown",
		// Passwords of disks, of which there are none.
		option == "-object" && strings.Contains(value, `"secret"`),
		option == "-chardev" && strings.Contains(value, "id=charmonitor"),
		strings.HasPrefix(d.Driver, "vhost-vsock"):
		return "", false
	case option == "-name":
		return "sandbox-bench-bare", true
	case option == "-chardev" && strings.Contains(value, "id="+console):
		return "stdio,signal=off,id=" + console, true
	}
	return value, true
}

func (b bareLine) check() error {
	for what, found := range map[string]string{
		"initramfs": b.initramfs, "overlay": b.overlay, "root disk": b.base, "free root port": b.spare,
	} {
		if found == "" {
			return fmt.Errorf("cannot start the same machine without libvirt: no %s in %q", what, b.args)
		}
	}
	for _, a := range b.args {
		if strings.Contains(a, "/dev/fdset/") || strings.Contains(a, "fd=") || strings.Contains(a, `fd":`) {
			return fmt.Errorf("cannot start the same machine without libvirt: %q is about an open file of libvirt's", a)
		}
	}
	return nil
}

// in is the command line for a machine whose files are in another directory.
func (b bareLine) in(dir string) []string {
	var args []string
	for _, a := range b.args {
		args = append(args, strings.ReplaceAll(a, b.dir, dir))
	}
	return args
}

// path is where a file of the machine's is when its directory is dir.
func (b bareLine) path(file, dir string) string {
	return filepath.Join(dir, strings.TrimPrefix(file, b.dir+"/"))
}

// prepare makes the machine's files in dir: initramfs is the archive's content.
func (b bareLine) prepare(ctx context.Context, dir string, initramfs []byte) error {
	if err := os.WriteFile(b.path(b.initramfs, dir), initramfs, 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2",
		"-b", b.base, b.path(b.overlay, dir)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot make an overlay: %w: %s", err, out)
	}
	return nil
}

// hypervisor is a QEMU process of ours. Kill it.
type hypervisor struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	ready  chan struct{} // closed when the console has shown the line
	done   chan struct{} // closed when the process has ended

	mu   sync.Mutex
	tail []string // end of the console and of what QEMU says
}

// tailLines is how many lines are kept for an error.
const tailLines = 20

// launch starts QEMU; ready is a line that the guest writes to its console.
func launch(ctx context.Context, program string, args []string, ready string) (*hypervisor, error) {
	ctx, cancel := context.WithCancel(ctx)
	h := &hypervisor{cancel: cancel, ready: make(chan struct{}), done: make(chan struct{})}
	h.cmd = exec.CommandContext(ctx, program, args...)
	out, in, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, err
	}
	h.cmd.Stdout, h.cmd.Stderr = in, in
	// A session of its own, as libvirt gives to machines: the scheduler may
	// share out the processors by session.
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = h.cmd.Start()
	_ = in.Close() // QEMU has its own
	if err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("cannot start QEMU: %w", err), out.Close())
	}
	go h.read(out, ready)
	return h, nil
}

func (h *hypervisor) read(r io.ReadCloser, ready string) {
	defer close(h.done)
	seen := false
	for s := bufio.NewScanner(r); s.Scan(); {
		if !seen && strings.Contains(s.Text(), ready) {
			seen = true
			close(h.ready)
		}
		h.mu.Lock()
		h.tail = append(h.tail, s.Text())
		h.tail = h.tail[max(0, len(h.tail)-tailLines):]
		h.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r) // after a line that is too long
	_ = r.Close()
	_ = h.cmd.Wait() // how it ended is in its state
}

// await waits until the guest has said that it is ready.
func (h *hypervisor) await(ctx context.Context) error {
	var err error
	select {
	case <-h.ready:
		return nil
	case <-h.done:
		err = fmt.Errorf("QEMU ended before the guest was ready: %v", h.cmd.ProcessState)
	case <-ctx.Done():
		err = ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Errorf("%w\nconsole: %q", err, h.tail)
}

func (h *hypervisor) kill() {
	h.cancel()
	<-h.done
}
