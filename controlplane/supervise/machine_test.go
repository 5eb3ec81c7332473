package supervise

import (
	"context"
	"net"
	"sync"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// machine is one of the driver's.
type machine struct {
	r  *rig
	id instance.ID

	mu    sync.Mutex
	state string
	exit  vm.Exit
	ended chan struct{} // of the present run; nil before the first
	dial  func() error  // says what dialling ends with; nil: the agent listens
}

func (m *machine) Start(ctx context.Context) error {
	m.r.note("start")
	if m.r.start != nil {
		if err := m.r.start(ctx); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state, m.ended = stateRunning, make(chan struct{})
	return nil
}

// die ends the present run, if there is one.
func (m *machine) die(why vm.ExitReason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != "" {
		m.state, m.exit = "", vm.Exit{Reason: why}
		close(m.ended)
	}
}

func (m *machine) executes() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state != ""
}

func (m *machine) Wait(ctx context.Context) (vm.Exit, error) {
	m.mu.Lock()
	ended := m.ended
	m.mu.Unlock()
	select {
	case <-ended: // nil: for ever
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.exit, nil
	case <-ctx.Done():
		return vm.Exit{}, ctx.Err()
	}
}

func (m *machine) Dial(ctx context.Context, _ uint32) (net.Conn, error) {
	m.mu.Lock()
	state, dial := m.state, m.dial
	m.mu.Unlock()
	switch {
	case dial != nil:
		return nil, dial()
	case state == "":
		return nil, vm.ErrGone
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", m.r.socket)
}

func (m *machine) Diagnose(context.Context) vm.Diagnosis {
	m.mu.Lock()
	defer m.mu.Unlock()
	return vm.Diagnosis{State: m.state}
}

func (m *machine) Close(context.Context) error {
	m.r.note("close")
	if m.r.closing != nil {
		if err := m.r.closing(); err != nil {
			return err
		}
	}
	m.die(vm.ExitDestroyed)
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	delete(m.r.machines, m.id)
	return nil
}

func (m *machine) Stop(ctx context.Context) error {
	m.r.note("stop")
	if m.r.stop != nil {
		if err := m.r.stop(ctx); err != nil {
			return err
		}
	}
	m.die(vm.ExitDestroyed)
	return nil
}

func (m *machine) toggle(what, state string) error {
	m.r.note(what)
	if m.r.toggling != nil {
		if err := m.r.toggling(what); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = state
	return nil
}

func (m *machine) Pause(context.Context) error  { return m.toggle("pause", statePaused) }
func (m *machine) Resume(context.Context) error { return m.toggle("resume", stateRunning) }

// guest is the agent in whatever machine runs.
type guest struct {
	agentv1.UnimplementedAgentServer
	r *rig
}

func (g *guest) Hello(_ context.Context, q *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	return &agentv1.HelloResponse{
		ProtocolVersion: agentv1.ProtocolVersion, InstanceId: q.GetInstanceId(), BootNonce: make([]byte, 16),
	}, nil
}

func (g *guest) PowerOff(context.Context, *agentv1.PowerOffRequest) (*agentv1.PowerOffResponse, error) {
	g.r.note("power-off")
	if g.r.powerOff != nil {
		if err := g.r.powerOff(); err != nil {
			return &agentv1.PowerOffResponse{}, nil // it says yes, and does not do it
		}
	}
	if m := g.r.only(); m != nil {
		m.die(vm.ExitPowerOff)
	}
	return &agentv1.PowerOffResponse{}, nil
}
