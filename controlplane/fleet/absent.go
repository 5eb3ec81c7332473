package fleet

import (
	"context"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// absent stands in for a provider that stored instances name and that this
// process does not offer. The instances stay listed; nothing is known of their
// machines, so nothing is done to them. One that is removed is forgotten: should
// the provider come back, its machine is one that no instance knows.
type absent struct{ name string }

func (a absent) fault() error {
	return &instance.Fault{
		Blame: instance.Host, Code: "provider.unavailable",
		Hint: "start sandboxd with this provider again, as before",
		Err:  fmt.Errorf("provider %q is %w", a.name, supervise.ErrNotOffered),
	}
}

func (a absent) Capabilities(context.Context) (vm.Capabilities, error) {
	return vm.Capabilities{Driver: a.name, Reason: a.fault().Error()}, nil
}

func (a absent) Create(context.Context, vm.Spec) (vm.Instance, vm.Handle, error) {
	return nil, vm.Handle{}, a.fault()
}

func (a absent) Recover(context.Context, vm.Handle) (vm.Instance, error) { return nil, a.fault() }

func (a absent) List(context.Context) ([]vm.Found, error) { return nil, a.fault() }

func (a absent) Close() error { return nil }
