package loadouts

import (
	"fmt"
	"slices"
	"strconv"
)

// The defaults of a loadout. They suit the smallest image; a machine for
// real work asks for more.
const (
	DefaultCPUs                = 1
	DefaultMemory              = 512 * MiB
	DefaultUser                = "agent"
	DefaultWorkspace           = "/workspace"
	DefaultVersion             = "1.0.0"
	DefaultSetupTimeoutSeconds = 300

	// maxEnvBytes bounds all of env, names and values, well below what one
	// command's environment may hold (agentv1.MaxArgBytes).
	maxEnvBytes = 64 << 10
)

// Combine lays documents over one another, later ones over earlier ones, and
// fills in the defaults. The last document gives the loadout its name and
// must be of kind loadout. It does not look at extends: Resolve does.
func Combine(layers ...*Layer) (*Loadout, error) {
	if len(layers) == 0 {
		return nil, fmt.Errorf("cannot combine loadouts: there are none")
	}
	last := layers[len(layers)-1]
	if last.Kind != KindLoadout {
		return nil, Errors{{Pos: last.root.at("kind").pos, Path: "kind",
			Rule: "a layer cannot become a machine, it can only be extended: want loadout"}}
	}
	var all *value
	for _, l := range layers {
		all = merge(all, l.root, topRule)
	}
	c := completer{root: all}
	loadout := c.complete()
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	return loadout, nil
}

// completer turns merged values into a Loadout and checks what no single
// place can show.
type completer struct {
	root *value
	errs Errors
}

func (c *completer) fail(pos Pos, path, rule string) {
	c.errs = append(c.errs, Error{Pos: pos, Path: path, Rule: rule})
}

func (c *completer) text(otherwise string, path ...string) string {
	if v := c.root.at(path...); v != nil {
		return v.text
	}
	return otherwise
}

// whole and bytes read texts that their rules have let through.
func (c *completer) whole(otherwise int, path ...string) int {
	n, err := strconv.Atoi(c.text("", path...))
	if err != nil {
		return otherwise
	}
	return n
}

func (c *completer) bytes(otherwise int64, path ...string) int64 {
	n, err := ParseSize(c.text("", path...))
	if err != nil {
		return otherwise
	}
	return n
}

func (c *completer) complete() *Loadout {
	c.limits(c.root, topRule, "")
	name := c.text("", "metadata", "name")
	description := c.text("", "metadata", "description")
	user := c.text(DefaultUser, "agent", "user")
	l := &Loadout{
		Name:        name,
		Description: description,
		Labels:      c.root.at("metadata", "labels").textMap(),
		Resources: Resources{
			CPUs:   c.whole(DefaultCPUs, "resources", "cpus"),
			Memory: c.bytes(DefaultMemory, "resources", "memory"),
			Disk:   c.bytes(0, "resources", "disk"),
		},
		Runtime: RuntimeOptions{
			Kind:     RuntimeKind(c.text(string(RuntimeVM), "runtime_options", "kind")),
			Provider: c.text("", "runtime_options", "provider"),
			Required: c.root.at("runtime_options", "required_capabilities").texts(),
			Excluded: c.root.at("runtime_options", "excluded_capabilities").texts(),
		},
		Image:   c.image(),
		Network: Network{Mode: NetworkMode(c.text(string(NetworkIsolated), "network", "mode"))},
		Runners: c.root.at("runners").texts(),
		Agent: Agent{
			Name:    c.text(name, "agent", "name"),
			Version: c.text(DefaultVersion, "agent", "version"),
			Skills:  c.skills(),
			User:    user,
		},
		Workspace: Workspace{
			Path: c.text(DefaultWorkspace, "workspace", "path"),
			User: c.text(user, "workspace", "user"),
		},
		Env: c.env(),
		Readiness: Readiness{
			SetupTimeoutSeconds: c.whole(DefaultSetupTimeoutSeconds, "readiness", "setup_timeout_seconds"),
		},
		Lifecycle: Lifecycle{
			TTLSeconds: c.whole(0, "lifecycle", "ttl_seconds"),
			Idle:       c.idle(),
		},
	}
	if description == "" {
		description = "One machine of the loadout " + name + "."
	}
	l.Agent.Description = c.text(description, "agent", "description")
	if len(l.Runners) == 0 {
		l.Runners = []string{RunnerEcho}
	}
	if len(l.Agent.Skills) == 0 {
		// An AgentCard must have one.
		l.Agent.Skills = defaultSkills(l.Runners)
	}
	c.capabilities(l.Runtime)
	return l
}

