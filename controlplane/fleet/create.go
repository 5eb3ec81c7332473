package fleet

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// Create begins one instance. What can be known to be wrong is an error here;
// what goes wrong later is the operation's, and then nothing is left of it.
func (f *Fleet) Create(ctx context.Context, req CreateRequest) (Operation, error) {
	resolved, err := f.resolve(req.Loadout)
	if err != nil {
		return Operation{}, err
	}
	name, err := instanceName(req.Name, resolved.Name)
	if err != nil {
		return Operation{}, err
	}
	provider, caps, err := f.provider(ctx, resolved)
	if err != nil {
		return Operation{}, err
	}
	manifest, err := f.image(resolved)
	if err != nil {
		return Operation{}, err
	}
	id, err := instance.NewID()
	if err != nil {
		return Operation{}, err
	}
	pl, err := plan.Make(plan.Input{
		ID: id, Name: name, Loadout: &resolved.Loadout, Hash: resolved.Hash(),
		Image: manifest.Ref(), DiskSize: manifest.RootDisk.VirtualSize, Env: req.Env,
		Runtime: plan.Runtime{
			Kind: caps.RuntimeKind, Provider: caps.Driver, Accelerator: caps.Accelerator,
			AcceleratorReason: caps.AcceleratorReason, Vsock: caps.Vsock, Capabilities: caps.Operations,
		},
	})
	if err != nil {
		return Operation{}, err
	}
	labels := map[string]string{}
	for _, m := range []map[string]string{resolved.Labels, req.Labels} {
		maps.Copy(labels, m)
	}
	ttl := req.TTL
	if ttl == 0 && !req.Endless {
		ttl = resolved.Lifecycle.TTL()
	}
	if ttl < 0 || ttl > maxTTL {
		return Operation{}, &instance.Fault{
			Blame: instance.Caller, Code: "instance.ttl", Err: fmt.Errorf("ttl %v: want 0 to %v", req.TTL, maxTTL),
		}
	}
	now := f.cfg.Now()
	return f.launch(ctx, supervise.Record{
		ID: id, Tenant: tenantOf(ctx, req.Tenant), Name: name, Phase: instance.Provisioning, Reason: byRequest,
		Plan: pl, Provider: provider, Labels: labels, ExpiresAt: f.expiry(ttl),
		CreatedAt: now, UpdatedAt: now, Generation: 1, Host: f.cfg.Host,
	}, warningsOf(resolved))
}

// launch stores the record, which claims the name, and its operation in one
// step, and starts the work.
func (f *Fleet) launch(ctx context.Context, r supervise.Record, warnings []string) (Operation, error) {
	op, err := f.ops.draft(ctx, kindCreate, r.Tenant, r.ID, r.Name)
	if err != nil {
		return Operation{}, err
	}
	op.Warnings = warnings
	f.arriving.RLock()
	defer f.arriving.RUnlock()
	n := supervise.Note{Operation: op.ID}
	err = f.events.apply(ctx, &Change{
		Insert: &r, Operation: &op, Events: []Event{eventOf(r, EventCreated, n), createdEvent(op)},
	})
	if errors.Is(err, ErrNameTaken) {
		return Operation{}, &instance.Fault{
			Blame: instance.Caller, Code: "instance.name_taken",
			Hint: fmt.Sprintf("choose another name, or remove that one with `sandboxctl rm %s`", r.Name),
			Err:  fmt.Errorf("cannot create instance %q: there is one of this name", r.Name),
		}
	}
	if err != nil {
		return Operation{}, fmt.Errorf("cannot store instance %q: %w", r.Name, err)
	}
	f.ops.adopt(op)
	f.supervise(r, &supervise.Request{ID: op.ID, Event: instance.StartRequested, Why: byRequest, Track: tracker{f.ops, op.ID}})
	return op, nil
}

// Loadout returns a shipped loadout by name, resolved.
func (f *Fleet) Loadout(_ context.Context, name string) (*loadouts.Resolved, error) {
	return f.resolve(Source{Name: name})
}

// resolve reads the loadout of a request. References are looked up among the
// files that came with it first, then in the catalog.
func (f *Fleet) resolve(src Source) (*loadouts.Resolved, error) {
	lookup := func(ref string) ([]byte, string, error) {
		if ref == src.Name && len(src.Data) > 0 {
			return src.Data, src.Name, nil
		}
		if data, ok := src.Layers[ref]; ok {
			return data, ref, nil
		}
		return f.cfg.Catalog(ref)
	}
	resolved, err := loadouts.Resolve(src.Name, lookup)
	if err == nil {
		return resolved, nil
	}
	var broken loadouts.Errors
	if errors.As(err, &broken) {
		return nil, &instance.Fault{
			Blame: instance.Caller, Code: "loadout.invalid", Err: fieldsError{broken},
			Hint: "correct the loadout and try again",
		}
	}
	return nil, &instance.Fault{
		Blame: instance.Caller, Code: "loadout.not_found", Err: err,
		Hint: "`sandboxctl loadouts` lists the shipped ones; a file is named by its path",
	}
}

// image finds what a loadout's machine boots from.
func (f *Fleet) image(l *loadouts.Resolved) (images.Manifest, error) {
	manifest, err := f.cfg.Images.Lookup(l.Image.Ref)
	if err != nil {
		return manifest, &instance.Fault{
			Blame: instance.Caller, Code: "image.not_found",
			Hint: "`sandboxctl images` lists what there is", Err: err,
		}
	}
	return manifest, nil
}

