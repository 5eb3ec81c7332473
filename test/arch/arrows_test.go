package arch

// arrow allows packages to import others. Patterns that end in "/..." mean
// everything below as well.
type arrow struct{ from, to, why string }

// arrows is every import that is allowed, in the order of the way of the data
// (ARCHITECTURE.md). Each package knows what stands before it here, hardly
// ever what stands after.
var arrows = []arrow{
	// What a machine is made of.
	{"loadouts", "images", "a loadout names an image"},
	{"images/store", "images", "keeps files by the digests that images defines"},
	{"images/store", "images/filelock", "several processes share one store"},
	{"images/build", "images", "writes manifests"},
	{"images/build", "images/filelock", "one build at a time in a work directory"},
	{"images/build", "images/initramfs", "writes the base archive"},
	{"images/build", "images/recipes", "what the images are made of, as data"},
	{"images/build", "images/store", "a built image goes into the store"},
	{"images/build/...", "images/build/...", "the parts of one build: packages, kernel, root disk, host tools"},
	{"images/build/rootdisk", "images/recipes", "a root disk is made by its recipe"},
	{"images/cmd/...", "images/...", "the program that builds images"},

	// The plan: all of the above and the host's facts, as data.
	{"controlplane/plan", "loadouts", "a plan is made from a loadout"},
	{"controlplane/plan", "images", "and from the image it names"},
	{"controlplane/plan", "controlplane/instance", "for one instance"},
	{"controlplane/plan", "api/agent/v1", "and holds the boot configuration the agent reads"},

	// Machines.
	{"controlplane/vm", "controlplane/instance", "a machine carries an instance's id"},
	{"controlplane/vm/...", "controlplane/vm", "drivers keep its contract"},
	{"controlplane/vm/...", "controlplane/instance", "machines carry ids, failures are faults"},
	{"controlplane/vm/libvirt/...", "controlplane/vm/libvirt/...", "the parts of one driver"},
	{"controlplane/vm/libvirt", "api/agent/v1", "the serial number by which the agent finds its root disk"},
	{"controlplane/vm/libvirt", "controlplane/vsock/...", "how this driver dials"},
	{"controlplane/vm/libvirt", "images/initramfs", "appends the boot configuration to the initramfs"},
	{"controlplane/vm/host", "api/agent/v1", "reads the boot configuration; the agent has one port"},
	{"controlplane/vsock/...", "controlplane/vsock", "dialers share its errors"},
	{"controlplane/vsock/vhostuser/...", "controlplane/vsock/vhostuser/...", "the parts of one device: rings, streams, endpoint"},

	{"controlplane/vm/...", "controlplane/atomicfile", "records and settings are whole, whenever the daemon dies"},

	// The way into the guest.
	{"controlplane/agentlink", "api/agent/v1", "speaks the agent's protocol"},
	{"controlplane/agentlink", "controlplane/instance", "greets one instance, failures are faults"},
	{"controlplane/agentlink", "controlplane/vm", "tells a machine that is gone from one that is not yet there"},

	// The life of a machine.
	{"controlplane/supervise", "controlplane/instance", "decides its phases"},
	{"controlplane/supervise", "controlplane/plan", "has plans carried out"},
	{"controlplane/supervise", "controlplane/converge", "does the steps of a plan, and undoes them"},
	{"controlplane/supervise", "controlplane/vm", "drives machines through the contract"},
	{"controlplane/supervise", "controlplane/agentlink", "waits for the guest's answer"},
	{"controlplane/supervise", "images", "steps name images"},
	{"controlplane/supervise", "images/store", "and have them verified"},
	{"controlplane/supervise", "api/agent/v1", "sends the guest its first orders"},
	{"controlplane/supervise", "controlplane/request", "names the operation that it works on in the log"},
	{"controlplane/fleet", "controlplane/instance", "speaks of instances"},
	{"controlplane/fleet", "controlplane/plan", "makes the plan of a new instance"},
	{"controlplane/fleet", "controlplane/supervise", "has one supervisor for each instance"},
	{"controlplane/fleet", "controlplane/vm", "finds what runs at the start"},
	{"controlplane/fleet", "controlplane/agentlink", "lends out links to guests"},
	{"controlplane/fleet", "loadouts", "takes loadouts"},
	{"controlplane/fleet", "images", "plans name images"},
	{"controlplane/fleet", "images/store", "which must be there"},
	{"controlplane/fleet", "api/agent/v1", "shows what the agent says of itself"},

	// Tasks and what carries them out.
	{"controlplane/task", "controlplane/instance", "a task belongs to an instance"},
	{"controlplane/prompt", "api/extensions", "the envelope's URI"},
	{"controlplane/prompt", "controlplane/instance", "a prompt belongs to an instance"},
	{"controlplane/prompt", "controlplane/task", "and to one version of a task"},
	{"controlplane/runner/...", "controlplane/runner/...", "the engine and the runners it knows"},
	{"controlplane/runner/...", "controlplane/task", "turns messages into work, and work into events"},
	{"controlplane/runner/...", "controlplane/instance", "work belongs to an instance, failures are faults"},
	{"controlplane/runner/...", "api/agent/v1", "a command as the guest takes it"},
	{"controlplane/runner/adaptercommand", "api/extensions", "the envelope's URI and schema"},
	{"controlplane/runner/engine", "controlplane/prompt", "asks and answers what a command asks"},
	{"controlplane/runner/engine", "controlplane/agentlink", "runs it over the link"},
	{"controlplane/runner/engine", "controlplane/vm", "tells a machine that is gone from one that is not yet there"},
	{"controlplane/push", "controlplane/task", "delivers the log of tasks"},
	{"controlplane/push", "controlplane/share", "keeps slow webhooks from holding up others"},

	// Stores: interfaces live with their consumers.
	{"controlplane/sqlite", "controlplane/instance", "keeps instances"},
	{"controlplane/sqlite", "controlplane/fleet", "implements its store"},
	{"controlplane/sqlite", "controlplane/supervise", "implements its store"},
	{"controlplane/sqlite", "controlplane/task", "implements its store"},
	{"controlplane/sqlite", "controlplane/prompt", "implements its store"},
	{"controlplane/sqlite", "controlplane/push", "implements its store"},
	{"controlplane/sqlite", "controlplane/idempotency", "keeps what is known of messages"},
	{"controlplane/sqlite", "controlplane/management/once", "and of requests with an Idempotency-Key"},

	// Surfaces.
	{"controlplane/auth/...", "controlplane/atomicfile", "tokens and the daemon's address are whole, whenever they are read"},
	{"controlplane/auth", "controlplane/instance", "refusals are faults"},
	{"controlplane/auth", "controlplane/request", "names requests in refusals"},
	{"controlplane/idempotency", "controlplane/jcs", "compares what messages hold"},
	{"controlplane/idempotency", "controlplane/instance", "a message goes to an instance"},
	{"controlplane/a2a", "controlplane/idempotency", "carries a message out once"},
	{"controlplane/signing", "controlplane/atomicfile", "loses no key half-way"},
	{"controlplane/signing", "controlplane/jcs", "signs the canonical form of a card"},
	{"controlplane/signing", "controlplane/instance", "keys that cannot be used are a fault"},
	{"controlplane/a2a", "api/extensions", "publishes and enforces these extensions"},
	{"controlplane/a2a", "controlplane/instance", "one agent is one instance; maps faults to the wire"},
	{"controlplane/a2a", "controlplane/task", "shows tasks and their events"},
	{"controlplane/a2a", "controlplane/share", "keeps slow readers from holding up others"},
	{"controlplane/a2a", "controlplane/push", "registers webhooks, and makes what they are sent"},
	{"controlplane/a2a", "controlplane/prompt", "decodes replies and shows why one is refused"},
	{"controlplane/a2a", "controlplane/runner/...", "hands messages to the runners"},
	{"controlplane/management", "api/management/v1", "serves this contract"},
	{"controlplane/management", "controlplane/management/once", "carries a request with an Idempotency-Key out once"},
	{"controlplane/management", "controlplane/answer", "logs how a request was answered"},
	{"controlplane/metrics", "controlplane/answer", "counts how requests were answered"},
	{"controlplane/management", "controlplane/share", "keeps who has many streams from taking all"},
	{"controlplane/management", "controlplane/request", "names requests in answers and in the log"},
	{"controlplane/management", "controlplane/auth", "for principals with a scope"},
	{"controlplane/management", "controlplane/fleet", "over the fleet"},
	{"controlplane/management", "controlplane/instance", "maps phases and faults to the wire"},
	{"controlplane/management", "loadouts", "takes loadouts"},
	{"controlplane/management", "loadouts/catalog", "lists the shipped ones"},

	// Programs.
	{"controlplane/cmd/sandboxd", "api/...", "wires everything"},
	{"controlplane/cmd/sandboxd", "controlplane/...", "wires everything"},
	{"controlplane/cmd/sandboxd", "images/store", "wires everything"},
	{"controlplane/cmd/sandboxd", "loadouts/...", "wires everything"},
	{"controlplane/cmd/sandboxctl/...", "controlplane/cmd/sandboxctl/...", "the parts of one program"},
	{"controlplane/cmd/sandboxctl/...", "api/management/v1", "is a client of it"},
	{"controlplane/cmd/sandboxctl", "controlplane/cmd/cmdline", "refuses a wrong command line as sandboxd does"},
	{"controlplane/cmd/sandboxctl", "controlplane/instance", "shows the next step of a token file that is not fit"},
	{"controlplane/cmd/sandboxctl", "controlplane/auth", "reads the token file of the own host"},
	{"controlplane/cmd/sandboxctl", "controlplane/auth/localhost", "finds the daemon of the own host"},
	{"controlplane/cmd/sandboxctl", "controlplane/signing", "verifies cards"},
	{"controlplane/cmd/sandboxctl/doctor", "controlplane/auth", "tells whether the token file is as it must be"},
	{"controlplane/cmd/sandboxctl/doctor", "controlplane/auth/localhost", "knows where a daemon would keep its state"},

	// The guest.
	{"guestagent/...", "api/agent/v1", "serves this contract, within its limits"},
	{"guestagent/boot", "guestagent/identity", "gives the machine its names and accounts"},
	{"guestagent/boot", "guestagent/workspace", "makes the directories that were asked for"},
	{"guestagent/command", "guestagent/identity", "commands run as an account"},
	{"guestagent/command", "guestagent/workspace", "beneath a root"},
	{"guestagent/serve", "guestagent/command", "runs commands"},
	{"guestagent/serve", "guestagent/identity", "sets names and clock"},
	{"guestagent/serve", "guestagent/workspace", "moves files"},
	{"guestagent/cmd/...", "guestagent/...", "wires everything"},

	// What tests stand on.
	{"controlplane/vm/vmtest", "api/agent/v1", "the suite talks to the real agent"},
	{"controlplane/vm/vmtest", "controlplane/agentlink", "over the real link"},
	{"controlplane/runner/engine/enginetest", "controlplane/agentlink", "stands in for a link"},
	{"test/demo", "test/rig", "starts the real programs"},
	{"test/bench", "test/rig", "finds images that the hypervisor can reach"},
	{"test/bench", "test/bench/wire", "asks its program in the guest for data"},
	{"test/bench", "controlplane/vm/...", "measures the real driver, used as the proof of KVM allows"},
	{"test/bench", "controlplane/agentlink", "and the real link"},
	{"test/bench", "controlplane/instance", "for machines with ids"},
	{"test/bench", "api/agent/v1", "and a boot configuration"},
	{"test/bench", "images", "names the image"},
	{"test/bench", "images/store", "has it verified"},
	{"test/bench", "images/initramfs", "makes the initramfs of bare machines"},
	{"test/bench", "images/recipes", "knows where the image's kernel came from"},
	{"test/bench", "images/build/...", "and takes the driver of virtio-serial out of it"},
}

