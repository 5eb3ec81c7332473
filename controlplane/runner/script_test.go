package runner_test

import (
	"encoding/json"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

func TestScriptCheck(t *testing.T) {
	text, empty, null := task.TextPart("x"), task.TextPart(""), task.Part{}
	both := task.TextPart("x")
	both.Data = json.RawMessage("1")
	done := runner.Status(task.Completed, "")
	add := func(p task.Part, last bool) runner.Step { return runner.Step{Artifact: "a", Part: &p, Last: last} }
	steps := func(all ...runner.Step) runner.Script { return runner.Script{Steps: all} }
	wait := func(d time.Duration) runner.Step { return runner.Step{State: task.Completed, Wait: d} }
	for name, c := range map[string]struct {
		script runner.Script
		ok     bool
	}{
		"reply":            {runner.Script{Reply: []task.Part{text}}, true},
		"end":              {steps(done), true},
		"waiting":          {steps(runner.Status(task.AuthRequired, "who?")), true},
		"artifact":         {steps(add(text, false), add(text, true), done), true},
		"two artifacts":    {steps(add(text, false), runner.Whole("b", text), add(text, true), done), true},
		"longest wait":     {steps(wait(runner.MaxWait)), true},
		"nothing":          {runner.Script{}, false},
		"both":             {runner.Script{Reply: []task.Part{text}, Steps: []runner.Step{done}}, false},
		"empty reply":      {runner.Script{Reply: []task.Part{empty}}, false},
		"no end":           {steps(runner.Status(task.Working, "")), false},
		"end in between":   {steps(done, done), false},
		"wait in between":  {steps(runner.Status(task.InputRequired, ""), done), false},
		"submitted":        {steps(runner.Status(task.Submitted, ""), done), false},
		"unknown state":    {steps(runner.Status("x", ""), done), false},
		"empty step":       {steps(runner.Step{}, done), false},
		"step of both":     {steps(runner.Step{State: task.Working, Part: &text, Artifact: "a", Last: true}, done), false},
		"text with a part": {steps(runner.Step{Text: "x", Part: &text, Artifact: "a", Last: true}, done), false},
		"state of artifact": {
			steps(runner.Step{State: task.Working, Artifact: "a"}, done), false,
		},
		"no artifact":    {steps(runner.Step{Part: &text, Last: true}, done), false},
		"open artifact":  {steps(add(text, false), done), false},
		"after the last": {steps(add(text, true), add(text, true), done), false},
		"empty part":     {steps(add(empty, true), done), false},
		"no part":        {steps(add(null, true), done), false},
		"part of both":   {steps(add(both, true), done), false},
		"too long":       {steps(wait(runner.MaxWait + 1)), false},
		"negative":       {steps(wait(-1)), false},
	} {
		if err := c.script.Check(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
