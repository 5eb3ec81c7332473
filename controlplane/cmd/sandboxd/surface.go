package main

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/gorilla/mux"
	"github.com/spf13/pflag"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

// surfaceConfig is how the A2A surface is reached and what it may cost.
type surfaceConfig struct {
	Domain   string // of virtual hosts; empty: none
	Extended bool   // offer extended cards

	Body       int64
	Blocking   time.Duration
	Streams    int64
	Inline     int
	Tasks      int
	TaskOutput uint64
}

func (c *surfaceConfig) flags(f *pflag.FlagSet) {
	f.StringVar(&c.Domain, "a2a-domain", "", "serve each instance also at the root of the origin {instance_id}.`DOMAIN`, "+
		"a host name with or without a port")
	f.BoolVar(&c.Extended, "a2a-extended-card", false, "offer an extended card, which lists an instance's runners as skills")
	f.Int64Var(&c.Body, "a2a-max-body", 4<<20, "largest A2A request, in `bytes`")
	f.DurationVar(&c.Blocking, "a2a-blocking-wait", 50*time.Second,
		"how long a message may wait for its task; then the answer is the task as it is")
	f.Int64Var(&c.Streams, "a2a-max-streams", 1024, "most A2A streams open at once")
	f.IntVar(&c.Inline, "a2a-inline-artifact", 1<<20, "most `bytes` of one artifact within a task; the rest is behind its URL")
	f.IntVar(&c.Tasks, "max-tasks-per-instance", 32, "most unfinished tasks of one instance")
	f.Uint64Var(&c.TaskOutput, "max-task-output", 256<<20, "most `bytes` of output kept for one task; a command that writes more is ended")
}

// domainForm is a host name and perhaps a port.
var domainForm = regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)*` +
	`[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(:[0-9]{1,5})?$`)

func (c *surfaceConfig) complete() error {
	if c.Domain != "" && !domainForm.MatchString(c.Domain) {
		return fmt.Errorf("--a2a-domain %q: want a host name such as agents.example.com, with or without a port", c.Domain)
	}
	for name, v := range map[string]int64{
		"--a2a-max-body": c.Body, "--a2a-blocking-wait": int64(c.Blocking), "--a2a-max-streams": c.Streams,
		"--a2a-inline-artifact":    int64(c.Inline),
		"--max-tasks-per-instance": int64(c.Tasks), "--max-task-output": int64(min(c.TaskOutput, 1<<62)),
	} {
		if v <= 0 {
			return fmt.Errorf("%s: must be more than 0", name)
		}
	}
	return nil
}

// a2a sets what the surface must know.
func (c *surfaceConfig) a2a(cfg *a2a.Config) {
	cfg.VirtualHostDomain = c.Domain
	cfg.Limits.Body, cfg.Limits.Blocking = c.Body, c.Blocking
	cfg.Limits.Streams, cfg.Limits.Inline = c.Streams, c.Inline
	if c.Extended {
		cfg.ExtendedSkills = runnerSkills
	}
}

// engine is cfg with the bounds of tasks.
func (c *surfaceConfig) engine(cfg engine.Config) engine.Config {
	cfg.MaxUnfinished, cfg.OutputLimit = c.Tasks, c.TaskOutput
	return cfg
}

// virtualHosts routes the origins of instances to their surface, before every
// path.
func (c *surfaceConfig) virtualHosts(r *mux.Router, surface http.Handler) {
	if c.Domain == "" {
		return
	}
	r.MatcherFunc(func(req *http.Request, _ *mux.RouteMatch) bool {
		_, ok := a2a.VirtualHost(req.Host, c.Domain)
		return ok
	}).Handler(surface)
}

// runnerSkills are the skills of an extended card: one for each runner that
// the instance's loadout allows.
func runnerSkills(agent a2a.Agent) []a2a.Skill {
	skills := []a2a.Skill{
		{ID: "runner.echo", Name: "Echo", Tags: []string{"runner"}, Description: "Answers a message with its text, by way of the machine."},
		{
			ID: "runner.adapter-command", Name: "Adapter command", Tags: []string{"runner", "adapter-command/v1"},
			Description: "Runs sandbox-agent-runner in mode plan or assess, for 1 to 900 seconds, as adapter-command/v1 says.",
		},
	}
	return slices.DeleteFunc(skills, func(s a2a.Skill) bool {
		return !slices.Contains(agent.Runners, s.ID[len("runner."):])
	})
}
