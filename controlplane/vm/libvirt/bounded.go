package libvirt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxConsoleFile   = 2 << 20
	maxHypervisorLog = 1 << 20
	// rotated is added to the name of a file's earlier half.
	rotated = ".1"
	// breath is the least time between two looks at written files, so that a
	// guest that floods its console costs the host one look per breath.
	breath = time.Second
)

// bounded keeps files that others append to from growing. It sleeps until the
// kernel says that one was written.
//
// A file beyond its limit is copied to the name with ".1" and cut to nothing.
// Writers append, so they go on at the start; what they write between copy and
// cut is lost.
type bounded struct {
	notify *os.File
	fd     int
	log    *slog.Logger
	done   chan struct{}
	stop   chan struct{}

	mu    sync.Mutex
	files map[int32]boundedFile
}

type boundedFile struct {
	path  string
	limit int64
}

func watchFiles(log *slog.Logger) (*bounded, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch files: %w", err)
	}
	b := &bounded{
		notify: os.NewFile(uintptr(fd), "inotify"), fd: fd, log: log,
		done: make(chan struct{}), stop: make(chan struct{}), files: map[int32]boundedFile{},
	}
	go b.run()
	return b, nil
}

func (b *bounded) close() error {
	close(b.stop)
	err := b.notify.Close()
	<-b.done
	return err
}

// add begins to bound a file. One that does not exist is left alone.
func (b *bounded) add(path string, limit int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wd, err := unix.InotifyAddWatch(b.fd, path, unix.IN_MODIFY)
	if err != nil {
		b.log.Warn("cannot bound the size of a file", "path", path, "error", err)
		return
	}
	b.files[int32(wd)] = boundedFile{path: path, limit: limit}
}

// drop ends bounding; the file may be gone already.
func (b *bounded) drop(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for wd, f := range b.files {
		if f.path == path {
			_, _ = unix.InotifyRmWatch(b.fd, uint32(wd))
			delete(b.files, wd)
		}
	}
}

func (b *bounded) run() {
	defer close(b.done)
	buf := make([]byte, 16<<10)
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for {
		n, err := b.notify.Read(buf)
		if err != nil {
			return
		}
		for _, wd := range watchesIn(buf[:n]) {
			b.mu.Lock()
			f, ok := b.files[wd]
			b.mu.Unlock()
			if ok {
				b.look(f)
			}
		}
		pause.Reset(breath)
		select {
		case <-pause.C:
		case <-b.stop:
			return
		}
	}
}

// watchesIn returns the watches that events are about, each once.
func watchesIn(buf []byte) []int32 {
	seen := map[int32]bool{}
	var list []int32
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		if !seen[wd] {
			seen[wd] = true
			list = append(list, wd)
		}
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[min(size, len(buf)):]
	}
	return list
}

func (b *bounded) look(f boundedFile) {
	info, err := os.Stat(f.path)
	if err != nil || info.Size() <= f.limit {
		return
	}
	if err := rotate(f.path, f.limit); err != nil {
		b.log.Warn("cannot bound the size of a file", "path", f.path, "error", err)
	}
}

// rotate keeps the last limit bytes beside the file and cuts the file.
func rotate(path string, limit int64) (err error) {
	in, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if _, err := in.Seek(-limit, io.SeekEnd); err != nil {
		return err
	}
	out, err := os.OpenFile(path+rotated, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, in, limit)
	return errors.Join(err, out.Close(), in.Truncate(0))
}
