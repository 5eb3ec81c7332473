package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// termPatience is how long processes have between SIGTERM and SIGKILL when
	// the machine ends, killPatience how long the kernel has to end them.
	termPatience = 8 * time.Second
	killPatience = 3 * time.Second
)

// run starts the agent, and again when it crashes, and reaps every orphan
// until the machine shall end. An error says why it must.
func run(h Handover) error {
	children := make(chan os.Signal, 1) // one is as good as many
	signal.Notify(children, unix.SIGCHLD)
	power := make(chan os.Signal, 1)
	signal.Notify(power, unix.SIGUSR2, unix.SIGTERM, unix.SIGINT, unix.SIGPWR)
	// Control-alt-delete asks us instead of the kernel.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	defer endAll(children)

	handover, err := writeHandover(h)
	if err != nil {
		return err
	}
	var (
		policy  restarts
		agent   int
		again   = time.NewTimer(0)
		started time.Time
	)
	defer again.Stop()
	for {
		select {
		case <-power:
			return nil
		case <-again.C:
			started = time.Now()
			if agent, err = startAgent(handover); err != nil {
				return err
			}
		case <-children:
			ended, status := reap(agent)
			if !ended {
				continue
			}
			agent = 0
			if status.Exited() && status.ExitStatus() == 0 {
				return nil // the host has asked for the end
			}
			delay, ok := policy.crashed(time.Since(started))
			if !ok {
				return fmt.Errorf("the agent has crashed %d times in a row, last with %s", maxCrashes, describe(status))
			}
			fmt.Fprintf(os.Stderr, "sandbox-agent: the agent ended with %s, starting it again\n", describe(status))
			again.Reset(delay)
		}
	}
}

// restarts decides when a crashed agent is started again. A plain value.
type restarts struct{ crashes int }

const (
	maxCrashes   = 8
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// steady is how long an agent must have run for its crash to be a new one.
	steady = time.Minute
)

func (r *restarts) crashed(ran time.Duration) (time.Duration, bool) {
	if ran >= steady {
		r.crashes = 0
	}
	r.crashes++
	if r.crashes >= maxCrashes {
		return 0, false
	}
	return min(firstBackoff<<(r.crashes-1), lastBackoff), true
}

func describe(ws syscall.WaitStatus) string {
	if ws.Signaled() {
		return fmt.Sprintf("signal %d", ws.Signal())
	}
	return fmt.Sprintf("status %d", ws.ExitStatus())
}

// reap takes every child that has ended and says whether the agent was one.
func reap(agent int) (ended bool, status syscall.WaitStatus) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return ended, status
		}
		if pid == agent {
			ended, status = true, ws
		}
	}
}

// startAgent runs this program again as the agent, in a session of its own.
func startAgent(handover *os.File) (int, error) {
	if _, err := handover.Seek(0, 0); err != nil {
		return 0, fmt.Errorf("cannot start the agent: %w", err)
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"sandbox-agent", AgentCommand}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
		Files: []uintptr{0, 1, 2, handover.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("cannot start the agent: %w", err)
	}
	return pid, nil
}

// writeHandover keeps what agents must know in memory: the file it came from
// is gone.
func writeHandover(h Handover) (*os.File, error) {
	fd, err := unix.MemfdCreate("handover", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot keep the boot configuration: %w", err)
	}
	f := os.NewFile(uintptr(fd), "handover")
	if err := json.NewEncoder(f).Encode(h); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot keep the boot configuration: %w", err), f.Close())
	}
	return f, nil
}

// ReadHandover reads what process 1 has left for the agent.
func ReadHandover() (Handover, error) {
	unix.CloseOnExec(HandoverFD)
	f := os.NewFile(HandoverFD, "handover")
	defer f.Close()
	var h Handover
	if err := json.NewDecoder(f).Decode(&h); err != nil {
		return Handover{}, fmt.Errorf("cannot read what process 1 has left: %w", err)
	}
	return h, nil
}

// endAll ends every process but this one.
func endAll(children <-chan os.Signal) {
	_ = unix.Kill(-1, unix.SIGTERM) // there may be none
	if !awaitAll(children, termPatience) {
		_ = unix.Kill(-1, unix.SIGKILL)
		awaitAll(children, killPatience)
	}
}

// awaitAll reaps until no child is left, and says whether it came to that.
func awaitAll(children <-chan os.Signal, patience time.Duration) bool {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			return true
		case pid > 0 || errors.Is(err, syscall.EINTR):
			continue
		}
		select {
		case <-children:
		case <-limit.C:
			return false
		}
	}
}
