package vsock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	mdvsock "github.com/mdlayher/vsock"
	"golang.org/x/net/nettest"
)

// server answers each connection to a unix socket by handle.
func server(t testing.TB, handle func(*net.UnixConn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			handle(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return path
}

// answer reads the request and answers with text, byte by byte so that the
// reader meets every boundary.
func answer(t testing.TB, c *net.UnixConn, text string) {
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "CONNECT 1024\n" {
		t.Errorf("request %q, %v", line, err)
	}
	for i := range len(text) {
		if _, err := c.Write([]byte{text[i]}); err != nil {
			return // the client has seen enough
		}
	}
}

func TestHybridDial(t *testing.T) {
	for name, tc := range map[string]struct {
		answer string
		want   error  // nil for a good connection
		text   string // in the error
	}{
		"good":           {answer: "OK 1073741824\n"},
		"hang up":        {answer: "", want: ErrRefused},
		"hang up inside": {answer: "OK 1", want: ErrRefused},
		"no":             {answer: "NO\n", text: "want OK"},
		"no number":      {answer: "OK \n", text: "want OK"},
		"signed":         {answer: "OK +1\n", text: "want OK"},
		"too large":      {answer: "OK 4294967296\n", text: "want OK"},
		"endless":        {answer: strings.Repeat("O", 1000), text: "longer"},
	} {
		t.Run(name, func(t *testing.T) {
			path := server(t, func(c *net.UnixConn) {
				answer(t, c, tc.answer+"rest")
				_ = c.Close()
			})
			if tc.want != nil {
				path = server(t, func(c *net.UnixConn) {
					answer(t, c, tc.answer)
					_ = c.Close()
				})
			}
			c, err := Hybrid(path).Dial(t.Context(), 1024)
			switch {
			case tc.want == nil && tc.text == "":
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(c); string(got) != "rest" || err != nil {
					t.Errorf("stream begins with %q, %v", got, err)
				}
				_ = c.Close()
			case tc.want != nil && !errors.Is(err, tc.want), tc.want == nil && errors.Is(err, ErrRefused), err == nil:
				t.Errorf("dial: %v", err)
			case !strings.Contains(err.Error(), tc.text):
				t.Errorf("error %q does not say %q", err, tc.text)
			}
		})
	}
}

func TestHybridDialWithoutDevice(t *testing.T) {
	if _, err := Hybrid(filepath.Join(t.TempDir(), "none")).Dial(t.Context(), 1); !errors.Is(err, ErrDown) {
		t.Errorf("dial to no socket: %v, want ErrDown", err)
	}
	path := filepath.Join(t.TempDir(), "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := Hybrid(path).Dial(t.Context(), 1); !errors.Is(err, ErrDown) {
		t.Errorf("dial to a dead socket: %v, want ErrDown", err)
	}
}

func TestHybridDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hold := make(chan *net.UnixConn, 1)
	path := server(t, func(c *net.UnixConn) {
		hold <- c
		cancel() // when the dial waits for an answer, or is about to
	})
	if _, err := Hybrid(path).Dial(ctx, 1024); !errors.Is(err, context.Canceled) {
		t.Errorf("dial to a silent device: %v", err)
	}
	_ = (<-hold).Close()
}

func TestHybridNetConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		accepted := make(chan net.Conn, 1)
		path := server(t, func(c *net.UnixConn) {
			answer(t, c, "OK 1\n")
			accepted <- c
		})
		a, err := Hybrid(path).Dial(t.Context(), 1024)
		if err != nil {
			return nil, nil, nil, err
		}
		b := <-accepted
		return a, b, func() { _, _ = a.Close(), b.Close() }, nil
	})
}

func TestKernelErrors(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{
		syscall.ENODEV: ErrDown, syscall.ETIMEDOUT: ErrNotReady, syscall.ECONNRESET: ErrRefused,
	} {
		err := kernelError(os.NewSyscallError("connect", errno))
		if !errors.Is(err, want) || !errors.Is(err, errno) {
			t.Errorf("%v becomes %v, want both it and %v", errno, err, want)
		}
	}
	if err := kernelError(context.Canceled); err != context.Canceled { //nolint:errorlint // the very same
		t.Errorf("context's end becomes %v", err)
	}
}

func TestKernelDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c, err := Kernel(1<<30).Dial(ctx, 1); err == nil {
		_ = c.Close()
		t.Error("dialed with an ended context")
	}
}

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "cannot open",
		file:                       "does not answer",
	} {
		s := probe(path)
		if s.Usable || s.Reason == "" {
			t.Errorf("%s: %+v", path, s)
		}
		// Without AF_VSOCK the reason is another, and as good.
		if !strings.Contains(s.Reason, want) && !strings.Contains(s.Reason, "AF_VSOCK") {
			t.Errorf("%s: reason %q, want %q", path, s.Reason, want)
		}
	}
	if s := Probe(); s.Usable == (s.Reason != "") {
		t.Errorf("usable and a reason do not agree: %+v", s)
	}
}

// FuzzReply gives any bytes as the answer to CONNECT.
func FuzzReply(f *testing.F) {
	for _, s := range []string{"OK 1024\n", "OK \n", "OK -1\n", "OK 4294967296\n", "ok 1\n", "OK 1", "", "OK 1\nstream"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		line, err := readLine(r)
		if used := len(b) - r.Len(); used > maxReply || err == nil && used != len(line)+1 {
			t.Fatalf("read %d bytes for the line %q", used, line)
		}
		if err != nil {
			return
		}
		if _, err := parseReply(line); err == nil && !bytes.HasPrefix(line, []byte("OK ")) {
			t.Fatalf("%q was taken", line)
		}
	})
}

// TestKernelLoopback dials this very kernel, where it can.
func TestKernelLoopback(t *testing.T) {
	const loopback = 1
	l, err := mdvsock.ListenContextID(loopback, 0, nil)
	if err != nil {
		t.Skipf("no vsock loopback here (%v); run: modprobe vsock_loopback", err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*mdvsock.Addr).Port
	c, err := Kernel(loopback).Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if got := c.RemoteAddr().(*mdvsock.Addr).Port; got != port {
		t.Errorf("remote port %d, want %d", got, port)
	}
	if _, err := Kernel(loopback).Dial(t.Context(), port+1); !errors.Is(err, ErrRefused) {
		t.Errorf("dial to a port without listener: %v, want ErrRefused", err)
	}
}
