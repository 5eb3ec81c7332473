package vhostuser

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/internal/fakeguest"
)

var variants = map[string]fakeguest.Options{
	"plain":    {},
	"all":      {EventIdx: true, Indirect: true},
	"event":    {EventIdx: true},
	"indirect": {Indirect: true},
	"small":    {RxSize: 300, EventIdx: true},
}

// pair makes the two ends of one connection.
func pair(t *testing.T, d *Device, g *fakeguest.Guest, fromGuest bool) (net.Conn, net.Conn) {
	t.Helper()
	var l net.Listener
	var err error
	var here net.Conn
	if fromGuest {
		if l, err = d.Listen(7); err != nil {
			t.Fatal(err)
		}
		here, err = g.Dial(within(t), 7)
	} else {
		if l, err = g.Listen(7); err != nil {
			t.Fatal(err)
		}
		here, err = d.Dial(within(t), 7)
	}
	must(t, err)
	there, err := l.Accept()
	must(t, err)
	must(t, l.Close())
	return here, there
}

func TestNetConn(t *testing.T) {
	for name, opts := range variants {
		for _, fromGuest := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
					d, g := newPair(t, opts)
					a, b := pair(t, d, g, fromGuest)
					return a, b, func() {
						_ = a.Close()
						_ = b.Close()
						g.Crash()
						_ = d.Close()
					}, nil
				})
			})
		}
	}
}

func TestRefusedPort(t *testing.T) {
	d, g := newPair(t, variants["all"])
	if _, err := d.Dial(within(t), 99); !errors.Is(err, vsock.ErrRefused) {
		t.Errorf("dial to a port without listener: %v, want ErrRefused", err)
	}
	if _, err := g.Dial(within(t), 99); !errors.Is(err, vsock.ErrRefused) {
		t.Errorf("dial by the guest to a port without listener: %v, want ErrRefused", err)
	}
}

func TestDialBeforeTheGuestIsThere(t *testing.T) {
	d, g := newDevice(t), newGuest(t, variants["all"])
	if _, err := d.Dial(within(t), 7); !errors.Is(err, vsock.ErrNotReady) {
		t.Errorf("dial before plug: %v, want ErrNotReady", err)
	}
	must(t, g.Plug(d.cfg.Socket))
	if _, err := d.Dial(within(t), 7); !errors.Is(err, vsock.ErrNotReady) {
		t.Errorf("dial before the driver starts: %v, want ErrNotReady", err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- d.WaitReady(within(t)) }()
	must(t, g.Start())
	must(t, <-waiting)
}

// exchange sends random data both ways at once, each way ended by half close,
// and compares checksums.
func exchange(t *testing.T, a, b net.Conn, size int, seed uint64) {
	var tasks sync.WaitGroup
	var sent, got [2][32]byte
	send := func(c net.Conn, i int) {
		src := rand.NewChaCha8([32]byte{byte(seed), byte(i)})
		data := make([]byte, size)
		_, _ = src.Read(data)
		sent[i] = sha256.Sum256(data)
		if _, err := c.Write(data); err != nil {
			t.Errorf("write %d: %v", i, err)
		}
		if err := c.(halfCloser).CloseWrite(); err != nil {
			t.Errorf("half close %d: %v", i, err)
		}
	}
	receive := func(c net.Conn, i int) {
		h := sha256.New()
		n, err := io.Copy(h, c)
		if err != nil || n != int64(size) {
			t.Errorf("read %d: %d bytes of %d, %v", i, n, size, err)
		}
		copy(got[i][:], h.Sum(nil))
	}
	tasks.Go(func() { send(a, 0) })
	tasks.Go(func() { send(b, 1) })
	tasks.Go(func() { receive(b, 0) })
	tasks.Go(func() { receive(a, 1) })
	tasks.Wait()
	if sent != got {
		t.Error("data arrived changed")
	}
}

func TestParallelStreams(t *testing.T) {
	for name, opts := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			size := 1 << 20
			d, g := newPair(t, opts)
			serveGuest(t, g, 7, func(c net.Conn) {
				var id [4]byte
				if _, err := io.ReadFull(c, id[:]); err != nil {
					t.Error(err)
					return
				}
				h := sha256.New()
				n, err := io.Copy(h, c)
				if err != nil {
					t.Error(err)
				}
				_, _ = c.Write(h.Sum(binary.LittleEndian.AppendUint64(nil, uint64(n))))
			})
			var tasks sync.WaitGroup
			for i := range 16 {
				tasks.Go(func() {
					c, err := d.Dial(within(t), 7)
					if err != nil {
						t.Error(err)
						return
					}
					defer func() { _ = c.Close() }()
					data := make([]byte, size)
					_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(data)
					_, _ = c.Write([]byte{byte(i), 0, 0, 0})
					if _, err := c.Write(data); err != nil {
						t.Error(err)
					}
					_ = c.(halfCloser).CloseWrite()
					answer, err := io.ReadAll(c)
					sum := sha256.Sum256(data)
					if err != nil || !bytes.Equal(answer, append(binary.LittleEndian.AppendUint64(nil, uint64(size)), sum[:]...)) {
						t.Errorf("stream %d: answer of %d bytes, %v", i, len(answer), err)
					}
				})
			}
			tasks.Wait()
			a, b := pair(t, d, g, true)
			exchange(t, a, b, size, 1)
			_, _ = a.Close(), b.Close()
			eventually(t, "end of all connections", func() bool { return d.Stats().Conns == 0 })
			if s := d.Stats(); s.Breaches != 0 || s.Halts != 0 || s.Dropped != 0 {
				t.Errorf("two ends of our own broke the protocol: %+v", s)
			}
		})
	}
}

