package vhostuser

import (
	"io"
	"net"
	"path/filepath"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/internal/fakeguest"
)

// BenchmarkLoopback is the device without a machine: what it costs by itself.
func BenchmarkLoopback(b *testing.B) {
	for name, opts := range variants {
		b.Run(name, func(b *testing.B) {
			d, err := Listen(Config{Socket: filepath.Join(b.TempDir(), "vu"), Owner: -1, GuestCID: guestCID})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = d.Close() }()
			g, err := fakeguest.New(guestCID, opts)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = g.Close() }()
			l, err := g.Listen(7)
			if err != nil {
				b.Fatal(err)
			}
			if err := g.Plug(d.cfg.Socket); err != nil {
				b.Fatal(err)
			}
			if err := g.Start(); err != nil {
				b.Fatal(err)
			}
			here, err := d.Dial(b.Context(), 7)
			if err != nil {
				b.Fatal(err)
			}
			there, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			b.Run("h2g", func(b *testing.B) { benchCopy(b, here, there) })
			b.Run("g2h", func(b *testing.B) { benchCopy(b, there, here) })
			go echo(there)
			b.Run("echo64", func(b *testing.B) { benchEcho(b, here) })
		})
	}
}

// benchCopy moves 64 KiB per step, and counts a step when it has arrived.
func benchCopy(b *testing.B, from, to net.Conn) {
	const size = 64 << 10
	b.SetBytes(size)
	b.ReportAllocs()
	sent := make(chan error, 1)
	n := b.N
	go func() {
		buf := make([]byte, size)
		for range n {
			if _, err := from.Write(buf); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	if _, err := io.CopyN(io.Discard, to, int64(n)*size); err != nil {
		b.Fatal(err)
	}
	if err := <-sent; err != nil {
		b.Fatal(err)
	}
}

func benchEcho(b *testing.B, c net.Conn) {
	buf := make([]byte, 64)
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGuest is the device with a real machine under emulation, to be
// compared with another way into the same machine, by ratio.
func BenchmarkGuest(b *testing.B) {
	guestDir(b)
	d, err := Listen(Config{Socket: filepath.Join(b.TempDir(), "vu"), Owner: -1, GuestCID: guestCID})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	m := boot(b)
	m.plug(d.cfg.Socket)
	m.waitConsole(b.Context(), "GUEST READY")
	if err := d.WaitReady(b.Context()); err != nil {
		b.Fatal(err)
	}
	open := func(b *testing.B, port uint32) net.Conn {
		c, err := d.Dial(b.Context(), port)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() })
		return c
	}
	const size = 1 << 20
	b.Run("h2g", func(b *testing.B) {
		c := open(b, portTake)
		b.SetBytes(size)
		buf := make([]byte, size)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.(halfCloser).CloseWrite()
		if _, err := io.ReadAll(c); err != nil { // all has arrived
			b.Fatal(err)
		}
	})
	b.Run("g2h", func(b *testing.B) {
		c := open(b, portGive)
		b.SetBytes(size)
		for b.Loop() {
			if _, err := io.CopyN(io.Discard, c, size); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("echo64", func(b *testing.B) { benchEcho(b, open(b, portEcho)) })
}
