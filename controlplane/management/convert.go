package management

import (
	"slices"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Lists and maps are never null in an answer: clients stumble over that.

func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func table(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// stamp cuts a time to what is shown.
func stamp(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Millisecond)
}

// state is the public name of a phase. They are spelled alike, on purpose and
// by this one function.
func state(p instance.Phase) managementv1.InstanceState {
	return managementv1.InstanceState(p)
}

func instanceJSON(v fleet.View, base string) managementv1.Instance {
	a2a := base + "/agents/" + string(v.ID)
	i := managementv1.Instance{
		Id:                string(v.ID),
		Name:              v.Name,
		State:             state(v.Phase),
		Loadout:           v.Loadout,
		LoadoutHash:       v.LoadoutHash,
		ImageRef:          v.ImageRef,
		Runtime:           v.Kind,
		Provider:          v.Provider,
		Accelerator:       v.Accelerator,
		AcceleratorReason: v.AcceleratorReason,
		Vsock:             v.Vsock,
		Capabilities:      list(v.Capabilities),
		Cpus:              v.CPUs,
		Memory:            v.Memory,
		Labels:            table(v.Labels),
		Workspace:         v.Workspace,
		Runners:           list(v.Runners),
		Fault:             fault(v.Fault),
		A2aUrl:            a2a,
		AgentCardUrl:      a2a + "/.well-known/agent-card.json",
		CreatedAt:         stamp(v.CreatedAt),
		UpdatedAt:         stamp(v.UpdatedAt),
		Generation:        v.Generation,
		Host:              v.Host,
		Tenant:            v.Tenant,
		ExpiresAt:         stamp(v.ExpiresAt),
		LastActiveAt:      stamp(v.LastActive),
		Resting:           v.Resting,
		Reason:            v.Reason,
		Restarts:          v.Restarts,
		Health:            fault(v.Health),
	}
	if v.Idle != nil {
		i.Idle = managementv1.Idle{Timeout: v.Idle.Timeout.String(), Action: v.Idle.Action, Wake: v.Idle.Wake}
	}
	if v.Guest != nil {
		i.Guest = managementv1.Guest{
			AgentVersion: v.Guest.AgentVersion,
			Kernel:       v.Guest.Kernel,
			Os:           v.Guest.OS,
			Containment:  v.Guest.Containment,
			AnsweredAt:   stamp(v.Guest.AnsweredAt),
			BootMs:       v.Guest.BootTime.Milliseconds(),
		}
	}
	return i
}

// fault leaves the zero value, which is not shown, when there is none.
func fault(f *instance.Fault) managementv1.Fault {
	if f == nil {
		return managementv1.Fault{}
	}
	out := managementv1.Fault{
		Code: f.Code, Blame: managementv1.Blame(f.Blame), Remediation: inHTTP(f.Hint), Console: f.Console,
		Cause: errUnexplained.Error(),
	}
	if f.Err != nil {
		out.Cause = inHTTP(f.Err.Error())
	}
	return out
}

func operationJSON(op fleet.Operation) managementv1.Operation {
	out := managementv1.Operation{
		Id:           op.ID,
		Kind:         op.Kind,
		InstanceId:   string(op.Instance),
		InstanceName: op.Name,
		State:        managementv1.OperationState(op.State),
		Phase:        op.Phase,
		Percent:      min(max(op.Percent, 0), 100),
		Fault:        fault(op.Fault),
		Warnings:     slices.Clone(op.Warnings),
		CreatedAt:    stamp(op.CreatedAt),
		UpdatedAt:    stamp(op.UpdatedAt),
		EndedAt:      stamp(op.EndedAt),
		Canceling:    op.Canceling,
	}
	for _, s := range op.Steps {
		out.Steps = append(out.Steps, managementv1.OperationStep{Name: s.Name, Mark: s.Mark, At: stamp(s.At), Cause: inHTTP(s.Cause)})
	}
	return out
}

func eventJSON(e fleet.Event) managementv1.Event {
	return managementv1.Event{
		Seq: int64(e.Seq), //nolint:gosec // counts from 1; no log is that long
		At:  stamp(e.At), Type: e.Type, InstanceId: string(e.Instance), InstanceName: e.Name,
		State: state(e.Phase), OperationId: e.Operation, Reason: e.Reason, Message: inHTTP(e.Message),
	}
}

func orphan(o fleet.Orphan) managementv1.Orphan {
	return managementv1.Orphan{
		Id: string(o.ID), Name: o.Name, Provider: o.Provider, Running: o.Running, Note: o.Note,
		Since: stamp(o.Since), RemoveAfter: stamp(o.RemoveAfter),
	}
}

func image(i fleet.Image) managementv1.Image {
	return managementv1.Image{
		Name: i.Name, Ref: i.Ref, Size: i.Size, Packages: i.Packages, BuiltAt: stamp(i.BuiltAt),
	}
}

func images(in []fleet.Image) []managementv1.Image {
	out := make([]managementv1.Image, 0, len(in))
	for _, i := range in {
		out = append(out, image(i))
	}
	return out
}

func host(f fleet.HostFacts) managementv1.Host {
	h := managementv1.Host{
		Host: f.Host, Version: f.Version, StateDir: f.StateDir, ImageDir: f.ImageDir, Instances: f.Instances,
		Providers: providers(f.Providers),
		Images:    images(f.Images),
		Checks:    make([]managementv1.Check, 0, len(f.Checks)),
	}
	for _, c := range f.Checks {
		h.Checks = append(h.Checks, managementv1.Check{
			Name: c.Name, Status: managementv1.CheckStatus(c.Status), Detail: inHTTP(c.Detail), Remediation: inHTTP(c.Remedy),
		})
	}
	return h
}

func providers(in []fleet.Provider) []managementv1.Provider {
	out := make([]managementv1.Provider, 0, len(in))
	for _, p := range in {
		out = append(out, managementv1.Provider{
			Name: p.Name, Runtime: p.Kind, Default: p.Default,
			Available: p.Available, Reason: p.Reason, Remediation: p.Remedy,
			Accelerator: p.Accelerator, AcceleratorReason: p.AcceleratorReason,
			Vsock: p.Vsock, VsockReason: p.VsockReason,
			Versions: table(p.Versions), Operations: list(p.Operations),
		})
	}
	return out
}
