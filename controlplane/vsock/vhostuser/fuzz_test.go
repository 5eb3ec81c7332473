package vhostuser

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// startup is a well-formed start of both rings, as steps of FuzzSession. What
// the fuzzer changes in it, and adds to it, comes close to real rings.
func startup() []byte {
	var b []byte
	add := func(req request, fds byte, body ...uint64) {
		var p []byte
		for _, v := range body {
			p = binary.LittleEndian.AppendUint64(p, v)
		}
		b = append(b, byte(req), flagVersion|flagNeedReply, fds, byte(len(p)))
		b = append(b, p...)
	}
	add(reqSetProtocolFeatures, 0, protoOffered)
	add(reqSetFeatures, 0, featOffered)
	add(reqSetMemTable, 1, 1, 0, fuzzMemory, 0, 0)
	for i := range uint64(numRings) {
		add(reqSetVringNum, 0, i|8<<32)
		add(reqSetVringBase, 0, i)
		add(reqSetVringAddr, 0, i, 0x1000+i*0x4000, 0x3000+i*0x4000, 0x2000+i*0x4000, 0)
		add(reqSetVringCall, 2, i)
		add(reqSetVringKick, 2, i)
	}
	add(reqSetVringEnable, 0, 1<<32)
	add(reqSetVringEnable, 0, 1|1<<32)
	return b
}

const fuzzMemory = 1 << 16

// FuzzSession plays a hostile QEMU with a hostile guest: any messages with
// any descriptors, then the end. The session must end with it, and leave no
// descriptor open.
func FuzzSession(f *testing.F) {
	dir := f.TempDir()
	d, err := Listen(Config{Socket: filepath.Join(dir, "vu"), Owner: -1, GuestCID: guestCID})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = d.Close() })
	if _, err := d.Listen(7); err != nil {
		f.Fatal(err)
	}
	// A ring to the host with one REQUEST to port 7 in it.
	ring := make([]byte, 0x8000)
	binary.LittleEndian.PutUint64(ring[0x5000:], 0x100)
	binary.LittleEndian.PutUint32(ring[0x5008:], 44)
	binary.LittleEndian.PutUint16(ring[0x6002:], 1)
	binary.LittleEndian.PutUint64(ring[0x100:], guestCID)
	binary.LittleEndian.PutUint64(ring[0x108:], hostCID)
	copy(ring[0x110:], []byte{9, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0})
	f.Add(startup(), ring)
	f.Add(startup()[:50], []byte{})
	f.Add(append(startup(), byte(reqGetVringBase), 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0), ring)
	f.Add(append(startup(), startup()...), ring)
	f.Add([]byte{byte(reqSetMemTable), 1, 1, 4, 1, 2, 3, 4, byte(reqGetConfig), 1, 3, 0}, []byte{})
	f.Fuzz(func(t *testing.T, steps, memory []byte) {
		before := openFiles(t)
		playSession(t, d, steps, memory)
		if after := openFiles(t); after != before {
			t.Fatalf("%d open descriptors, %d before", after, before)
		}
		if s := d.Stats(); s.Attached || s.Conns != 0 {
			t.Fatalf("after the end: %+v", s)
		}
	})
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// socketPair returns the front-end's end and the device's.
func socketPair(t testing.TB) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

func playSession(t testing.TB, d *Device, steps, memory []byte) {
	front, back := socketPair(t)
	ended, drained := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		d.serve(back)
	}()
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, front)
	}()
	for len(steps) >= 4 {
		req, flags, fds, n := steps[0], steps[1], steps[2], min(int(steps[3]), len(steps)-4)
		body := steps[4 : 4+n]
		steps = steps[4+n:]
		size := uint32(n)
		if flags&0x80 != 0 {
			size = uint32(steps4(body)) // a lie about the size
		}
		msg := binary.LittleEndian.AppendUint32(nil, uint32(req))
		msg = binary.LittleEndian.AppendUint32(msg, uint32(flags&0x7f))
		msg = binary.LittleEndian.AppendUint32(msg, size)
		if !sendFDs(t, front, append(msg, body...), fds, memory) {
			break
		}
	}
	_ = front.CloseWrite()
	<-ended
	_ = front.Close()
	<-drained
}

func steps4(b []byte) uint16 {
	return binary.LittleEndian.Uint16(append(bytes.Clone(b), 0xff, 0xff)[:2])
}

// sendFDs sends a message with descriptors of a kind: low bits say which,
// high bits how many.
func sendFDs(t testing.TB, c *net.UnixConn, msg []byte, kind byte, memory []byte) bool {
	var fds []int
	if kind&3 != 0 {
		for range 1 + kind>>4 {
			fds = append(fds, makeFD(t, kind&3, memory))
		}
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix(msg, oob, nil)
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return err == nil
}

func makeFD(t testing.TB, kind byte, memory []byte) int {
	t.Helper()
	var fd int
	var err error
	switch kind {
	case 1:
		if fd, err = unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC); err == nil {
			_, err = unix.Pwrite(fd, memory, 0)
		}
		if err == nil {
			err = unix.Ftruncate(fd, fuzzMemory)
		}
	case 2:
		fd, err = unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	case 3:
		fd, err = unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// FuzzRequest gives any bytes to the CONNECT socket.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{"CONNECT 1024\n", "CONNECT \n", "CONNECT -1\n", "CONNECT 4294967296\n", "connect 1\n", "CONNECT 1", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		line, err := readRequest(r)
		if used := len(b) - r.Len(); used > maxRequest || err == nil && used != len(line)+1 {
			t.Fatalf("read %d bytes for the line %q", used, line)
		}
		if err != nil {
			return
		}
		if _, err := parseRequest(line); err == nil && !bytes.HasPrefix(line, []byte("CONNECT ")) {
			t.Fatalf("%q was taken", line)
		}
	})
}
