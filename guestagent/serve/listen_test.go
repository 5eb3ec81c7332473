package serve

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// door is a listener at which peers arrive when a test lets them.
type door struct {
	net.Listener
	peers chan net.Conn
	errs  chan error
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.peers:
		return c, nil
	case err := <-d.errs:
		return nil, err
	}
}

// arrive has a peer arrive and returns its end.
func (d *door) arrive() net.Conn {
	ours, theirs := net.Pipe()
	d.peers <- theirs
	return ours
}

// shut reports whether the other end has been closed.
func shut(t *testing.T, c net.Conn) bool {
	t.Helper()
	err := c.SetReadDeadline(time.Now().Add(time.Minute))
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe)
}

// TestGuard: peers that fail the check are turned away without a word, and so
// are those beyond the bound, until one of the others has gone.
func TestGuard(t *testing.T) {
	d := &door{peers: make(chan net.Conn, 2*maxConns), errs: make(chan error, 1)}
	refuse := true
	g := guard(d, quiet(), func(net.Conn) error {
		if refuse {
			refuse = false
			return errors.New("not the host")
		}
		return nil
	})
	stranger := d.arrive()
	var in []net.Conn
	for range maxConns {
		d.arrive()
		c, err := g.Accept()
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, c)
	}
	if !shut(t, stranger) {
		t.Error("a peer that failed the check was not turned away")
	}
	tooMany := d.arrive()
	d.errs <- errors.New("out of files")
	for { // the door takes the one or the other first
		_, err := g.Accept()
		var passes interface{ Temporary() bool }
		if !errors.As(err, &passes) || !passes.Temporary() {
			t.Fatalf("%v is no failure that passes", err)
		}
		if len(d.peers) == 0 {
			break
		}
		d.errs <- errors.New("out of files")
	}
	if !shut(t, tooMany) {
		t.Error("one more than may be was let in")
	}
	for range 2 { // a place is given back once
		_ = in[0].Close()
	}
	d.arrive()
	if _, err := g.Accept(); err != nil {
		t.Errorf("a free place was not given: %v", err)
	}
	again := d.arrive()
	d.errs <- net.ErrClosed
	for {
		if _, err := g.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("one place was given twice, or a closed listener goes on: %v", err)
		}
		if len(d.peers) == 0 {
			break
		}
		d.errs <- net.ErrClosed
	}
	if !shut(t, again) {
		t.Error("one place was given twice")
	}
}

// TestListen: a dead agent's socket is replaced, nothing else is, and others
// cannot get at it.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := Listen(t.Context(), "unix:"+path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, %v", info.Mode(), err)
	}
	if _, err := Listen(t.Context(), "unix:"+path, quiet()); err == nil {
		t.Error("a living agent's socket was taken")
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	guarded, ok := l.(*guardedListener)
	if !ok {
		t.Fatalf("%T", l)
	}
	unixListener, ok := guarded.Listener.(*net.UnixListener)
	if !ok {
		t.Fatalf("%T", guarded.Listener)
	}
	unixListener.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Listen(t.Context(), "unix:"+path, quiet()); err != nil {
		t.Fatalf("a dead agent's socket: %v", err)
	}
	defer l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"unix:" + file, "unix:", path, "tcp:127.0.0.1:0"} {
		if _, err := Listen(t.Context(), address, quiet()); err == nil {
			t.Errorf("it listens on %q", address)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "kept" {
		t.Errorf("the file is %q, %v", data, err)
	}
}

// from is a connection of a peer at that address.
type from struct {
	net.Conn
	peer net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.peer }

// TestOnlyTheHostIsLetIn: nothing in the machine, and no other machine.
func TestOnlyTheHostIsLetIn(t *testing.T) {
	for _, c := range []struct {
		peer net.Addr
		in   bool
	}{
		{&vsock.Addr{ContextID: vsock.Host, Port: 1}, true},
		{&vsock.Addr{ContextID: vsock.Local, Port: 1}, false}, {&vsock.Addr{ContextID: vsock.Hypervisor, Port: 1}, false},
		{&vsock.Addr{ContextID: 3, Port: 1}, false}, {&vsock.Addr{ContextID: anyCID, Port: 1}, false},
		{&net.UnixAddr{Name: "2"}, false}, {nil, false},
	} {
		if err := fromHost(from{peer: c.peer}); (err == nil) != c.in {
			t.Errorf("%v: %v", c.peer, err)
		}
	}
}

// TestOthersAreTurnedAway: the kernel says who connects, whatever the socket's
// mode has become.
func TestOthersAreTurnedAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else; run as root: go test ./guestagent/serve -run " + t.Name())
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "s")
	l, err := Listen(t.Context(), "unix:"+path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_ = c.Close()
		}
		got <- err
	}()
	answer := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function
		answer <- connectAs(65534, path)
	}()
	if err := <-answer; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection of somebody else ended in %v", err)
	}
}

// connectAs connects as another user and waits until it is turned away. Only
// the calling thread becomes that user.
func connectAs(uid uintptr, path string) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return errno
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err
	}
	n, err := unix.Read(fd, make([]byte, 1))
	if err == nil && n > 0 {
		err = errors.New("it was answered")
	}
	return err
}

// TestClockIsStepped: only when it is off by more than what a message takes.
func TestClockIsStepped(t *testing.T) {
	for name, c := range map[string]struct {
		host *timestamppb.Timestamp
		step bool
	}{
		"right": {timestamppb.Now(), false}, "none": {nil, false},
		"ahead": {timestamppb.New(time.Now().Add(time.Hour)), true}, "behind": {timestamppb.New(time.Now().Add(-time.Hour)), true},
		"none at all": {&timestamppb.Timestamp{Nanos: -1}, false},
	} {
		stepped := false
		s := &service{config: Config{SetClock: func(now time.Time) error {
			stepped = now.Equal(c.host.AsTime())
			return nil
		}}}
		if err := s.stepClock(c.host); stepped != c.step || (err != nil) != (c.host != nil && !c.host.IsValid()) {
			t.Errorf("%s: stepped %t, %v", name, stepped, err)
		}
	}
	if err := (&service{}).stepClock(timestamppb.New(time.Unix(0, 0))); err != nil {
		t.Errorf("a clock that is not ours: %v", err)
	}
}
