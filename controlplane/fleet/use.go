package fleet

import "agentic-sandbox.aiwg.io/sandbox/controlplane/instance"

// Touch says that a machine is in use until the returned function is called,
// such as by an A2A request, a stream or a command. It wakes a machine that
// was put to rest for being idle, if its loadout says so; who needs its agent
// waits with Link.
func (f *Fleet) Touch(id instance.ID) func() {
	s, err := f.findID(id)
	if err != nil {
		return func() {}
	}
	return s.Use()
}
