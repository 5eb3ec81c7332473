package vhostuser

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/internal/fakeguest"
)

const guestCID = 42

// patience is how long a test waits for what must happen. It is generous
// because the machine may be busy.
const patience = 60 * time.Second

// within is a context for one step of a test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newDevice(t *testing.T) *Device {
	t.Helper()
	dir := t.TempDir()
	d, err := Listen(Config{
		Socket: filepath.Join(dir, "vu"), Owner: -1, GuestCID: guestCID, Hybrid: filepath.Join(dir, "connect"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func newGuest(t *testing.T, opts fakeguest.Options) *fakeguest.Guest {
	t.Helper()
	g, err := fakeguest.New(guestCID, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, g.Close()) })
	return g
}

// newPair returns a device and a guest whose driver runs.
func newPair(t *testing.T, opts fakeguest.Options) (*Device, *fakeguest.Guest) {
	t.Helper()
	d, g := newDevice(t), newGuest(t, opts)
	plug(t, d, g)
	return d, g
}

func plug(t *testing.T, d *Device, g *fakeguest.Guest) {
	t.Helper()
	must(t, g.Plug(d.cfg.Socket))
	must(t, g.Start())
	must(t, d.WaitReady(within(t)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serveGuest runs a server for every connection to a port of the guest.
func serveGuest(t *testing.T, g *fakeguest.Guest, port uint32, handle func(net.Conn)) {
	t.Helper()
	l, err := g.Listen(port)
	must(t, err)
	serve(t, l, handle)
}

func serve(t *testing.T, l net.Listener, handle func(net.Conn)) {
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() {
				defer func() { _ = c.Close() }()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		tasks.Wait()
	})
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

func dial(t *testing.T, d *Device, port uint32) net.Conn {
	t.Helper()
	c, err := d.Dial(within(t), port)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// roundTrip proves that an echo connection works.
func roundTrip(t *testing.T, c net.Conn, msg string) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	if _, err := io.WriteString(c, msg); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != msg {
		t.Fatalf("echo of %q is %q", msg, got)
	}
	must(t, c.SetDeadline(time.Time{}))
}

// eventually waits for a condition that no event announces.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(fmt.Errorf("%s did not come about", what))
		}
	}
}
