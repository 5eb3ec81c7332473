package supervise

import (
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// reportKind is what a report is about.
type reportKind string

const (
	machineExit reportKind = "exit"    // the machine has ended
	linkUp      reportKind = "link"    // the agent has answered
	linkSilent  reportKind = "silent"  // the agent has not answered for too long
	linkBack    reportKind = "back"    // and now it does
	linkGaveUp  reportKind = "gave-up" // the agent can never be used again
)

// report is what a watch says of a machine.
type report struct {
	kind reportKind
	// watch is the one that says so: what an earlier one says is stale.
	watch int
	exit  vm.Exit
	link  *agentlink.Link
	// state is the driver's word for the state of a silent machine.
	state string
	err   error
}
