package vhostuser

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
)

func ownerOf(fi os.FileInfo) uint32 { return fi.Sys().(*syscall.Stat_t).Uid }

func TestHybridSocket(t *testing.T) {
	d, g := newPair(t, variants["all"])
	way := vsock.Hybrid(d.cfg.Hybrid)
	if _, err := way.Dial(within(t), 99); !errors.Is(err, vsock.ErrRefused) {
		t.Errorf("dial to a port without listener: %v", err)
	}
	l, err := g.Listen(7)
	must(t, err)
	open := func() (net.Conn, net.Conn) {
		here, err := way.Dial(within(t), 7)
		must(t, err)
		there, err := l.Accept()
		must(t, err)
		return here, there
	}
	here, there := open()
	exchange(t, here, there, 1<<20, 5)
	must(t, here.Close())
	must(t, there.Close())

	// A client that is gone altogether is noticed although the guest is silent.
	here, there = open()
	must(t, here.Close())
	must(t, there.SetDeadline(time.Now().Add(patience)))
	if n, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read after the client's end: %d, %v", n, err)
	}
	for err = nil; err == nil; {
		_, err = there.Write(make([]byte, 1))
	}
	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after the client's end: %v, want EPIPE", err)
	}

	// A guest that dies ends its clients.
	here, _ = open()
	g.Crash()
	if n, err := here.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read after the guest's end: %d, %v", n, err)
	}
	eventually(t, "end of all connections", func() bool { return d.Stats().Conns == 0 })
}

func TestHybridServerSpeaksFirst(t *testing.T) {
	d, g := newPair(t, variants["all"])
	serveGuest(t, g, 7, func(c net.Conn) { _, _ = io.WriteString(c, "welcome") })
	for range 50 {
		c, err := vsock.Hybrid(d.cfg.Hybrid).Dial(within(t), 7)
		must(t, err)
		if got, err := io.ReadAll(c); string(got) != "welcome" || err != nil {
			t.Fatalf("read %q, %v", got, err)
		}
		must(t, c.Close())
	}
}

func TestHybridRefusesOtherRequests(t *testing.T) {
	d, _ := newPair(t, variants["all"])
	for _, line := range []string{"GET / HTTP/1.1\r\n", "CONNECT x\n", "CONNECT -1\n", "CONNECT 4294967296\n", strings.Repeat("C", 100)} {
		c, err := net.Dial("unix", d.cfg.Hybrid) //nolint:noctx // local and immediate
		must(t, err)
		_, err = io.WriteString(c, line)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(patience)))
		if got, _ := io.ReadAll(c); len(got) != 0 {
			t.Errorf("%q was answered by %q", line, got)
		}
		must(t, c.Close())
	}
}
