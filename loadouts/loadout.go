package loadouts

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/images"
)

// APIVersion is the version of the documents this package reads.
const APIVersion = "loadout/v1"

// Kind says what a document is for.
type Kind string

// A loadout can become a machine and can be extended; a layer can only be
// extended.
const (
	KindLoadout Kind = "loadout"
	KindLayer   Kind = "layer"
)

// RuntimeKind is the runtime/v1 kind a loadout asks for.
type RuntimeKind string

// The runtimes this version knows. RuntimeHost means full host access; it is
// only ever chosen by name.
const (
	RuntimeVM   RuntimeKind = "vm"
	RuntimeHost RuntimeKind = "host"
)

// NetworkMode says what a machine can reach.
type NetworkMode string

// NetworkIsolated means no network device at all.
const NetworkIsolated NetworkMode = "isolated"

// The runners a loadout can offer.
const (
	RunnerEcho           = "echo"
	RunnerAdapterCommand = "adapter-command"
)

// Loadout is a complete, valid loadout: merged, with every default filled in.
// Its JSON form is stable and can be read back.
type Loadout struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Resources   Resources         `json:"resources"`
	Runtime     RuntimeOptions    `json:"runtime_options"`
	Image       Image             `json:"image"`
	Network     Network           `json:"network"`
	Runners     []string          `json:"runners"`
	Agent       Agent             `json:"agent"`
	Workspace   Workspace         `json:"workspace"`
	Env         map[string]string `json:"env,omitempty"`
	Readiness   Readiness         `json:"readiness"`
	Lifecycle   Lifecycle         `json:"lifecycle,omitzero"`
}

// Resources is the size of a machine.
type Resources struct {
	CPUs int `json:"cpus"`
	// Memory is the guest's RAM in bytes, a multiple of 1 MiB.
	Memory int64 `json:"memory"`
	// Disk is the size of the root disk in bytes; 0 keeps the image's.
	Disk int64 `json:"disk,omitempty"`
}

// RuntimeOptions says what a machine must run on.
type RuntimeOptions struct {
	Kind RuntimeKind `json:"kind"`
	// Provider names a driver; empty leaves the choice to the host.
	Provider string   `json:"provider,omitempty"`
	Required []string `json:"required_capabilities,omitempty"`
	Excluded []string `json:"excluded_capabilities,omitempty"`
}

// Image is a reference to an image, as text in JSON.
type Image struct{ images.Ref }

// MarshalText returns the short form of the reference.
func (i Image) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (i *Image) UnmarshalText(text []byte) error {
	ref, err := images.ParseRef(string(text))
	if err != nil {
		return err
	}
	i.Ref = ref
	return nil
}

// Network says what a machine can reach.
type Network struct {
	Mode NetworkMode `json:"mode"`
}

// Agent is what the machine's AgentCard says about it, and who runs its work.
type Agent struct {
	Name        string  `json:"name"`
	Description string  `json:"description"`
	Version     string  `json:"version"`
	Skills      []Skill `json:"skills"`
	// User is the guest account that commands run as.
	User string `json:"user"`
}

// Skill is one entry of an AgentCard's skills.
type Skill struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	Examples    []string `json:"examples,omitempty"`
}

// Workspace is the directory work happens in.
type Workspace struct {
	// Path is absolute and clean.
	Path string `json:"path"`
	// User owns the directory.
	User string `json:"user"`
}

// Readiness says when to give up on a machine.
type Readiness struct {
	// SetupTimeoutSeconds bounds the time from start to the guest's answer.
	SetupTimeoutSeconds int `json:"setup_timeout_seconds"`
}

// SetupTimeout is SetupTimeoutSeconds as a duration.
func (r Readiness) SetupTimeout() time.Duration {
	return time.Duration(r.SetupTimeoutSeconds) * time.Second
}

// Lifecycle says how long a machine lives and what happens when nobody uses it.
type Lifecycle struct {
	// TTLSeconds is the time from the creation of a machine to its removal; 0
	// is for ever.
	TTLSeconds int `json:"ttl_seconds,omitempty"`
	// Idle is nil when nothing happens.
	Idle *Idle `json:"idle,omitempty"`
}

// TTL is TTLSeconds as a duration.
func (l Lifecycle) TTL() time.Duration { return time.Duration(l.TTLSeconds) * time.Second }

// IdleAction is what is done to a machine that nobody uses.
type IdleAction string

// The actions.
const (
	IdlePause IdleAction = "pause"
	IdleStop  IdleAction = "stop"
)

// Idle says what happens to a machine that nobody uses: no A2A request or
// stream is open and no command runs.
type Idle struct {
	TimeoutSeconds int        `json:"timeout_seconds"`
	Action         IdleAction `json:"action"`
	// Wake brings the machine back with the next A2A request.
	Wake bool `json:"wake"`
}

// Timeout is TimeoutSeconds as a duration.
func (i Idle) Timeout() time.Duration { return time.Duration(i.TimeoutSeconds) * time.Second }

// hash returns "sha256:" and the digest of the loadout's canonical JSON. Two
// documents that mean the same have the same hash.
func (l *Loadout) hash() (string, error) {
	plain, err := json.Marshal(l)
	if err != nil {
		return "", fmt.Errorf("cannot hash loadout %q: %w", l.Name, err)
	}
	// Through a map and back: keys come out sorted, so that the order of the
	// fields in this file means nothing.
	decoder := json.NewDecoder(bytes.NewReader(plain))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return "", fmt.Errorf("cannot hash loadout %q: %w", l.Name, err)
	}
	var canonical bytes.Buffer
	encoder := json.NewEncoder(&canonical)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(tree); err != nil {
		return "", fmt.Errorf("cannot hash loadout %q: %w", l.Name, err)
	}
	sum := sha256.Sum256(bytes.TrimSuffix(canonical.Bytes(), []byte("\n")))
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
