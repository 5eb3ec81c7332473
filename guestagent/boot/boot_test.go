package boot

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestExt4Size(t *testing.T) {
	t.Parallel()
	super := make([]byte, 1024)
	binary.LittleEndian.PutUint32(super[0x4:], 65536)
	binary.LittleEndian.PutUint32(super[0x18:], 2)
	binary.LittleEndian.PutUint32(super[0x150:], 1)
	if blocks, size := ext4Size(super); blocks != 65536 || size != 4096 {
		t.Errorf("32 bit: %d blocks of %d", blocks, size)
	}
	binary.LittleEndian.PutUint32(super[0x60:], 0x80)
	if blocks, _ := ext4Size(super); blocks != 65536+1<<32 {
		t.Errorf("64 bit: %d blocks", blocks)
	}
}

func FuzzExt4Size(f *testing.F) {
	f.Add(make([]byte, 1024))
	f.Fuzz(func(t *testing.T, super []byte) {
		if len(super) != 1024 {
			t.Skip("a superblock is 1024 bytes")
		}
		if _, size := ext4Size(super); size < 1024 || size > 128<<10 {
			t.Errorf("block size %d", size)
		}
	})
}

func TestRestartsAreBounded(t *testing.T) {
	t.Parallel()
	var r restarts
	last := time.Duration(0)
	n := 1
	for ; ; n++ {
		delay, ok := r.crashed(time.Second)
		if !ok {
			break
		}
		if delay < last || delay > lastBackoff {
			t.Errorf("delay %v after %v", delay, last)
		}
		last = delay
	}
	if n != maxCrashes {
		t.Errorf("given up at crash %d, want %d", n, maxCrashes)
	}
	r = restarts{crashes: maxCrashes - 1}
	if delay, ok := r.crashed(steady); !ok || delay != firstBackoff {
		t.Errorf("a crash after steady work: %v %v", delay, ok)
	}
}

func TestFindDiskBySerial(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	for disk, serial := range map[string]string{"vda": "other\n", "vdb": "sandbox-root\n"} {
		if err := os.MkdirAll(filepath.Join(sys, disk), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, disk, "serial"), []byte(serial), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := findDisk(sys, "sandbox-root"); err != nil || got != "/dev/vdb" {
		t.Errorf("%q %v", got, err)
	}
}

func TestEmptyRefusesARealDisk(t *testing.T) {
	t.Parallel()
	// The source tree is on a disk; its package directory must survive.
	if err := empty("."); err == nil {
		t.Fatal("emptied a directory of a disk")
	}
	if _, err := os.Stat("boot_test.go"); err != nil {
		t.Error(err)
	}
}