func TestBuffersForOneByte(t *testing.T) {
	d, g := newPair(t, fakeguest.Options{RxSize: 45})
	a, b := pair(t, d, g, false)
	exchange(t, a, b, 8<<10, 3)
}

func TestHalfCloseByGuestThenDataByHost(t *testing.T) {
	d, g := newPair(t, variants["all"])
	a, b := pair(t, d, g, false)
	must(t, b.(halfCloser).CloseWrite())
	if n, err := a.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("read after half close: %d, %v", n, err)
	}
	data := bytes.Repeat([]byte("x"), 1<<20)
	go func() {
		_, _ = a.Write(data)
		_ = a.(halfCloser).CloseWrite()
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes after half close, %v", len(got), err)
	}
}

func TestEverythingWrittenBeforeCloseArrives(t *testing.T) {
	d, g := newPair(t, variants["all"])
	data := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)
	for _, fromGuest := range []bool{false, true} {
		for range 20 {
			a, b := pair(t, d, g, fromGuest)
			if _, err := a.Write(data); err != nil {
				t.Fatal(err)
			}
			must(t, a.Close())
			got, err := io.ReadAll(b)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("fromGuest=%v: %d of %d bytes, %v", fromGuest, len(got), len(data), err)
			}
			must(t, b.Close())
		}
	}
}

func TestGuestSpeaksAndClosesAtOnce(t *testing.T) {
	d, g := newPair(t, variants["all"])
	serveGuest(t, g, 7, func(c net.Conn) { _, _ = io.WriteString(c, "bye") })
	for range 100 {
		c, err := d.Dial(within(t), 7)
		must(t, err)
		if got, err := io.ReadAll(c); string(got) != "bye" || err != nil {
			t.Fatalf("read %q, %v", got, err)
		}
		must(t, c.Close())
	}
}

func TestWriterLearnsThatNobodyReads(t *testing.T) {
	d, g := newPair(t, variants["all"])
	for _, fromGuest := range []bool{false, true} {
		a, b := pair(t, d, g, fromGuest)
		must(t, b.(halfCloser).CloseRead())
		var err error
		must(t, a.SetWriteDeadline(time.Now().Add(patience)))
		for err == nil {
			_, err = a.Write(make([]byte, 64<<10))
		}
		if !errors.Is(err, syscall.EPIPE) {
			t.Errorf("fromGuest=%v: write ends with %v, want EPIPE", fromGuest, err)
		}
		_, _ = a.Close(), b.Close()
	}
}

func TestSlowReaderHurtsNobodyElse(t *testing.T) {
	d, g := newPair(t, variants["all"])
	serveGuest(t, g, 7, echo)
	var stalled []net.Conn
	for range 8 {
		a, b := pair(t, d, g, true)
		stalled = append(stalled, a, b)
		for _, c := range []net.Conn{a, b} {
			must(t, c.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
			_, err := c.Write(make([]byte, 4<<20))
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("write to nobody: %v, want a passed deadline", err)
			}
		}
	}
	c := dial(t, d, 7)
	for range 100 {
		roundTrip(t, c, "hello")
	}
	for _, c := range stalled {
		_ = c.Close()
	}
}

func TestPauseKeepsStreamsAndQueuesDials(t *testing.T) {
	d, g := newPair(t, variants["all"])
	serveGuest(t, g, 7, echo)
	c := dial(t, d, 7)
	roundTrip(t, c, "before")
	rx, tx, err := g.Pause()
	must(t, err)
	if d.Connected() {
		t.Error("device is connected to a paused guest")
	}
	if _, err := io.WriteString(c, "paused"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := d.Dial(short, 7); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial to a paused guest: %v, want its context's end", err)
	}
	dialed := make(chan error, 1)
	go func() {
		c, err := d.Dial(within(t), 7)
		if err == nil {
			err = c.Close()
		}
		dialed <- err
	}()
	eventually(t, "queued dial", func() bool { return d.Stats().Dialed == 3 })
	must(t, g.Resume(rx, tx))
	got := make([]byte, 6)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "paused" {
		t.Fatalf("after resume: %q, %v", got, err)
	}
	must(t, <-dialed)
	roundTrip(t, c, "after")
}

