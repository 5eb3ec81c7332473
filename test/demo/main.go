// Command demo shows the whole way once: a loadout becomes a real machine with
// an A2A address, an orchestrator sends the bounded adapter command, and the
// task ends truthfully. It exits with a status other than 0 if anything is not
// as it should be, or if anything is left behind.
//
// Run it by "make demo", which builds what it needs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

const (
	machine  = "demo"
	adapter  = ".aiwg/ops/adapters/sandbox-agent-runner"
	good     = adapter + "/examples/cycle-005-request.json"
	tooMuch  = adapter + "/examples/over-budget-request.json"
	breaking = adapter + "/../../../../etc/passwd"
)

// Exit statuses of "sandboxctl run", as its help documents them.
const (
	statusFailed  = 3
	statusRefused = 6
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	if err := demo(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo failed: %v\n", err)
		os.Exit(1)
	}
	fmt.Printf("\nThe demo is done: all was as it should be, and nothing is left (%s).\n", time.Since(began).Round(time.Second))
}

func demo(ctx context.Context) (err error) {
	say("Start sandboxd on a directory of its own")
	d, err := rig.Start(ctx, rig.Options{})
	if err != nil {
		return err
	}
	fmt.Printf("sandboxd serves %s\n", d.URL)
	defer func() {
		if err != nil {
			fmt.Fprintf(os.Stderr, "\n--- end of sandboxd's log ---\n%s\n", d.Log())
		}
		err = errors.Join(err, cleanUp(context.WithoutCancel(ctx), d))
	}()
	for _, step := range []func(context.Context, *rig.Daemon) error{up, card, runGood, runFailing, runRefused} {
		if err := step(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

func up(ctx context.Context, d *rig.Daemon) error {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return errors.New("cannot find the sample workspace")
	}
	workspace := filepath.Join(filepath.Dir(file), "workspace")
	say("Boot the loadout agentic-dev as a real machine and give it the sample workspace")
	if err := show(ctx, d, 0, "up", "agentic-dev", "--name", machine, "--workspace", workspace); err != nil {
		return err
	}
	return show(ctx, d, 0, "show", machine)
}

func card(ctx context.Context, d *rig.Daemon) error {
	say("Its AgentCard")
	out, err := d.Must(ctx, "card", machine)
	if err != nil {
		return err
	}
	fmt.Print(out)
	var c struct {
		Capabilities struct {
			Extensions []struct {
				URI      string
				Required bool
				Params   map[string]any
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		return fmt.Errorf("cannot read the card: %w", err)
	}
	for _, e := range c.Capabilities.Extensions {
		if strings.HasSuffix(e.URI, "/runtime/v1") && e.Required && e.Params["runtime"] == "vm" {
			return nil
		}
	}
	return errors.New("the card does not declare runtime/v1 as required")
}

func runGood(ctx context.Context, d *rig.Daemon) error {
	say("The bounded adapter command, streamed")
	if err := show(ctx, d, 0, "run", machine, "--mode", "plan", "--request", good); err != nil {
		return err
	}
	say("The same once more, the finished task as JSON")
	t, err := runTask(ctx, d, 0, good)
	if err != nil {
		return err
	}
	return t.want("TASK_STATE_COMPLETED", nil)
}

func runFailing(ctx context.Context, d *rig.Daemon) error {
	say("A request the adapter cannot carry out: its command exits 3")
	t, err := runTask(ctx, d, statusFailed, tooMuch)
	if err != nil {
		return err
	}
	return t.want("TASK_STATE_FAILED", map[string]any{"fail_kind": "application", "exit_code": 3.0})
}

func runRefused(ctx context.Context, d *rig.Daemon) error {
	say("An envelope that breaks a rule: it is refused, and the rule is named")
	r, err := d.Ctl(ctx, "run", machine, "--mode", "plan", "--request", breaking)
	if err != nil {
		return err
	}
	fmt.Printf("$ sandboxctl run %s --mode plan --request %s\n%s%s(status %d)\n", machine, breaking, r.Stdout, r.Stderr, r.Code)
	if r.Code != statusRefused || !strings.Contains(r.Stderr, "command") {
		return fmt.Errorf("it was not refused with the rule: status %d, want %d", r.Code, statusRefused)
	}
	return nil
}

// cleanUp removes the machine, ends the daemon and wants nothing left.
func cleanUp(ctx context.Context, d *rig.Daemon) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	say("Remove everything")
	_, rmErr := d.Must(ctx, "rm", machine)
	if rmErr == nil {
		fmt.Printf("removed %s\n", machine)
	}
	err := errors.Join(rmErr, d.Stop())
	left, leftErr := d.Leftovers()
	err = errors.Join(err, leftErr)
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	return errors.Join(err, d.Remove())
}

// taskView is what the demo checks of a task.
type taskView struct {
	raw    string
	Status struct {
		State string
	}
	Metadata map[string]any
}

func (t taskView) want(state string, facts map[string]any) error {
	if t.Status.State != state {
		return fmt.Errorf("the task is %s, want %s", t.Status.State, state)
	}
	for key, want := range facts {
		if !contains(t.Metadata, key, want) {
			return fmt.Errorf("the task's metadata does not say %s = %v", key, want)
		}
	}
	if t.Metadata["runtime.kind"] != "vm" {
		return errors.New("the task's metadata lacks runtime.kind")
	}
	return nil
}

// contains looks for a key with a value anywhere in nested metadata.
func contains(m map[string]any, key string, want any) bool {
	if got, ok := m[key]; ok && got == want {
		return true
	}
	for _, v := range m {
		if inner, ok := v.(map[string]any); ok && contains(inner, key, want) {
			return true
		}
	}
	return false
}

func runTask(ctx context.Context, d *rig.Daemon, status int, request string) (taskView, error) {
	r, err := d.Ctl(ctx, "run", machine, "--mode", "plan", "--request", request, "-o", "json")
	if err != nil {
		return taskView{}, err
	}
	fmt.Printf("$ sandboxctl run %s --mode plan --request %s -o json\n%s%s(status %d)\n", machine, request, r.Stdout, r.Stderr, r.Code)
	t := taskView{raw: r.Stdout}
	if r.Code != status {
		return t, fmt.Errorf("status is %d, want %d", r.Code, status)
	}
	if err := json.Unmarshal([]byte(r.Stdout), &t); err != nil {
		return t, fmt.Errorf("cannot read the task: %w", err)
	}
	return t, nil
}

// show runs sandboxctl with its output on the terminal.
func show(ctx context.Context, d *rig.Daemon, status int, args ...string) error {
	fmt.Printf("$ sandboxctl %s\n", strings.Join(args, " "))
	code, err := d.CtlTo(ctx, os.Stdout, os.Stdout, args...)
	if err != nil {
		return err
	}
	if code != status {
		return fmt.Errorf("sandboxctl %s: status is %d, want %d", args[0], code, status)
	}
	return nil
}

func say(text string) { fmt.Printf("\n== %s\n", text) }
