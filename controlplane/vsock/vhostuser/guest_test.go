package vhostuser

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
)

// Ports of testdata/guest.
const (
	portEcho = 1001 + iota
	portSink
	portSource
	portSlow
	portClose
	portCall
	portHalf
	portReboot
	portTake
	portGive
)

// TestRealGuest boots Linux in QEMU and puts the device under load. One
// machine serves all steps: they come in an order and leave it usable.
func TestRealGuest(t *testing.T) {
	d := newDevice(t)
	m := boot(t)
	m.plug(d.cfg.Socket)
	must(t, d.WaitReady(within(t)))
	m.waitConsole(within(t), "GUEST READY")
	for _, step := range []struct {
		name string
		run  func(*testing.T, *Device, *machine)
	}{
		{"echo", realEcho},
		{"ports", realPorts},
		{"half close", realHalfClose},
		{"guest calls", realGuestCalls},
		{"hybrid", realHybrid},
		{"parallel", realParallel},
		{"slow readers", realSlowReaders},
		{"connects", realConnects},
		{"stop and cont", realStopCont},
		{"replug", realReplug},
		{"reset", realReset},
		{"killed", realKilled},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, d, m) }) {
			t.Fatalf("console:\n%s", m.text())
		}
		if s := d.Stats(); s.Breaches != 0 || s.Halts != 0 || s.Dropped != 0 {
			t.Errorf("after %s: %+v", step.name, s)
		}
	}
	t.Logf("stats: %+v", d.Stats())
}

func realEcho(t *testing.T, d *Device, _ *machine) {
	c := dial(t, d, portEcho)
	for _, size := range []int{1, 64, 4 << 10, 64 << 10} {
		for range 5 {
			roundTrip(t, c, string(bytes.Repeat([]byte("e"), size)))
		}
	}
}

func realPorts(t *testing.T, d *Device, _ *machine) {
	if _, err := d.Dial(within(t), 4000); !errors.Is(err, vsock.ErrRefused) {
		t.Errorf("dial to a port without listener: %v, want ErrRefused", err)
	}
	for range 20 {
		c, err := d.Dial(within(t), portClose)
		must(t, err)
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read from a closed connection: %d, %v", n, err)
		}
		must(t, c.Close())
	}
}

// sinkInto writes data to a sink port and compares what the guest got.
func sinkInto(t *testing.T, d *Device, port uint32, size int, seed byte) {
	c, err := d.Dial(within(t), port)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = c.Close() }()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
	if _, err := c.Write(data); err != nil {
		t.Errorf("write: %v", err)
	}
	if err := c.(halfCloser).CloseWrite(); err != nil {
		t.Errorf("half close: %v", err)
	}
	sum := sha256.Sum256(data)
	want := append(binary.LittleEndian.AppendUint64(nil, uint64(size)), sum[:]...)
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
		t.Errorf("guest got something else: %x, %v, want %x", got, err, want)
	}
}

// drainFrom reads from the source port and compares with what the guest sent.
func drainFrom(t *testing.T, d *Device, size int, seed byte) {
	c, err := d.Dial(within(t), portSource)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = c.Close() }()
	req := binary.LittleEndian.AppendUint64(nil, uint64(size))
	if _, err := c.Write(append(req, seed, 0, 0, 0, 0, 0, 0, 0)); err != nil {
		t.Errorf("write: %v", err)
	}
	data, err := io.ReadAll(c)
	if err != nil || len(data) != size+32 {
		t.Errorf("%d bytes of %d, %v", len(data), size+32, err)
		return
	}
	if sum := sha256.Sum256(data[:size]); !bytes.Equal(sum[:], data[size:]) {
		t.Error("data arrived changed")
	}
}

func realHalfClose(t *testing.T, d *Device, m *machine) {
	sinkInto(t, d, portSink, 1<<20, 1) // our half, then the answer
	c := dial(t, d, portHalf)
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("read after half close: %d, %v", n, err)
	}
	data := bytes.Repeat([]byte("h"), 1<<20)
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	must(t, c.Close())
	m.waitConsole(within(t), fmt.Sprintf("HALF %d %x", len(data), sha256.Sum256(data)))
}

func realGuestCalls(t *testing.T, d *Device, _ *machine) {
	l, err := d.Listen(2000)
	must(t, err)
	serve(t, l, echo)
	for range 5 {
		c := dial(t, d, portCall)
		_, err := c.Write(binary.LittleEndian.AppendUint32(nil, 2000))
		must(t, err)
		roundTrip(t, c, "from the guest to the host and back")
		must(t, c.Close())
	}
	c := dial(t, d, portCall)
	_, err = c.Write(binary.LittleEndian.AppendUint32(nil, 2001))
	must(t, err)
	answer, err := io.ReadAll(c)
	if err != nil || !bytes.Contains(answer, []byte("reset")) {
		t.Errorf("guest's dial to a port without listener: %q, %v", answer, err)
	}
}

