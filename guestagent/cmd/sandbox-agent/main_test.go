package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/boot"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
)

// beAgent makes the test binary behave as the program itself.
const beAgent = "SANDBOX_TEST_BE_AGENT"

func TestMain(m *testing.M) {
	// The supervisor of a run has no environment, but its own name.
	if os.Getenv(beAgent) != "" || len(os.Args) == 2 && os.Args[1] == command.ShimCommand {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const patience = 2 * time.Minute

type process struct {
	agentv1.AgentClient
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	ended  chan error
}

// launch runs the program on a socket of its own until it says it is ready.
func launch(t *testing.T) *process {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, []byte(`{"version":1,"instance_id":"0190a0a0-0000-7000-8000-000000000001"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "agent.sock")
	p := &process{stderr: &bytes.Buffer{}, ended: make(chan error, 1)}
	p.cmd = exec.CommandContext(t.Context(), os.Args[0], "serve", "--listen", "unix:"+socket, "--config", config)
	p.cmd.Env = append(os.Environ(), beAgent+"=1")
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	go func() { p.ended <- p.cmd.Wait() }()
	if err != nil || line != readyLine+"\n" {
		t.Fatalf("%q %v %s", line, err, p.stderr)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info, err)
	}
	conn, err := grpc.NewClient("passthrough:agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p.AgentClient = agentv1.NewAgentClient(conn)
	return p
}

func (p *process) start(t *testing.T, id, script string) {
	t.Helper()
	_, err := p.StartRun(t.Context(), &agentv1.StartRunRequest{RunId: id, Spec: &agentv1.RunSpec{
		Argv: []string{"/bin/sh", "-c", script}, Root: "/", Timeout: durationpb.New(patience),
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// status reads a number of /proc/PID/status.
func (p *process) status(t *testing.T, field string) int {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", field, data)
	return 0
}

const runID = "0190a0a0-0000-7000-8000-00000000000a"

func TestMemoryStaysBoundedUnderBigOutput(t *testing.T) {
	t.Parallel()
	p := launch(t)
	before := p.status(t, "VmRSS")
	const size = 64 << 20
	p.start(t, runID, fmt.Sprintf("yes | head -c %d; exit 7", size))
	stream, err := p.AttachRun(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&agentv1.AttachRequest{Request: &agentv1.AttachRequest_Attach{Attach: &agentv1.Attach{RunId: runID}}}); err != nil {
		t.Fatal(err)
	}
	got := 0
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if o := m.GetOutput(); o != nil {
			got += len(o.GetData())
			ack := &agentv1.AttachRequest{Request: &agentv1.AttachRequest_Ack{Ack: &agentv1.Ack{Seq: o.GetSeq()}}}
			if err := stream.Send(ack); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		if e := m.GetExited(); e != nil {
			if got != size || e.GetCode() != 7 {
				t.Errorf("%d bytes, %v", got, e)
			}
			break
		}
	}
	// The race detector multiplies what the program itself takes.
	if grown := p.status(t, "VmHWM") - before; grown > 48<<10 {
		t.Errorf("the agent grew by %d KiB for %d bytes of output", grown, size)
	}
}

// processes lists those whose command line holds a mark.
func processes(t *testing.T, mark string) []string {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), mark) {
			found = append(found, name)
		}
	}
	return found
}

func TestKilledAgentLeavesNoProcess(t *testing.T) {
	t.Parallel()
	p := launch(t)
	mark := "mark-" + filepath.Base(t.TempDir()) + strconv.Itoa(os.Getpid())
	p.start(t, runID, `trap '' TERM HUP; (setsid sh -c 'trap "" TERM; while :; do sleep 1; done' `+mark+`) & while :; do sleep 1; done`)
	await(t, func() bool { return len(processes(t, mark)) >= 2 })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	await(t, func() bool { return len(processes(t, mark)) == 0 })
}

// await polls for what the kernel gives no event for.
func await(t *testing.T, done func() bool) {
	t.Helper()
	limit := time.After(patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !done() {
		select {
		case <-again.C:
		case <-limit:
			t.Fatal("it has not come to pass")
		}
	}
}

func TestEndInGoodOrder(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(p *process) error{
		"power off": func(p *process) error {
			_, err := p.PowerOff(t.Context(), &agentv1.PowerOffRequest{})
			return err
		},
		"signal": func(p *process) error { return p.cmd.Process.Signal(syscall.SIGTERM) },
	} {
		p := launch(t)
		p.start(t, runID, "trap '' TERM; while :; do sleep 1; done")
		if err := ask(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case err := <-p.ended:
			if err != nil {
				t.Errorf("%s: %v %s", name, err, p.stderr)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the agent has not ended", name)
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newer := filepath.Join(dir, "newer.json")
	if err := os.WriteFile(newer, []byte(`{"version":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "no command"},
		{[]string{"dance"}, `unknown command "dance"`},
		{[]string{"serve"}, "--listen"},
		{[]string{"serve", "--listen", "unix:" + dir + "/s", "--config", dir + "/none"}, "no such file"},
		{[]string{"serve", "--listen", "unix:" + dir + "/s", "--config", newer}, "version is 9"},
	} {
		var out, errOut bytes.Buffer
		if err := run(c.args, &out, &errOut); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
	var out bytes.Buffer
	if err := run([]string{"version"}, &out, io.Discard); err != nil || out.Len() < 2 {
		t.Errorf("version: %q %v", &out, err)
	}
	if boot.AgentCommand == command.ShimCommand {
		t.Error("two commands have one name")
	}
}
