package fleet

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

const (
	// consoleTail bounds what comes first, in bytes.
	consoleTail = 64 << 10
	// consoleLook is how often a console is looked at for more.
	consoleLook = 200 * time.Millisecond
	// consoleRead bounds what is read of a console at once.
	consoleRead = 32 << 10
)

// Console returns the last lines of a machine's console, made printable, and
// with follow also what comes, until ctx ends, the reader is closed, or the
// instance is no more; across restarts of the machine too. What comes first is
// at most 64 KiB, whatever the number of lines. Close it.
func (f *Fleet) Console(ctx context.Context, ref string, follow bool, lines int) (io.ReadCloser, error) {
	s, err := f.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !follow {
		l, err := f.Log(ctx, ref)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(strings.NewReader(lastLines(l.Console, lines))), nil
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() { // ends with Close, which waits for it
		defer close(done)
		c := console{s: s, out: w, lines: lines}
		w.CloseWithError(c.follow(ctx))
	}()
	return &consoleReader{PipeReader: r, cancel: cancel, done: done}, nil
}

type consoleReader struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

func (r *consoleReader) Close() error {
	r.cancel()
	err := r.PipeReader.Close()
	<-r.done
	return err
}

// lastLines is the end of a text, from the beginning of a line.
func lastLines(text string, lines int) string {
	if lines <= 0 {
		return ""
	}
	end := strings.TrimSuffix(text, "\n")
	for range lines {
		i := strings.LastIndexByte(end, '\n')
		if i < 0 {
			return text
		}
		end = end[:i]
	}
	return text[len(end)+1:]
}

// console copies what a machine writes on its console.
type console struct {
	s     *supervise.Supervisor
	out   io.Writer
	lines int // of what was there before
	begun bool
	at    int64
	clean printer
}

func (c *console) follow(ctx context.Context) error {
	tick := time.NewTicker(consoleLook)
	defer tick.Stop()
	for {
		if m, ok := c.s.Machine().(vm.Console); ok {
			if err := c.more(ctx, m.ConsolePath()); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return io.EOF
		case <-c.s.Gone():
			return io.EOF
		}
	}
}

// more copies what is new in the file.
func (c *console) more(ctx context.Context, path string) error {
	f, err := os.Open(path) //nolint:gosec // the driver's own
	if errors.Is(err, fs.ErrNotExist) {
		c.begun = true // all that comes is new
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case !c.begun:
		return c.begin(f, st.Size())
	case c.at > st.Size():
		c.at = 0 // it was cut to nothing, and goes on at its start
	}
	buf := make([]byte, consoleRead)
	for ctx.Err() == nil {
		n, err := f.ReadAt(buf, c.at)
		c.at += int64(n)
		if n > 0 {
			if _, err := io.WriteString(c.out, c.clean.print(buf[:n])); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin copies the last lines of what is in the file. They are counted in the
// text that is shown: it is shorter than what the guest wrote.
func (c *console) begin(f io.ReaderAt, size int64) error {
	at := max(0, size-consoleTail)
	buf := make([]byte, size-at)
	n, err := f.ReadAt(buf, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	c.begun, c.at = true, at+int64(n)
	_, err = io.WriteString(c.out, lastLines(c.clean.print(buf[:n]), c.lines))
	return err
}

// maxRest bounds what is held back of an unfinished sequence.
const maxRest = 256

// printer makes the bytes of a guest safe for terminals and pages, piece by
// piece: terminal sequences go, and of control characters only line feeds and
// tabs stay.
type printer struct{ rest []byte }

func (p *printer) print(b []byte) string {
	data := append(p.rest, b...)
	p.rest = nil
	var out strings.Builder
	for len(data) > 0 {
		if data[0] == 0x1b {
			n, whole := escape(data)
			if !whole && len(data) < maxRest {
				p.rest = append([]byte(nil), data...)
				break
			}
			data = data[n:]
			continue
		}
		if !utf8.FullRune(data) {
			p.rest = append([]byte(nil), data...)
			break
		}
		r, n := utf8.DecodeRune(data)
		data = data[n:]
		switch {
		case r == '\n' || r == '\t':
			out.WriteRune(r)
		case r == '\r':
		case unicode.IsPrint(r):
			out.WriteRune(r)
		default:
			out.WriteRune(utf8.RuneError)
		}
	}
	return out.String()
}

// escape is the length of the terminal sequence that data begins with, and
// whether all of it is there.
func escape(data []byte) (n int, whole bool) {
	if len(data) < 2 {
		return len(data), false
	}
	switch data[1] {
	case '[': // CSI: up to a final byte
		for i := 2; i < len(data); i++ {
			if data[i] >= 0x40 && data[i] <= 0x7e {
				return i + 1, true
			}
			if data[i] < 0x20 || data[i] > 0x7e {
				return i, true // broken off
			}
		}
		return len(data), false
	case ']', 'P', '_', '^', 'X': // strings: up to BEL or ESC \
		for i := 2; i < len(data); i++ {
			if data[i] == 0x07 {
				return i + 1, true
			}
			if data[i] == 0x1b {
				if i+1 == len(data) {
					return len(data), false
				}
				if data[i+1] == '\\' {
					return i + 2, true
				}
				return i, true // another sequence begins
			}
		}
		return len(data), false
	}
	for i := 1; i < len(data); i++ { // intermediate bytes, then a final one
		switch {
		case data[i] >= 0x30 && data[i] <= 0x7e:
			return i + 1, true
		case data[i] < 0x20 || data[i] > 0x7e:
			return i, true // broken off
		}
	}
	return len(data), false
}