// Lacks says what this host lacks for an instance of a loadout, by the field
// that asks for it. It may have come, or gone, when one is made.
func (f *Fleet) Lacks(ctx context.Context, l *loadouts.Resolved) []FieldError {
	var lacks []FieldError
	if _, _, err := f.provider(ctx, l); err != nil {
		lacks = append(lacks, lacking("runtime_options", err))
	}
	if _, err := f.image(l); err != nil {
		lacks = append(lacks, lacking("image", err))
	}
	return lacks
}

// fieldForm is the field that the cause of a fault may begin with.
var fieldForm = regexp.MustCompile(`^([a-z_]+(?:\.[a-z_]+)*): `)

func lacking(field string, err error) FieldError {
	fault := instance.AsFault(err)
	message := fault.Err.Error()
	if m := fieldForm.FindStringSubmatch(message); m != nil {
		field, message = m[1], message[len(m[0]):]
	}
	if fault.Hint != "" {
		message += " (" + fault.Hint + ")"
	}
	return FieldError{Field: field, Code: fault.Code, Message: message}
}

// fieldsError shows the broken rules of a loadout one by one.
type fieldsError struct{ errs loadouts.Errors }

func (e fieldsError) Error() string { return e.errs.Error() }

func (e fieldsError) Unwrap() error { return e.errs }

// Fields implements the interface that management asks for.
func (e fieldsError) Fields() []FieldError {
	fields := make([]FieldError, 0, len(e.errs))
	for _, one := range e.errs {
		fields = append(fields, FieldError{Field: fieldOf(one), Message: one.Rule, Code: "loadout.rule"})
	}
	return fields
}

// fieldOf is the place of a broken rule: file, line, column and path.
func fieldOf(e loadouts.Error) string {
	if e.Path == "" {
		return e.Pos.String()
	}
	return e.Pos.String() + ": " + e.Path
}

func warningsOf(r *loadouts.Resolved) []string {
	var out []string
	for _, w := range r.Warnings {
		out = append(out, w.Error())
	}
	return out
}

// provider chooses the driver and checks what the loadout demands of it.
func (f *Fleet) provider(ctx context.Context, l *loadouts.Resolved) (string, vm.Capabilities, error) {
	name := l.Runtime.Provider
	if name == "" {
		name = f.cfg.Default
		if l.Runtime.Kind == loadouts.RuntimeHost {
			name = hostProvider
		}
	}
	driver, ok := f.cfg.Drivers[name]
	if !ok {
		return "", vm.Capabilities{}, &instance.Fault{
			Blame: instance.Caller, Code: "provider.unknown", Hint: "`sandboxctl doctor` lists the providers of this host",
			Err: fmt.Errorf("runtime_options: provider %q is not enabled on this host", name),
		}
	}
	caps, err := driver.Capabilities(ctx)
	if err != nil {
		return "", caps, fmt.Errorf("cannot ask provider %q what it can do: %w", name, err)
	}
	if !caps.Available {
		return "", caps, &instance.Fault{
			Blame: instance.Host, Code: "provider.unavailable", Hint: caps.Remedy,
			Err: fmt.Errorf("provider %q cannot make machines here: %s", name, caps.Reason),
		}
	}
	if caps.RuntimeKind != string(l.Runtime.Kind) {
		return "", caps, &instance.Fault{
			Blame: instance.Caller, Code: "provider.kind",
			Err: fmt.Errorf("runtime_options: provider %q makes %q instances, the loadout wants %q",
				name, caps.RuntimeKind, l.Runtime.Kind),
		}
	}
	for _, want := range l.Runtime.Required {
		if !slices.Contains(caps.Operations, want) {
			return "", caps, capabilityFault(name, "runtime_options.required_capabilities", want, "does not offer it")
		}
	}
	for _, not := range l.Runtime.Excluded {
		if slices.Contains(caps.Operations, not) {
			return "", caps, capabilityFault(name, "runtime_options.excluded_capabilities", not, "offers it")
		}
	}
	if idle := l.Lifecycle.Idle; idle != nil && idle.Action == loadouts.IdlePause && !slices.Contains(caps.Operations, "instance.pause") {
		return "", caps, capabilityFault(name, "lifecycle.idle.action", string(idle.Action), "cannot pause machines")
	}
	return name, caps, nil
}

// hostProvider is the driver of runtime kind "host".
const hostProvider = "host"

func capabilityFault(provider, field, capability, why string) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "provider.capability",
		Err: fmt.Errorf("%s: %q: provider %q %s", field, capability, provider, why),
	}
}

// instanceName checks the name asked for, or makes one.
func instanceName(asked, loadout string) (string, error) {
	name := asked
	if name == "" {
		stem := strings.Trim(strings.Map(func(r rune) rune {
			if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
				return r
			}
			return '-'
		}, strings.ToLower(path.Base(loadout))), "-0123456789")
		if stem == "" {
			stem = "agent"
		}
		var b [3]byte
		if _, err := rand.Read(b[:]); err != nil {
			return "", fmt.Errorf("cannot make a name: %w", err)
		}
		suffix := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
		name = stem[:min(len(stem), 40)] + "-" + suffix
	}
	if err := instance.CheckName(name); err != nil {
		return "", &instance.Fault{Blame: instance.Caller, Code: "instance.name", Err: err}
	}
	return name, nil
}
