package fleet

import (
	"maps"
	"slices"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/images"
)

// kindHost is the runtime kind without an image boundary.
const kindHost = "host"

func (f *Fleet) view(s *supervise.Supervisor, r supervise.Record) View {
	v := View{
		ID: r.ID, Name: r.Name, Phase: r.Phase,
		Loadout: r.Plan.Loadout, LoadoutHash: r.Plan.LoadoutHash,
		Kind: r.Plan.Runtime.Kind, Provider: r.Plan.Runtime.Provider,
		Accelerator: r.Plan.Runtime.Accelerator, AcceleratorReason: r.Plan.Runtime.AcceleratorReason,
		Vsock: r.Plan.Runtime.Vsock, Capabilities: slices.Clone(r.Plan.Runtime.Capabilities),
		CPUs: r.Plan.Machine.CPUs, Memory: r.Plan.Machine.Memory,
		Labels: maps.Clone(r.Labels), Workspace: r.Plan.Workspace.Path, Runners: slices.Clone(r.Plan.Runners),
		Fault: r.Fault, Tenant: r.Tenant, ExpiresAt: r.ExpiresAt, Resting: r.Resting, Reason: r.Reason, Restarts: r.Restarts,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Generation: r.Generation, Host: r.Host,
	}
	if i := r.Plan.Idle; i != nil {
		v.Idle = &Idle{Timeout: i.Timeout, Action: string(i.Action), Wake: i.Wake}
	}
	v.Health, v.LastActive = s.Health()
	if ref, err := images.ParseRef(r.Plan.Image); err == nil && v.Kind != kindHost {
		v.ImageRef = ref.URL()
	}
	if g := r.Guest; g != nil {
		v.Guest = &Guest{
			AgentVersion: g.AgentVersion, Kernel: g.Kernel, OS: g.OS, Containment: g.Containment,
			AnsweredAt: g.AnsweredAt, BootTime: g.BootTime,
		}
	}
	return v
}
