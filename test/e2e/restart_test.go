package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

const slowRunner = `
let n = 0;
const timer = setInterval(() => {
  console.log('tick ' + ++n);
  if (n === 60) clearInterval(timer);
}, 250);
`

// TestCrashWhileCommandStreams kills the daemon with -9 while a command writes
// and sandboxctl follows it. After the restart the machine is listed and
// answers, the task reaches its true end, and sandboxctl, which has waited for
// the daemon to come back, has shown every line of output once.
func TestCrashWhileCommandStreams(t *testing.T) {
	d := own(t, rig.Options{})
	ctx := deadline(t)
	_, err := d.Must(ctx, "up", "agentic-dev", "--name", "crash", "--workspace", workspace(t, slowRunner))
	check(t, err)
	before, err := d.Must(ctx, "show", "crash", "-o", "json")
	check(t, err)

	// Stream until some output has been seen, then pull the rug.
	pr, pw := io.Pipe()
	var status int
	ended := make(chan error, 1)
	go func() {
		var err error
		status, err = d.CtlTo(ctx, pw, io.Discard, "run", "crash", "--mode", "plan", "--request", request)
		_ = pw.Close()
		ended <- err
	}()
	var followed strings.Builder
	lines := bufio.NewScanner(pr)
	for lines.Scan() {
		followed.WriteString(lines.Text() + "\n")
		if lines.Text() == "tick 3" {
			check(t, d.Kill())
			check(t, d.Launch(ctx))
		}
	}
	check(t, <-ended)
	if want := ticks(60); status != 0 || followed.String() != want {
		t.Errorf("sandboxctl ended with status %d and output %q, want 0 and %q", status, followed.String(), want)
	}
	_, err = d.Must(ctx, "wait", "crash")
	check(t, err)
	after, err := d.Must(ctx, "show", "crash", "-o", "json")
	check(t, err)
	if id(t, before) != id(t, after) {
		t.Errorf("the instance is another one: %s then %s", id(t, before), id(t, after))
	}
	out, err := d.Must(ctx, "task", "ls", "crash", "-o", "json")
	check(t, err)
	var list struct{ Tasks []task }
	check(t, json.Unmarshal([]byte(out), &list))
	if len(list.Tasks) != 1 {
		t.Fatalf("have %d tasks, want the one that ran:\n%s", len(list.Tasks), out)
	}
	k := waitTask(t, d, "crash", list.Tasks[0].ID)
	if k.Status.State != "TASK_STATE_COMPLETED" {
		t.Errorf("the task is %s, want completed", k.Status.State)
	}
	if got, want := k.text("stdout"), ticks(60); got != want {
		t.Errorf("output is %q, want %q", got, want)
	}
	// And new work is done as if nothing had been.
	if _, err := d.Must(ctx, "send", "crash", "still there?"); err != nil {
		t.Error(err)
	}
}

// TestStopLeavesMachinesRunning ends the daemon in order; the next one finds
// the machine, and with --stop-machines it ends too.
func TestStopLeavesMachinesRunning(t *testing.T) {
	d := own(t, rig.Options{})
	ctx := deadline(t)
	_, err := d.Must(ctx, "up", "minimal", "--name", "stays")
	check(t, err)
	uptime := func() string {
		out, err := d.Must(ctx, "show", "stays", "-o", "json")
		check(t, err)
		var v struct {
			Guest struct {
				AnsweredAt string `json:"answered_at"`
			} `json:"guest"`
			State string `json:"state"`
		}
		check(t, json.Unmarshal([]byte(out), &v))
		return v.State
	}
	check(t, d.Stop())
	check(t, d.Launch(ctx))
	_, err = d.Must(ctx, "wait", "stays")
	check(t, err)
	if s := uptime(); s != "running" {
		t.Errorf("after a stop and a start it is %s, want running", s)
	}
	_, err = d.Must(ctx, "send", "stays", "hello")
	check(t, err)
	_, err = d.Must(ctx, "stop", "stays")
	check(t, err)
	if s := uptime(); s != "stopped" {
		t.Errorf("after stop it is %s", s)
	}
	_, err = d.Must(ctx, "start", "stays")
	check(t, err)
	_, err = d.Must(ctx, "send", "stays", "hello again")
	check(t, err)
}

// TestStopMachines ends a daemon that was asked to take its machines along.
func TestStopMachines(t *testing.T) {
	d := own(t, rig.Options{Args: []string{"--stop-machines"}})
	ctx := deadline(t)
	_, err := d.Must(ctx, "up", "minimal", "--name", "goes")
	check(t, err)
	check(t, d.Stop())
	left, err := d.Machines()
	check(t, err)
	if len(left) > 0 {
		t.Errorf("machines run on: %q", left)
	}
	check(t, d.Launch(ctx))
	out, err := d.Must(ctx, "show", "goes", "-o", "json")
	check(t, err)
	if !strings.Contains(out, `"stopped"`) {
		t.Errorf("after the restart: %s", out)
	}
	_, err = d.Must(ctx, "start", "goes")
	check(t, err)
}

// ticks is what slowRunner prints.
func ticks(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		b.WriteString("tick " + itoa(i) + "\n")
	}
	return b.String()
}

func id(t *testing.T, show string) string {
	t.Helper()
	var v struct {
		ID string `json:"id"`
	}
	check(t, json.Unmarshal([]byte(show), &v))
	return v.ID
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// waitTask asks for a task until it has ended.
func waitTask(t *testing.T, d *rig.Daemon, machine, taskID string) task {
	t.Helper()
	ctx := deadline(t)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		out, err := d.Must(ctx, "task", "show", machine, taskID, "-o", "json")
		check(t, err)
		k := parseTask(t, out)
		switch k.Status.State {
		case "TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED":
			return k
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the task is still %s\n%s", k.Status.State, d.Log())
		}
	}
}
