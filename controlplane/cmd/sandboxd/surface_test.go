package main

import (
	"testing"

	"github.com/spf13/pflag"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

func TestSurfaceFlags(t *testing.T) {
	for args, ok := range map[*[]string]bool{
		{}: true,
		{"--a2a-domain=agents.example.com", "--a2a-max-body=100", "--max-tasks-per-instance=3", "--a2a-extended-card"}: true,
		{"--a2a-domain=localhost:8420"}:            true,
		{"--a2a-domain=.example.com"}:              false,
		{"--a2a-domain=http://x"}:                  false,
		{"--a2a-domain=a..b"}:                      false,
		{"--a2a-domain=*.example.com"}:             false,
		{"--a2a-max-body=0"}:                       false,
		{"--a2a-max-streams=-1"}:                   false,
		{"--a2a-inline-artifact=0"}:                false,
		{"--a2a-blocking-wait=0s"}:                 false,
		{"--max-tasks-per-instance=0"}:             false,
		{"--max-task-output=0"}:                    false,
		{"--max-task-output=18446744073709551615"}: true,
	} {
		var c surfaceConfig
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.flags(f)
		if err := f.Parse(*args); err != nil {
			t.Fatal(err)
		}
		if err := c.complete(); (err == nil) != ok {
			t.Errorf("%v: %v", *args, err)
		}
		var surface a2a.Config
		c.a2a(&surface)
		tasks := c.engine(engine.Config{})
		if surface.Limits.Body != c.Body || surface.VirtualHostDomain != c.Domain || (surface.ExtendedSkills != nil) != c.Extended ||
			tasks.MaxUnfinished != c.Tasks || tasks.OutputLimit != c.TaskOutput {
			t.Errorf("%v became %+v %+v", *args, surface, tasks)
		}
	}
}

func TestRunnerSkills(t *testing.T) {
	for _, c := range []struct {
		runners []string
		want    int
	}{{nil, 0}, {[]string{"echo"}, 1}, {[]string{"adapter-command", "echo", "new"}, 2}} {
		if got := runnerSkills(a2a.Agent{Runners: c.runners}); len(got) != c.want {
			t.Errorf("%v: %v", c.runners, got)
		}
	}
}
