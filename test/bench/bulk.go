package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/images/initramfs"
	"agentic-sandbox.aiwg.io/sandbox/test/bench/wire"
)

// outputPart is what part of the data a run writes: it is the slowest arm by
// far, and a rate needs no more.
const outputPart = 4

// bulk measures how fast data goes into a machine and out of it.
func (b *bench) bulk(ctx context.Context, g *guest, program []byte) (s Section, err error) {
	s = Section{Name: "bulk", Title: fmt.Sprintf("%d MiB each way, checksummed at both ends", b.size>>20)}
	seed := uint64(0)
	next := func() uint64 { seed++; return seed }
	arms := []*arm{
		rateArm("host to guest, vsock", b.size, func(ctx context.Context) (time.Duration, error) {
			return sink(ctx, g.stream, b.size, next())
		}),
		rateArm("guest to host, vsock", b.size, func(ctx context.Context) (time.Duration, error) {
			return source(ctx, g.stream, b.size, next())
		}),
		rateArm("guest to host, output of a run", b.size/outputPart, func(ctx context.Context) (time.Duration, error) {
			return g.give(ctx, b.size/outputPart, next())
		}),
	}
	toGuest, toHost, output := arms[0], arms[1], arms[2]
	pairs := []pair{{"output of a run / vsock, guest to host", output, toHost}}
	serial, err := b.startSerial(ctx, g, program)
	if err != nil {
		s.Notes = append(s.Notes, "virtio-serial is missing, see below")
		b.fail(fmt.Errorf("bulk: virtio-serial: %w", err))
	} else {
		defer func() { err = errors.Join(err, serial.close()) }()
		serialIn := rateArm("host to guest, virtio-serial", b.size, func(ctx context.Context) (time.Duration, error) {
			return sink(ctx, serial.conn, b.size, next())
		})
		serialOut := rateArm("guest to host, virtio-serial", b.size, func(ctx context.Context) (time.Duration, error) {
			return source(ctx, serial.conn, b.size, next())
		})
		arms = []*arm{toGuest, serialIn, toHost, serialOut, output}
		pairs = append([]pair{
			{"vsock / virtio-serial, host to guest", toGuest, serialIn},
			{"vsock / virtio-serial, guest to host", toHost, serialOut},
		}, pairs...)
		pairs = append(pairs, pair{"output of a run / virtio-serial, guest to host", output, serialOut})
	}
	if err := b.rounds(ctx, s.Name, b.n, arms); err != nil {
		return s, err
	}
	took, err := ask(ctx, g.stream, wire.Request{Op: wire.OpSum, Size: b.size})
	if err != nil {
		return s, err
	}
	s.Notes = append(s.Notes, fmt.Sprintf("Making and summing the data in the guest's memory alone runs at %s %s.",
		digits(rate(b.size, took)), unitRate),
		fmt.Sprintf("More is better here. A run writes %d MiB, and counts from its start to its end.", b.size/outputPart>>20))
	return s, s.add(arms, pairs...)
}

// rate is in MiB per second.
func rate(size uint64, took time.Duration) float64 { return float64(size) / (1 << 20) / took.Seconds() }

func rateArm(name string, size uint64, measure func(context.Context) (time.Duration, error)) *arm {
	return &arm{name: name, per: unitRate, measure: func(ctx context.Context) (float64, error) {
		took, err := measure(ctx)
		return rate(size, took), err
	}}
}

// give is data that comes out of a run as its output, as all output does: by a
// pipe, the agent's buffer and gRPC.
func (g *guest) give(ctx context.Context, size, seed uint64) (time.Duration, error) {
	out := output{left: size}
	begin := time.Now()
	_, err := g.carry(ctx, &out, guestPath, "give", strconv.FormatUint(size, 10), strconv.FormatUint(seed, 10))
	took := time.Since(begin)
	if err != nil {
		return 0, err
	}
	return took, out.check()
}

