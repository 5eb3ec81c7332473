package engine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestAgentDialog holds a dialogue with a real script in the real agent, over
// a link that breaks and an engine that is started anew.
func TestAgentDialog(t *testing.T) {
	a := newAgentRig(t)
	a.Close()
	a.cfg.Runners = []runner.Runner{asking{}}
	a.cfg.PromptQuiet = 100 * time.Millisecond
	a.start()
	id := a.run(`for i in 1 2 3; do printf "Question $i? [y/N] "; read a; echo "<$a>"; done`, nil)
	var asked []string
	ask := func(want string) (task.Record, string) {
		t.Helper()
		e := a.asks(id, asked...)
		asked = append(asked, e.PromptID)
		if e.Prompt != want {
			t.Errorf("asked %q, want %q", e.Prompt, want)
		}
		rec, err := a.db.Task(t.Context(), task.System(), id, task.View{Inline: -1})
		if err != nil {
			t.Fatal(err)
		}
		return rec, e.PromptID
	}
	rec, first := ask("Question 1? [y/N]")
	a.answer(rec, first, "one")

	rec, second := ask("Question 2? [y/N]")
	a.Close()
	a.cut()
	a.start()
	if err := a.Reply(t.Context(), reply(rec, second, "x")); !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("a reply to the prompt of before: %v", err)
	}
	rec, again := ask("Question 2? [y/N]")
	a.answer(rec, again, strings.Repeat("2", prompt.MaxText))

	rec, third := ask("Question 3? [y/N]")
	a.answer(rec, third, "")
	end := a.end(id)
	want := "Question 1? [y/N] <one>\nQuestion 2? [y/N] <" + strings.Repeat("2", prompt.MaxText) + ">\nQuestion 3? [y/N] <>\n"
	if got := textOf(end, "stdout"); end.Status.State != task.Completed || got != want {
		t.Errorf("%s %.200q", end.Status.State, got)
	}
	checkLog(t, a.db, end)
}
