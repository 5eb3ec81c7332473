package embedded

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxLogLine   = 1 << 10
	logWindow    = 10 * time.Second
	logPerWindow = 100
	// logVariable is read by libvirt once per process, at its first call.
	logVariable = "LIBVIRT_LOG_OUTPUTS"
)

// LogPipe carries libvirt's own log lines, warnings and errors, into a logger.
type LogPipe struct {
	fifo *os.File
	log  *slog.Logger
	done chan struct{}
	env  sync.Once
}

// OpenLogPipe makes the pipe beneath root and points libvirt at it. libvirt
// opens it when it is first called; Settled must follow, so that no child
// inherits the setting. An operator's own setting is left alone.
//
// The pipe is opened for reading and writing: libvirt keeps its end for the
// life of the process and must never block on a pipe that nobody reads.
func OpenLogPipe(root string, log *slog.Logger) (*LogPipe, error) {
	path := filepath.Join(root, "libvirt.log")
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("cannot make log pipe %q: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open log pipe %q: %w", path, err)
	}
	p := &LogPipe{fifo: f, log: log, done: make(chan struct{})}
	if _, own := os.LookupEnv(logVariable); own {
		p.env.Do(func() {})
	} else if err := os.Setenv(logVariable, "3:file:"+path); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot direct libvirt's log: %w", err)
	}
	go p.run()
	return p, nil
}

// Settled takes the setting out of the environment again.
func (p *LogPipe) Settled() {
	p.env.Do(func() { _ = os.Unsetenv(logVariable) })
}

// Close stops reading.
func (p *LogPipe) Close() {
	p.Settled()
	_ = p.fifo.Close()
	<-p.done
}

func (p *LogPipe) run() {
	defer close(p.done)
	forward(p.fifo, p.log, time.Now)
}

// forward logs every line of r, cut and limited in rate.
func forward(r io.Reader, log *slog.Logger, now func() time.Time) {
	lines := bufio.NewReaderSize(r, maxLogLine)
	var start time.Time
	count := 0
	for {
		line, rest, err := lines.ReadLine()
		text := string(line)
		for rest && err == nil {
			_, rest, err = lines.ReadLine()
		}
		if text != "" {
			if t := now(); t.Sub(start) >= logWindow {
				if count > logPerWindow {
					log.Warn("libvirt: lines left out", "count", count-logPerWindow)
				}
				start, count = t, 0
			}
			if count++; count <= logPerWindow {
				level, message := parseLogLine(text)
				write(log, level, message)
			}
		}
		if err != nil {
			return
		}
	}
}

func write(log *slog.Logger, level slog.Level, message string) {
	switch level {
	case slog.LevelError:
		log.Error("libvirt", "message", message)
	case slog.LevelWarn:
		log.Warn("libvirt", "message", message)
	default:
		log.Debug("libvirt", "message", message)
	}
}

// harmless are parts of lines that every embedded driver prints. Monitor
// commands are how machines get their vsock device, so that taint is expected.
func harmless(message string) bool {
	for _, part := range []string{
		"No access manager", "dmidecode", "At least one cgroup controller is required",
		"is tainted: custom-monitor", "Domain not found", "no device found with alias",
		"disables default policy to create confined guests", "hostname: ", "libvirt version: ",
	} {
		if strings.Contains(message, part) {
			return true
		}
	}
	return false
}

// parseLogLine splits "date time+zone: pid: level : function:line : message".
// A line of another form is a warning as it stands.
func parseLogLine(line string) (slog.Level, string) {
	level, message := slog.LevelWarn, line
	parts := strings.SplitN(line, ": ", 4)
	if len(parts) == 4 {
		switch strings.TrimSpace(parts[2]) {
		case "error":
			level, message = slog.LevelError, parts[3]
		case "warning":
			message = parts[3]
		case "info", "debug":
			level, message = slog.LevelDebug, parts[3]
		}
	}
	if harmless(message) {
		level = slog.LevelDebug
	}
	return level, message
}
