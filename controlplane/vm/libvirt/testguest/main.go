// Command testguest is the init of the machines that the driver's own tests
// boot: it loads modules, says that it is ready, and obeys single words on a
// vsock port. It has no agent and no root disk, so that a failing test is the
// driver's.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

const port = 512

func main() {
	fmt.Println("testguest:", run())
	powerOff()
}

func powerOff() {
	if err := syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("testguest:", err)
	}
}

// run serves until something fails, and says what.
func run() error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := os.MkdirAll(m[1], 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("cannot mount %s: %w", m[0], err)
		}
	}
	modules, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(modules)
	for _, path := range modules {
		if err := load(path); err != nil {
			return err
		}
	}
	config, err := os.ReadFile("/config.json")
	if err != nil {
		return err
	}
	serial, err := os.ReadFile("/sys/block/vda/serial")
	if err != nil {
		return err
	}
	l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, port, nil)
	if err != nil {
		return err
	}
	fmt.Printf("testguest: config %s disk %s\ntestguest: ready\n", config, serial)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go obey(c)
	}
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil {
		return fmt.Errorf("cannot load %s: %w", path, err)
	}
	return nil
}

func obey(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	word, err := in.ReadString('\n')
	if err != nil {
		return
	}
	switch word = strings.TrimSpace(word); word {
	case "poweroff":
		powerOff()
	case "restart":
		_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART)
	case "panic":
		_ = os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	case "flood":
		// More than the host keeps, in lines as a console shows them.
		line := strings.Repeat("x", 1023) + "\n"
		for range 6 << 10 {
			fmt.Print(line)
		}
		_, _ = fmt.Fprintln(c, "done")
	case "write":
		err := os.WriteFile("/dev/vda", []byte("written"), 0)
		_, _ = fmt.Fprintln(c, err)
	case "read":
		disk, err := os.Open("/dev/vda")
		if err != nil {
			return
		}
		buf := make([]byte, 7)
		_, _ = io.ReadFull(disk, buf)
		_, _ = fmt.Fprintf(c, "%q\n", buf)
	default: // echo
		_, _ = fmt.Fprintln(c, word)
		_, _ = io.Copy(c, in)
	}
}
