package command

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// drainPatience is how long the pipes may stay open once no process of the
// run is left. Whoever holds them then was handed them by the run and is not
// waited for: what is in the pipes is taken, and no more.
const drainPatience = time.Second

// pump moves output from a pipe into the log. While the log is full it does
// not read, so that the process blocks instead of the agent growing.
func (r *Run) pump(pipe *os.File, stream agentv1.Stream) {
	defer pipe.Close()
	conn, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	for {
		eof := false
		var buf []byte
		// Memory is taken only once there is something to read.
		err := conn.Read(func(fd uintptr) bool {
			if buf == nil {
				if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && n > 0 {
					buf = make([]byte, min(n, agentv1.MaxChunk))
				} else {
					buf = make([]byte, 1)
				}
			}
			n, again := readNow(int(fd), buf)
			if again {
				buf = nil
				return false
			}
			eof = n == 0
			buf = buf[:n]
			return true
		})
		if err != nil {
			break // the deadline of drain
		}
		if eof {
			return
		}
		r.add(stream, buf)
	}
	r.takeRest(pipe, stream)
}

// takeRest takes what is in the pipe now.
func (r *Run) takeRest(pipe *os.File, stream agentv1.Stream) {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	var rest []byte
	// Control, not Read: the deadline has passed.
	_ = conn.Control(func(fd uintptr) {
		n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		if err != nil || n <= 0 {
			return
		}
		buf := make([]byte, n)
		for len(rest) < n {
			got, again := readNow(int(fd), buf[len(rest):])
			if again || got == 0 {
				return
			}
			rest = buf[:len(rest)+got]
		}
	})
	r.add(stream, rest)
}

// readNow reads without waiting. Errors read as the end.
func readNow(fd int, buf []byte) (n int, again bool) {
	for {
		n, err := unix.Read(fd, buf)
		switch err {
		case nil:
			return n, false
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, true
		default:
			return 0, false
		}
	}
}

// add appends output once there is room.
func (r *Run) add(stream agentv1.Stream, data []byte) {
	if len(data) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.draining && !r.log.room(len(data)) {
		freed := r.room.wait()
		r.mu.Unlock()
		<-freed // an acknowledgement, or the end of all processes
		r.mu.Lock()
	}
	r.log.append(stream, data)
	r.news.ring()
}

// drain waits until both pipes have been read to their end.
func drain(pumps *sync.WaitGroup, pipes stdio) {
	limit := time.AfterFunc(drainPatience, func() {
		now := time.Now()
		// A pipe that is closed already has been read to its end.
		_ = pipes.out.SetReadDeadline(now)
		_ = pipes.err.SetReadDeadline(now)
	})
	pumps.Wait()
	limit.Stop()
}

// feedPipe moves input into the pipe until its end or the run's.
func (r *Run) feedPipe(pipe *os.File) {
	defer pipe.Close()
	broken := false
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.draining && !r.input.finished() {
		data := r.input.front()
		if len(data) == 0 {
			more := r.feed.wait()
			r.mu.Unlock()
			<-more // input, or the end of all processes
			r.mu.Lock()
			continue
		}
		n := len(data)
		if !broken {
			r.mu.Unlock()
			written, err := pipe.Write(data)
			r.mu.Lock()
			// A process that has closed its input is no failure: the rest is
			// dropped, as it would be by a shell.
			broken = err != nil
			if !broken {
				n = written
			}
		}
		r.input.take(n)
		r.news.ring()
	}
}