// limits holds the number of items once more: a union can outgrow it.
func (c *completer) limits(v *value, want rule, path string) {
	if broken := v.tooMany(want); broken != "" {
		c.fail(v.pos, path, broken+" after merging")
	}
	if want.form != object {
		return
	}
	for _, name := range names(v.fields) {
		c.limits(v.fields[name], want.fields[name], join(path, name))
	}
}

func (c *completer) image() Image {
	v := c.root.at("image")
	if v == nil {
		c.fail(c.root.pos, "image", "want this field here or in what the loadout extends, such as image: minimal")
		return Image{}
	}
	var image Image
	if err := image.UnmarshalText([]byte(v.text)); err != nil {
		c.fail(v.pos, "image", err.Error())
	}
	return image
}

func (c *completer) skills() []Skill {
	v := c.root.at("agent", "skills")
	if v == nil {
		return nil
	}
	seen := map[string]Pos{}
	skills := make([]Skill, 0, len(v.list))
	for i, one := range v.list {
		s := Skill{
			ID:          one.at("id").text,
			Name:        one.at("name").text,
			Description: one.at("description").text,
			Tags:        one.at("tags").texts(),
			Examples:    one.at("examples").texts(),
		}
		if len(s.Tags) == 0 {
			s.Tags = []string{s.ID}
		}
		if first, twice := seen[s.ID]; twice {
			c.fail(one.at("id").pos, fmt.Sprintf("agent.skills[%d].id", i),
				fmt.Sprintf("want an id of its own: %q stands first at %s", s.ID, first))
		}
		seen[s.ID] = one.at("id").pos
		skills = append(skills, s)
	}
	return skills
}

// idle is nil unless a timeout is set: the action alone says nothing.
func (c *completer) idle() *Idle {
	v := c.root.at("lifecycle", "idle")
	if v == nil {
		return nil
	}
	if v.at("timeout_seconds") == nil {
		c.fail(v.pos, "lifecycle.idle.timeout_seconds", "want this field here or in what the loadout extends")
		return nil
	}
	return &Idle{
		TimeoutSeconds: c.whole(0, "lifecycle", "idle", "timeout_seconds"),
		Action:         IdleAction(c.text(string(IdlePause), "lifecycle", "idle", "action")),
		Wake:           c.text("true", "lifecycle", "idle", "wake") == "true",
	}
}

func (c *completer) env() map[string]string {
	v := c.root.at("env")
	env := v.textMap()
	total := 0
	for name, text := range env {
		total += len(name) + len(text) + 2 // "=" and the NUL of the kernel's form
	}
	if total > maxEnvBytes {
		c.fail(v.pos, "env", fmt.Sprintf("want at most %s of names and values, not %d bytes", FormatSize(maxEnvBytes), total))
	}
	return env
}

func (c *completer) capabilities(o RuntimeOptions) {
	for i, excluded := range o.Excluded {
		if slices.Contains(o.Required, excluded) {
			v := c.root.at("runtime_options", "excluded_capabilities")
			c.fail(v.list[i].pos, fmt.Sprintf("runtime_options.excluded_capabilities[%d]", i),
				quote(excluded)+" is required too: want it in one of the two lists")
		}
	}
}

func defaultSkills(runners []string) []Skill {
	skills := make([]Skill, 0, len(runners))
	for _, runner := range runners {
		switch runner {
		case RunnerEcho:
			skills = append(skills, Skill{ID: RunnerEcho, Name: "Echo",
				Description: "Sends a text message back as an artifact, by a process in the machine.",
				Tags:        []string{"text", "diagnostics"}, Examples: []string{"hello"}})
		case RunnerAdapterCommand:
			skills = append(skills, Skill{ID: RunnerAdapterCommand, Name: "Adapter command",
				Description: "Runs the bounded adapter command of adapter-command/v1 in plan or assess mode.",
				Tags:        []string{"adapter", "plan", "assess"}})
		}
	}
	return skills
}