func TestGuestResetDropsStreams(t *testing.T) {
	d, g := newPair(t, variants["all"])
	serveGuest(t, g, 7, echo)
	c := dial(t, d, 7)
	roundTrip(t, c, "before")
	_, _, err := g.Pause()
	must(t, err)
	must(t, g.Start())
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, vsock.ErrDown) {
		t.Errorf("read after guest reset: %v", err)
	}
	roundTrip(t, dial(t, d, 7), "after")
}

func TestDropAll(t *testing.T) {
	d, g := newPair(t, variants["all"])
	a, b := pair(t, d, g, false)
	c, e := pair(t, d, g, true)
	d.DropAll()
	for _, conn := range []net.Conn{a, e} {
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) {
			t.Errorf("host read after DropAll: %v", err)
		}
		if _, err := conn.Write(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) {
			t.Errorf("host write after DropAll: %v", err)
		}
	}
	for _, conn := range []net.Conn{b, c} {
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("guest read after DropAll: %v", err)
		}
	}
}

func TestUnplugAndPlugAgain(t *testing.T) {
	d, g := newPair(t, variants["all"])
	serveGuest(t, g, 7, echo)
	l, err := d.Listen(8)
	must(t, err)
	serve(t, l, echo)
	for i := range 20 {
		c := dial(t, d, 7)
		roundTrip(t, c, "hello")
		fromGuest, err := g.Dial(within(t), 8)
		must(t, err)
		roundTrip(t, fromGuest, "hello back")
		if i%2 == 0 {
			must(t, g.Unplug())
		} else {
			g.Crash()
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) || !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("read after unplug: %v", err)
		}
		if _, err := d.Dial(within(t), 7); !errors.Is(err, vsock.ErrNotReady) {
			t.Fatalf("dial after unplug: %v", err)
		}
		plug(t, d, g)
	}
	if s := d.Stats(); s.Sessions != 21 || s.Halts != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestMemoryTableChangesUnderLoad(t *testing.T) {
	d, g := newPair(t, variants["all"])
	a, b := pair(t, d, g, false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		exchange(t, a, b, 8<<20, 2)
	}()
	for i := 0; ; i++ {
		select {
		case <-done:
			if i == 0 {
				t.Error("memory table never changed")
			}
			return
		default:
			must(t, g.SetMemory())
		}
	}
}

func TestTruncatedGuestMemoryHurtsOnlyItsGuest(t *testing.T) {
	d, g := newPair(t, variants["all"])
	other, h := newPair(t, variants["all"])
	serveGuest(t, h, 7, echo)
	a, _ := pair(t, d, g, false)
	must(t, g.Truncate())
	_, _ = a.Write([]byte("into the void"))
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) {
		t.Errorf("read from a guest without memory: %v", err)
	}
	if s := d.Stats(); s.Halts != 1 {
		t.Errorf("%d halts, want 1", s.Halts)
	}
	roundTrip(t, dial(t, other, 7), "still here")
}

func TestBrokenRingIsLeftAlone(t *testing.T) {
	d, g := newPair(t, variants["all"])
	serveGuest(t, g, 7, echo)
	c := dial(t, d, 7)
	roundTrip(t, c, "hello")
	must(t, g.Spoil())
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) {
		t.Errorf("read from a guest with a broken ring: %v", err)
	}
	if _, err := d.Dial(within(t), 7); !errors.Is(err, vsock.ErrNotReady) {
		t.Errorf("dial to a guest with a broken ring: %v", err)
	}
	_, _, err := g.Pause()
	must(t, err)
	must(t, g.Start())
	must(t, d.WaitReady(within(t)))
	roundTrip(t, dial(t, d, 7), "mended")
}

func TestCloseEndsEverything(t *testing.T) {
	d, g := newPair(t, variants["all"])
	a, _ := pair(t, d, g, false)
	l, err := d.Listen(8)
	must(t, err)
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	must(t, d.Close())
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, vsock.ErrDown) {
		t.Errorf("read: %v", err)
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	if _, err := d.Dial(within(t), 7); !errors.Is(err, vsock.ErrDown) {
		t.Errorf("dial: %v", err)
	}
	if err := d.WaitReady(within(t)); !errors.Is(err, vsock.ErrDown) {
		t.Errorf("wait: %v", err)
	}
	for _, path := range []string{d.cfg.Socket, d.cfg.Hybrid} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind: %v", path, err)
		}
	}
}