func realHybrid(t *testing.T, d *Device, _ *machine) {
	way := vsock.Hybrid(d.cfg.Hybrid)
	c, err := way.Dial(within(t), portEcho)
	must(t, err)
	roundTrip(t, c, "by the other socket")
	must(t, c.(*net.UnixConn).CloseWrite())
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read after half close: %d, %v", n, err)
	}
	must(t, c.Close())
	if _, err := way.Dial(within(t), 4000); !errors.Is(err, vsock.ErrRefused) {
		t.Errorf("dial to a port without listener: %v, want ErrRefused", err)
	}
}

func realParallel(t *testing.T, d *Device, _ *machine) {
	var tasks sync.WaitGroup
	for i := range 16 {
		tasks.Go(func() { sinkInto(t, d, portSink, 1<<20, byte(i)) })
		tasks.Go(func() { drainFrom(t, d, 1<<20, byte(i)) })
	}
	tasks.Wait()
}

func realSlowReaders(t *testing.T, d *Device, _ *machine) {
	var tasks sync.WaitGroup
	for i := range 4 {
		tasks.Go(func() { sinkInto(t, d, portSlow, 512<<10, byte(i)) })
	}
	// A slow reader here, which the guest must not fill beyond its credit.
	idle := dial(t, d, portSource)
	_, err := idle.Write(append(binary.LittleEndian.AppendUint64(nil, 2<<20), make([]byte, 8)...))
	must(t, err)
	c := dial(t, d, portEcho)
	for range 50 {
		roundTrip(t, c, "not held up")
	}
	tasks.Wait()
	if n, err := io.Copy(io.Discard, idle); err != nil || n != 2<<20+32 {
		t.Errorf("late reader got %d bytes, %v", n, err)
	}
}

func realConnects(t *testing.T, d *Device, _ *machine) {
	for range 200 {
		c, err := d.Dial(within(t), portEcho)
		must(t, err)
		roundTrip(t, c, "x")
		must(t, c.Close())
	}
	eventually(t, "end of all connections", func() bool { return d.Stats().Conns == 0 })
}

func realStopCont(t *testing.T, d *Device, m *machine) {
	c := dial(t, d, portEcho)
	roundTrip(t, c, "before")
	m.qmp("stop", object{})
	eventually(t, "pause", func() bool { return !d.Connected() })
	_, err := io.WriteString(c, "meanwhile")
	must(t, err)
	dialed := make(chan error, 1)
	before := d.Stats().Dialed
	go func() {
		c, err := d.Dial(within(t), portEcho)
		if err == nil {
			err = c.Close()
		}
		dialed <- err
	}()
	eventually(t, "queued dial", func() bool { return d.Stats().Dialed > before })
	m.qmp("cont", object{})
	got := make([]byte, len("meanwhile"))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "meanwhile" {
		t.Fatalf("after cont: %q, %v", got, err)
	}
	must(t, <-dialed)
	roundTrip(t, c, "after")
}

func realReplug(t *testing.T, d *Device, m *machine) {
	for i := range 5 {
		idle, busy := dial(t, d, portEcho), dial(t, d, portSource)
		roundTrip(t, idle, "before")
		_, err := busy.Write(append(binary.LittleEndian.AppendUint64(nil, 1<<30), make([]byte, 8)...))
		must(t, err)
		if _, err := io.ReadFull(busy, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			d.DropAll()
		}
		m.unplug(within(t))
		for _, c := range []net.Conn{idle, busy} {
			if _, err := io.Copy(io.Discard, c); !errors.Is(err, vsock.ErrDown) || !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("plug %d: stream ends with %v, want ErrDown", i, err)
			}
		}
		if _, err := d.Dial(within(t), portEcho); !errors.Is(err, vsock.ErrNotReady) {
			t.Fatalf("dial while unplugged: %v, want ErrNotReady", err)
		}
		m.plug(d.cfg.Socket)
		start := time.Now()
		must(t, d.WaitReady(within(t)))
		roundTrip(t, dial(t, d, portEcho), "after")
		t.Logf("plug %d: answered %v after device_add", i, time.Since(start).Round(time.Millisecond))
	}
}

func realReset(t *testing.T, d *Device, m *machine) {
	c := dial(t, d, portEcho)
	roundTrip(t, c, "before")
	var tasks sync.WaitGroup
	tasks.Go(func() {
		// The answer may or may not come out before the reset does.
		if c, err := d.Dial(within(t), portReboot); err == nil {
			_ = c.Close()
		} else if !errors.Is(err, vsock.ErrNotReady) {
			t.Errorf("dial overtaken by a reset: %v, want ErrNotReady", err)
		}
	})
	m.event(within(t), "RESET")
	d.DropAll()
	tasks.Wait()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) {
		t.Errorf("read after reset: %v", err)
	}
	eventually(t, "echo after reboot", func() bool {
		c, err := d.Dial(within(t), portEcho)
		if err != nil {
			return false
		}
		roundTrip(t, c, "after")
		return c.Close() == nil
	})
}

func realKilled(t *testing.T, d *Device, m *machine) {
	c := dial(t, d, portEcho)
	roundTrip(t, c, "before")
	must(t, m.cmd.Process.Kill())
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) {
		t.Errorf("read after kill: %v", err)
	}
	if _, err := c.Write(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) {
		t.Errorf("write after kill: %v", err)
	}
}