// ban is something no chain of imports may reach.
type ban struct {
	from  string
	never []string
	why   string
}

var forbidden = []ban{
	{"api/...", []string{"controlplane/...", "guestagent/...", "images/...", "loadouts/..."},
		"contracts know neither side"},
	{"images/...", []string{"controlplane/...", "guestagent/..."},
		"images are built and kept without a control plane"},
	{"controlplane/cmd/sandboxctl", []string{
		"controlplane/fleet", "controlplane/sqlite/...", "controlplane/vm/...", "controlplane/supervise",
		"github.com/mattn/go-sqlite3", "libvirt.org/go/libvirt",
	}, "the command line runs anywhere: it is built without cgo and sees the API only"},
	{"guestagent/cmd/sandbox-agent", []string{
		"database/sql", "github.com/spf13/cobra", "gopkg.in/yaml.v3", "html/template", "text/template",
	}, "the agent is part of every machine's memory"},
	{"controlplane/management", []string{"controlplane/a2a/...", "controlplane/runner/..."},
		"the management surface is never A2A"},
}

// pure packages compute only.
var pure = []string{
	"api/agent/v1",
	"controlplane/instance",
	"controlplane/plan",
	"images",
	"loadouts",
}

// effects are what pure packages must not import.
var effects = []string{
	"database/sql", "log", "log/slog", "math/rand", "math/rand/v2", "net", "net/http", "os", "os/exec",
	"os/signal", "os/user", "path/filepath", "syscall", "golang.org/x/sys/unix",
}

// home is where a module may be used.
type home struct {
	module string
	in     []string
}

var homes = []home{
	{"database/sql", []string{"controlplane/sqlite/...", "test/bench"}},
	{"github.com/a2aproject/a2a-go/v2", []string{"controlplane/a2a/..."}},
	{"github.com/coreos/go-systemd/v22", []string{"controlplane/cmd/sandboxd/..."}},
	{"github.com/digitalocean/go-qemu", []string{"controlplane/vm/libvirt/..."}},
	{"github.com/mattn/go-sqlite3", []string{"controlplane/sqlite/...", "test/bench"}},
	{"github.com/prometheus/client_golang", []string{"controlplane/metrics"}},
	{"github.com/pressly/goose/v3", []string{"controlplane/sqlite/..."}},
	{"github.com/spf13/cobra", []string{"controlplane/cmd/..."}},
	{"libvirt.org/go/libvirt", []string{"controlplane/vm/libvirt/..."}},
	{"libvirt.org/go/libvirtxml", []string{"controlplane/vm/libvirt/..."}},
}
