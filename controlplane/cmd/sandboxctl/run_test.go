package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOutputCannotSteerATerminal writes what a hostile command says to a real
// terminal, and to a file, which wants it as it is.
func TestOutputCannotSteerATerminal(t *testing.T) {
	const hostile = "\x1b]0;title\a\x1b[2Jred \u202etxt\r\n"
	ptmx, tty := openTerminal(t)
	w := &work{app: &app{stdout: tty, stderr: tty}}
	for _, name := range []string{"stdout", "stderr"} {
		if err := w.output(name, []byte(hostile)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	shown, err := io.ReadAll(ptmx) // ends with an error: the other side has closed
	if len(shown) == 0 {
		t.Fatal(err)
	}
	if strings.ContainsAny(string(shown), "\x1b\a\u202e") || strings.Count(string(shown), `\x1b[2Jred \u202etxt\x0d`) != 2 {
		t.Errorf("the terminal got %q", shown)
	}

	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w = &work{app: &app{stdout: file, stderr: file}}
	if err := w.output("stdout", []byte(hostile)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file.Name()); err != nil || string(got) != hostile {
		t.Errorf("the file got %q, %v", got, err)
	}
}

func openTerminal(t *testing.T) (ptmx, tty *os.File) {
	t.Helper()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here (mount -t devpts devpts /dev/pts): %v", err)
	}
	t.Cleanup(func() { ptmx.Close() })
	fd := int(ptmx.Fd()) //nolint:gosec // small
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return ptmx, tty
}
