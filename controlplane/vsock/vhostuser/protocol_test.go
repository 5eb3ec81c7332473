package vhostuser

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSessionRefusals sends one wrong message after a good start; the session
// must refuse it or end, and say nothing else.
func TestSessionRefusals(t *testing.T) {
	u64 := func(vs ...uint64) []byte {
		var b []byte
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	region := func(size, offset uint64) []byte { return u64(1, 0, size, 0, offset) }
	for name, tc := range map[string]struct {
		req     request
		body    []byte
		fdKind  byte
		flags   uint32
		started bool
	}{
		"unknown request":               {req: 99},
		"foreign feature":               {req: reqSetFeatures, body: u64(1 << 26)},
		"foreign protocol feature":      {req: reqSetProtocolFeatures, body: u64(1 << 1)},
		"short body":                    {req: reqSetFeatures, body: []byte{1}},
		"ring out of range":             {req: reqSetVringNum, body: u64(2)},
		"size of a running ring":        {req: reqSetVringNum, body: u64(8 << 32), started: true},
		"base of a running ring":        {req: reqSetVringBase, body: u64(0), started: true},
		"addresses of a running ring":   {req: reqSetVringAddr, body: u64(0, 0, 0, 0, 0), started: true},
		"logging":                       {req: reqSetVringAddr, body: u64(1<<32, 0, 0, 0, 0)},
		"base beyond 16 bits":           {req: reqSetVringBase, body: u64(1 << 48)},
		"kick without descriptor":       {req: reqSetVringKick, body: u64(0)},
		"kick by polling":               {req: reqSetVringKick, body: u64(kickWithoutFD)},
		"kick by a device":              {req: reqSetVringKick, body: u64(0), fdKind: 3},
		"call by memory":                {req: reqSetVringCall, body: u64(0), fdKind: 1},
		"kick with two descriptors":     {req: reqSetVringKick, body: u64(0), fdKind: 0x12},
		"table without descriptor":      {req: reqSetMemTable, body: region(4096, 0)},
		"table of no region":            {req: reqSetMemTable, body: u64(0)},
		"table of many regions":         {req: reqSetMemTable, body: u64(math.MaxUint32)},
		"region beyond its file":        {req: reqSetMemTable, body: region(fuzzMemory+4096, 0), fdKind: 1},
		"region wraps":                  {req: reqSetMemTable, body: region(4096, math.MaxUint64-4095), fdKind: 1},
		"region of a device":            {req: reqSetMemTable, body: region(4096, 0), fdKind: 3},
		"configuration beyond its end":  {req: reqGetConfig, body: append(u64(4|8<<32), make([]byte, 12)...)},
		"configuration without room":    {req: reqGetConfig, body: u64(8 << 32)},
		"wrong version":                 {req: reqSetOwner, flags: 2},
		"a reply":                       {req: reqSetOwner, flags: flagVersion | flagReply},
		"more descriptors than allowed": {req: reqSetMemTable, body: region(4096, 0), fdKind: 0xf1},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t)
			front, back := socketPair(t)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				d.serve(back)
			}()
			defer func() {
				_ = front.Close()
				<-ended
			}()
			must(t, front.SetDeadline(time.Now().Add(patience)))
			sendStep(t, front, reqSetProtocolFeatures, flagVersion, u64(protoOffered), 0)
			if tc.started {
				start(t, front)
				must(t, d.WaitReady(within(t)))
			}
			if tc.flags == 0 {
				tc.flags = flagVersion | flagNeedReply
			}
			sendStep(t, front, tc.req, tc.flags, tc.body, tc.fdKind)
			answer, err := io.ReadAll(front)
			if err != nil && !errors.Is(err, syscall.ECONNRESET) { // it may hang up on what it has not read
				t.Fatal(err)
			}
			<-ended
			if tc.started {
				answer = answer[len(answer)-min(len(answer), headSize+8):]
			}
			if len(answer) != 0 && (len(answer) != headSize+8 || binary.LittleEndian.Uint64(answer[headSize:]) == 0) {
				t.Errorf("answer %x", answer)
			}
		})
	}
}

func sendStep(t *testing.T, c *net.UnixConn, req request, flags uint32, body []byte, kind byte) {
	t.Helper()
	msg := binary.LittleEndian.AppendUint32(nil, uint32(req))
	msg = binary.LittleEndian.AppendUint32(msg, flags)
	msg = binary.LittleEndian.AppendUint32(msg, uint32(len(body)))
	sendFDs(t, c, append(msg, body...), kind, nil)
}

// start plays startup.
func start(t *testing.T, c *net.UnixConn) {
	t.Helper()
	for b := startup(); len(b) >= 4; {
		n := int(b[3])
		sendStep(t, c, request(b[0]), uint32(b[1]), b[4:4+n], b[2])
		b = b[4+n:]
	}
}

func TestListenChecksItsConfiguration(t *testing.T) {
	dir := t.TempDir()
	for name, cfg := range map[string]Config{
		"host's CID":     {Socket: filepath.Join(dir, "a"), Owner: -1, GuestCID: 2},
		"wildcard CID":   {Socket: filepath.Join(dir, "a"), Owner: -1, GuestCID: math.MaxUint32},
		"no directory":   {Socket: filepath.Join(dir, "x", "a"), Owner: -1, GuestCID: 3},
		"path too long":  {Socket: filepath.Join(dir, strings.Repeat("x", 110)), Owner: -1, GuestCID: 3},
		"hybrid too":     {Socket: filepath.Join(dir, "a"), Hybrid: filepath.Join(dir, "x", "b"), Owner: -1, GuestCID: 3},
		"not its socket": {Socket: writeFile(t, filepath.Join(dir, "file")), Owner: -1, GuestCID: 3},
	} {
		if d, err := Listen(cfg); err == nil {
			_ = d.Close()
			t.Errorf("%s: taken", name)
		}
		if _, err := os.Lstat(filepath.Join(dir, "a")); err == nil {
			t.Errorf("%s: socket left behind", name)
		}
	}
}

func writeFile(t *testing.T, path string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte("precious"), 0o600))
	return path
}

func TestListenReplacesAnOldSocketAndKeepsOthersOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vu")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	old.SetUnlinkOnClose(false)
	must(t, old.Close())
	owner := -1
	if os.Getuid() == 0 {
		owner = 4711
	}
	d, err := Listen(Config{Socket: path, Owner: owner, GuestCID: 3})
	must(t, err)
	fi, err := os.Lstat(path)
	must(t, err)
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", fi.Mode())
	}
	if uid := ownerOf(fi); owner >= 0 && uid != uint32(owner) {
		t.Errorf("owner %d", uid)
	}
	must(t, d.Close())
	if err := d.Close(); err == nil {
		t.Error("closed twice")
	}
}

// TestNothingIsLeftOpen plugs and unplugs, and counts descriptors.
func TestNothingIsLeftOpen(t *testing.T) {
	d, g := newPair(t, variants["all"])
	serveGuest(t, g, 7, echo)
	roundTrip(t, dial(t, d, 7), "x")
	must(t, g.Unplug())
	eventually(t, "unplug", func() bool { return !d.Stats().Attached })
	before := openFiles(t)
	for range 10 {
		plug(t, d, g)
		roundTrip(t, dial(t, d, 7), "x")
		must(t, g.Unplug())
		eventually(t, "unplug", func() bool { return !d.Stats().Attached })
	}
	eventually(t, "end of all descriptors", func() bool { return openFiles(t) <= before })
}
