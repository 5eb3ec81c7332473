// Command guest is /init of the machine that the tests of the device boot. It
// loads the modules in /modules and offers one server per port; the constants
// are repeated in guest_test.go.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

const (
	portEcho   = 1001
	portSink   = 1002 // reads to the end, answers length and checksum
	portSource = 1003 // reads a length and a seed, answers with data and checksum
	portSlow   = 1004 // as portSink, a little at a time
	portClose  = 1005 // closes at once
	portCall   = 1006 // reads a port, dials it on the host and joins the two
	portHalf   = 1007 // half closes at once, then as portSink on what comes
	portReboot = 1008 // resets the machine
	portTake   = 1009 // reads to the end and answers a byte, for measuring
	portGive   = 1010 // writes for ever, for measuring
)

func main() {
	if err := run(); err != nil {
		fmt.Println("GUEST FAILED:", err)
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
}

func run() error {
	// Listening works before the device is there, but not before the module.
	if err := loadModules(); err != nil {
		return err
	}
	failed := make(chan error)
	for port, handle := range map[uint32]func(*vsock.Conn) error{
		portEcho: echo, portSink: sink, portSource: source, portSlow: slow,
		portClose: func(*vsock.Conn) error { return nil },
		portCall:  call, portHalf: half, portTake: take, portGive: give,
		portReboot: func(*vsock.Conn) error { return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) },
	} {
		l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, port, nil)
		if err != nil {
			return fmt.Errorf("cannot listen on port %d: %w", port, err)
		}
		go func() { failed <- serve(l, handle) }()
	}
	fmt.Println("GUEST READY")
	return <-failed
}

func loadModules() error {
	paths, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("cannot load %s: %w", p, err)
		}
	}
	return nil
}

func serve(l *vsock.Listener, handle func(*vsock.Conn) error) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		vc, ok := c.(*vsock.Conn)
		if !ok {
			return fmt.Errorf("accepted a %T", c)
		}
		go func() {
			defer func() { _ = vc.Close() }()
			if err := handle(vc); err != nil {
				fmt.Println("handler:", err)
			}
		}()
	}
}

func echo(c *vsock.Conn) error {
	_, err := io.Copy(c, c)
	return err
}

func sink(c *vsock.Conn) error { return digest(c, c) }

func digest(w io.Writer, r io.Reader) error {
	h := sha256.New()
	n, err := io.Copy(h, r)
	if err != nil {
		return err
	}
	_, err = w.Write(h.Sum(binary.LittleEndian.AppendUint64(nil, uint64(n))))
	return err
}

func source(c *vsock.Conn) error {
	var req [16]byte
	if _, err := io.ReadFull(c, req[:]); err != nil {
		return err
	}
	size := int64(binary.LittleEndian.Uint64(req[:]))
	h := sha256.New()
	src := rand.NewChaCha8([32]byte{req[8]})
	if _, err := io.CopyBuffer(io.MultiWriter(c, h), io.LimitReader(src, size), make([]byte, 64<<10)); err != nil {
		return err
	}
	_, err := c.Write(h.Sum(nil))
	return err
}

func slow(c *vsock.Conn) error { return digest(c, trickle{c, time.NewTicker(5 * time.Millisecond)}) }

type trickle struct {
	net.Conn
	tick *time.Ticker
}

func (t trickle) Read(p []byte) (int, error) {
	<-t.tick.C
	return t.Conn.Read(p[:min(len(p), 8<<10)])
}

func call(c *vsock.Conn) error {
	var port [4]byte
	if _, err := io.ReadFull(c, port[:]); err != nil {
		return err
	}
	host, err := vsock.Dial(vsock.Host, binary.LittleEndian.Uint32(port[:]), nil)
	if err != nil {
		_, err = fmt.Fprintf(c, "%v", err)
		return err
	}
	defer func() { _ = host.Close() }()
	go func() {
		_, _ = io.Copy(host, c)
		_ = host.CloseWrite()
	}()
	_, err = io.Copy(c, host)
	return err
}

func take(c *vsock.Conn) error {
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, c, make([]byte, 64<<10)); err != nil {
		return err
	}
	_, err := c.Write([]byte{1})
	return err
}

func give(c *vsock.Conn) error {
	buf := make([]byte, 64<<10)
	for {
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

func half(c *vsock.Conn) error {
	if err := c.CloseWrite(); err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(h, c)
	if err != nil {
		return err
	}
	fmt.Printf("HALF %d %x\n", n, h.Sum(nil))
	return nil
}