// output takes data and the checksum behind it, in pieces of any size.
type output struct {
	left uint64
	sum  wire.Sum
	end  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	n := len(p)
	data := p[:min(uint64(n), o.left)]
	_, _ = o.sum.Write(data) // never fails
	o.left -= uint64(len(data))
	_, _ = o.end.Write(p[len(data):]) // never fails
	if o.end.Len() > 8 {
		return 0, errors.New("the guest sends more than was asked for")
	}
	return n, nil
}

func (o *output) check() error {
	if o.left > 0 || o.end.Len() != 8 {
		return fmt.Errorf("%d bytes are missing, and of the checksum %d", o.left, 8-o.end.Len())
	}
	return same(o.sum.Value(), binary.LittleEndian.Uint64(o.end.Bytes()))
}

// serial is a bare machine with the guest program as its init and one
// virtio-serial port.
type serial struct {
	dir  string
	qemu *hypervisor
	conn net.Conn
}

func (s *serial) close() error {
	if s.conn != nil {
		_ = s.conn.Close() // its other end goes as well
	}
	if s.qemu != nil {
		s.qemu.kill()
	}
	return os.RemoveAll(s.dir)
}

// startSerial boots the same machine as g's without vsock and without an agent.
func (b *bench) startSerial(ctx context.Context, g *guest, program []byte) (s *serial, err error) {
	archive, err := b.serialInitramfs(ctx, program)
	if err != nil {
		return nil, err
	}
	args, dir, err := g.hypervisor(ctx)
	if err != nil {
		return nil, err
	}
	line, err := bare(args, dir)
	if err != nil {
		return nil, err
	}
	s = &serial{dir: filepath.Join(b.dir, "serial")}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return s, err
	}
	if err := line.prepare(ctx, s.dir, archive); err != nil {
		return s, err
	}
	path := filepath.Join(s.dir, "port.sock")
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return s, err
	}
	defer l.Close()
	args = line.in(s.dir)
	for _, d := range []map[string]string{
		{"driver": "virtio-serial-pci", "id": "serial1", "bus": line.spare, "addr": "0x0"},
		{"driver": "virtserialport", "bus": "serial1.0", "chardev": "port", "name": "bench"},
	} {
		text, err := json.Marshal(d)
		if err != nil {
			return s, err
		}
		args = append(args, "-device", string(text))
	}
	args = append(args, "-chardev", "socket,id=port,path="+path)
	if s.qemu, err = launch(ctx, line.program, args, guestReady); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	// QEMU connects before anything runs in the machine, or ends.
	go func() {
		select {
		case <-s.qemu.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	if s.conn, err = l.Accept(); err != nil {
		return s, errors.Join(err, s.qemu.await(ctx))
	}
	return s, s.qemu.await(ctx)
}

// serialInitramfs is the guest program, the images' modules, and the one more.
func (b *bench) serialInitramfs(ctx context.Context, program []byte) ([]byte, error) {
	parts, err := readParts(b.guestDir)
	if err != nil {
		return nil, err
	}
	driver, err := serialDriver(ctx, parts, filepath.Join(b.work, "bench"), b.say)
	if err != nil {
		return nil, err
	}
	entries := []initramfs.Entry{
		{Name: "init", Mode: 0o755, Data: program},
		{Name: "modules", Mode: 0o755, Dir: true},
		{Name: "modules/99-" + serialModule + ".ko", Mode: 0o644, Data: driver},
	}
	for _, m := range parts.Modules {
		data, err := os.ReadFile(filepath.Join(parts.dir, m))
		if err != nil {
			return nil, fmt.Errorf("cannot find the guest's modules (run: make images): %w", err)
		}
		entries = append(entries, initramfs.Entry{Name: "modules/" + filepath.Base(m), Mode: 0o644, Data: data})
	}
	var archive bytes.Buffer
	err = initramfs.Write(&archive, entries)
	return archive.Bytes(), err
}
