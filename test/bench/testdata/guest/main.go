// Command guest is the benchmark's program in a machine. It does what package
// wire says, over what its first argument names:
//
//	guest vsock            ports of a machine that the agent runs it in
//	guest give SIZE SEED   data to the standard output, then its checksum
//	guest tick N PAUSE     N lines with the monotonic time of their writing
//	guest                  as /init of a bare machine: a virtio-serial port
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/test/bench/wire"
)

// spawned is what OpSpawn runs, the same as the agent is asked to run.
const spawned = "/bin/true"

// serialPorts are the machine's virtio-serial ports, of which there is one. The
// first number is that of the device among all virtio devices.
const serialPorts = "/dev/vport*p*"

// portPatience bounds the wait for the port, which the kernel makes in the
// background once the device is known.
const portPatience = 30 * time.Second

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "bench guest failed:", err)
	if os.Getpid() == 1 {
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	os.Exit(1)
}

func run(args []string) error {
	switch {
	case os.Getpid() == 1:
		return serveSerial()
	case len(args) == 1 && args[0] == "vsock":
		return serveVsock()
	case len(args) == 3 && args[0] == "give":
		return give(args[1], args[2])
	case len(args) == 3 && args[0] == "tick":
		return tick(args[1], args[2])
	}
	return errors.New("want vsock, give SIZE SEED, or tick N PAUSE")
}

func ready() { fmt.Println("bench guest ready") }

func serveVsock() error {
	failed := make(chan error)
	for port, handle := range map[uint32]func(io.ReadWriter) error{
		wire.PortStream: serve,
		wire.PortEcho:   echo,
	} {
		l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, port, nil)
		if err != nil {
			return fmt.Errorf("cannot listen on port %d: %w", port, err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					failed <- err
					return
				}
				go func() {
					if err := errors.Join(handle(c), c.Close()); err != nil {
						fmt.Fprintln(os.Stderr, "bench guest:", err)
					}
				}()
			}
		}()
	}
	ready()
	return <-failed
}

// serve answers requests until the stream ends.
func serve(s io.ReadWriter) error {
	for {
		req, err := wire.ReadRequest(s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		answer, err := do(req, s)
		if err != nil {
			return err
		}
		if err := wire.WriteAnswer(s, answer); err != nil {
			return err
		}
	}
}

func do(req wire.Request, s io.ReadWriter) (uint64, error) {
	switch req.Op {
	case wire.OpSink:
		return wire.Receive(s, req.Size)
	case wire.OpSource:
		return wire.Send(s, req.Size, req.Seed)
	case wire.OpSpawn:
		return spawn()
	case wire.OpSum:
		begin := time.Now()
		_, err := wire.Send(io.Discard, req.Size, req.Seed)
		return uint64(time.Since(begin)), err
	default:
		return 0, fmt.Errorf("cannot do operation %d", req.Op)
	}
}

// spawn is what a command costs when nobody is asked to run it.
func spawn() (uint64, error) {
	begin := time.Now()
	p, err := os.StartProcess(spawned, []string{spawned}, &os.ProcAttr{})
	if err != nil {
		return 0, err
	}
	state, err := p.Wait()
	took := time.Since(begin)
	if err == nil && !state.Success() {
		err = fmt.Errorf("%s: %v", spawned, state)
	}
	return uint64(took), err
}

func echo(s io.ReadWriter) error {
	buf := make([]byte, wire.EchoSize)
	for {
		n, err := s.Read(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := s.Write(buf[:n]); err != nil {
			return err
		}
	}
}

func give(sizeText, seedText string) error {
	size, err := strconv.ParseUint(sizeText, 10, 64)
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(seedText, 10, 64)
	if err != nil {
		return err
	}
	sum, err := wire.Send(os.Stdout, size, seed)
	if err != nil {
		return err
	}
	return wire.WriteAnswer(os.Stdout, sum)
}

// tick writes a line now and then that says when it was written, in nanoseconds
// of the monotonic clock, which all processes of one kernel share.
func tick(countText, pauseText string) error {
	count, err := strconv.Atoi(countText)
	if err != nil {
		return err
	}
	pause, err := time.ParseDuration(pauseText)
	if err != nil {
		return err
	}
	clock := time.NewTicker(pause)
	defer clock.Stop()
	for range count {
		<-clock.C
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return err
		}
		if _, err := fmt.Println("tick", now.Nano()); err != nil {
			return err
		}
	}
	return nil
}

// serveSerial is the whole life of a bare machine.
func serveSerial() error {
	if err := os.MkdirAll("/dev", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("cannot mount /dev: %w", err)
	}
	modules, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(modules)
	for _, path := range modules {
		if err := load(path); err != nil {
			return err
		}
	}
	path, err := awaitFile(serialPorts)
	if err != nil {
		return err
	}
	port, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	ready()
	return serve(port)
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENODEV) {
		err = nil
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot load %q: %w", path, err)
	}
	return nil
}

func awaitFile(pattern string) (string, error) {
	limit := time.NewTimer(portPatience)
	defer limit.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) > 0 {
			return strings.Join(found, " "), err // two would be a mistake, and be told
		}
		select {
		case <-again.C:
		case <-limit.C:
			return "", fmt.Errorf("there is no %q", pattern)
		}
	}
}
