package plan

import (
	"fmt"
	"maps"
	"path"
	"slices"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// firstUID is the first id given to workload accounts; 1000 is what images
// made by images/build give to "agent".
const firstUID = 1000

// rootUser is the one account every guest has.
const rootUser = "root"

// Input is what a plan is made of.
type Input struct {
	ID      instance.ID
	Name    string
	Loadout *loadouts.Loadout
	Hash    string
	// Image is the pinned reference the loadout's resolved to, and DiskSize
	// the virtual size of its root disk in bytes.
	Image    images.Ref
	DiskSize int64
	Runtime  Runtime
	// Env is added to the loadout's and wins over it.
	Env map[string]string
}

// Make decides everything about one instance. It fails only on input that
// contradicts itself; the fault is then the caller's.
func Make(in Input) (Plan, error) {
	l := in.Loadout
	if in.Image.Digest == "" {
		return Plan{}, fmt.Errorf("internal error: plan for %q with an image that is not pinned", in.Name)
	}
	if l.Resources.Disk != 0 && l.Resources.Disk < in.DiskSize {
		return Plan{}, &instance.Fault{
			Blame: instance.Caller, Code: "loadout.invalid",
			Hint: fmt.Sprintf("leave it out, or ask for at least %d MiB", in.DiskSize>>20),
			Err: fmt.Errorf("resources.disk: %d MiB is less than the %d MiB of image %q",
				l.Resources.Disk>>20, in.DiskSize>>20, in.Image.Name),
		}
	}
	env := maps.Clone(l.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, in.Env)
	users := accounts(l.Agent.User, l.Workspace.User)
	p := Plan{
		Version: Version, ID: in.ID, Name: in.Name,
		Loadout: l.Name, LoadoutHash: in.Hash,
		Image: in.Image.String(), Runtime: in.Runtime,
		Machine:   Machine{CPUs: l.Resources.CPUs, Memory: l.Resources.Memory, DiskSize: l.Resources.Disk},
		Boot:      bootConfig(in, users),
		Workspace: Workspace{Path: l.Workspace.Path, User: l.Workspace.User},
		Env:       env, Runners: slices.Clone(l.Runners),
		Agent: agentOf(l), SetupTimeout: l.Readiness.SetupTimeout(), Idle: idleOf(l.Lifecycle),
		Steps: []Step{StepImage, StepMachine, StepBoot, StepAgent},
	}
	if l.Runtime.Kind == loadouts.RuntimeHost {
		// On the host itself there are no accounts of ours to switch to.
		p.Agent.User, p.Workspace.User = "", ""
		p.Boot.Users, p.Boot.Directories = nil, nil
	}
	return p, nil
}

func idleOf(l loadouts.Lifecycle) *Idle {
	if l.Idle == nil {
		return nil
	}
	return &Idle{Timeout: l.Idle.Timeout(), Action: IdleAction(l.Idle.Action), Wake: l.Idle.Wake}
}

// accounts gives every workload account of a machine an id, in the order in
// which they are named. Root has one already.
func accounts(names ...string) []agentv1.BootUser {
	var users []agentv1.BootUser
	for _, name := range names {
		known := func(u agentv1.BootUser) bool { return u.Name == name }
		if name == "" || name == rootUser || slices.ContainsFunc(users, known) {
			continue
		}
		id := firstUID + len(users)
		users = append(users, agentv1.BootUser{Name: name, UID: id, GID: id, Home: path.Join("/home", name)})
	}
	return users
}

func bootConfig(in Input, users []agentv1.BootUser) agentv1.BootConfig {
	ids := map[string]agentv1.BootUser{}
	for _, u := range users {
		ids[u.Name] = u
	}
	owner := ids[in.Loadout.Workspace.User]
	return agentv1.BootConfig{
		Version: agentv1.BootConfigVersion, InstanceID: in.ID.String(), Hostname: in.Name,
		RootSerial: agentv1.RootDiskSerial, Users: users,
		Directories: []agentv1.BootDirectory{
			{Path: in.Loadout.Workspace.Path, UID: owner.UID, GID: owner.GID, Mode: 0o755},
		},
	}
}

func agentOf(l *loadouts.Loadout) Agent {
	a := Agent{
		User: l.Agent.User, Name: l.Agent.Name, Description: l.Agent.Description, Version: l.Agent.Version,
	}
	for _, s := range l.Agent.Skills {
		a.Skills = append(a.Skills, Skill{ID: s.ID, Name: s.Name, Description: s.Description, Tags: s.Tags, Examples: s.Examples})
	}
	return a
}
