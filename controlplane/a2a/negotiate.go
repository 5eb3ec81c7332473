package a2a

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// Headers of A2A.
const (
	headerVersion       = "A2A-Version"
	headerExtensions    = "A2A-Extensions"
	headerExtensionsOld = "X-A2A-Extensions" // of A2A 0.3
)

// version is the protocol version a request is processed by, and answered in.
type version string

const (
	v10 version = "1.0"
	v03 version = "0.3"
)

var versionForm = regexp.MustCompile(`^(\d+\.\d+)(\.\d+)?$`)

// negotiateVersion picks the version from the header or, failing that, the
// query parameter. The patch number has no say.
//
// A request that names no version is one of 0.3, as the specification has it.
// It follows that:
//
//   - JSON-RPC without a version takes the methods of 0.3 and no others. The
//     names of the versions differ, so none is taken for the other's.
//   - HTTP+JSON below /v1 is an interface of 0.3 and refuses every other version.
//   - HTTP+JSON elsewhere takes both versions: 1.0 when it is named, else 0.3.
//     There the example of adapter-command/v1 works, which names no version and
//     has parts of 0.3 on a path of 1.0. As decodeSend03 also takes what 1.0
//     shares with 0.3, a request of 1.0 typed by hand without a version is
//     understood; its answer is in 0.3.
//
// The AgentCard is another matter: see cardVersion.
func negotiateVersion(r *http.Request) (version, *fault) {
	supported := []version{v10, v03}
	if path03(r.URL.Path) {
		supported = []version{v03}
	}
	asked := askedVersion(r)
	if asked == "" {
		return v03, nil
	}
	if m := versionForm.FindStringSubmatch(asked); m != nil && slices.Contains(supported, version(m[1])) {
		return version(m[1]), nil
	}
	return "", errVersion(asked, supported)
}

// askedVersion is the version a request names; empty for none.
func askedVersion(r *http.Request) string {
	if v := strings.TrimSpace(r.Header.Get(headerVersion)); v != "" {
		return v
	}
	return strings.TrimSpace(r.URL.Query().Get(headerVersion))
}

// requestedExtensions returns those of the supported extensions that the
// request asks for. Others are ignored.
func requestedExtensions(r *http.Request, supported []extension) []string {
	var asked []string
	for _, name := range []string{headerExtensions, headerExtensionsOld} {
		for _, line := range r.Header.Values(name) {
			for uri := range strings.SplitSeq(line, ",") {
				asked = append(asked, strings.TrimSpace(uri))
			}
		}
	}
	var active []string
	for _, e := range supported {
		if slices.Contains(asked, e.URI) {
			active = append(active, e.URI)
		}
	}
	return active
}

func checkRequired(active []string, supported []extension) *fault {
	for _, e := range supported {
		if e.Required && !slices.Contains(active, e.URI) {
			return errExtensionRequired(e.URI)
		}
	}
	return nil
}

// extension is one entry of a card's capabilities.extensions.
type extension struct {
	URI         string `json:"uri"`
	Description string `json:"description"`
	Required    bool   `json:"required,omitempty"`
	Params      any    `json:"params,omitempty"`
}

// runtimeParams are the params of runtime/v1.
type runtimeParams struct {
	Runtime      string   `json:"runtime"`
	Provider     string   `json:"provider,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
	Loadout      string   `json:"loadout"`
	ImageRef     string   `json:"image_ref,omitempty"`
	InstanceID   string   `json:"instance_id"`
}

// extensions lists what the agent supports, in the order of its card.
func (a Agent) extensions() []extension {
	all := []extension{{
		URI:         extensions.Runtime,
		Description: "VM/container/host runtime metadata for this instance.",
		Required:    true,
		Params: runtimeParams{
			Runtime: a.Kind, Provider: a.Provider, Capabilities: a.Capabilities,
			Loadout: a.Loadout, ImageRef: a.ImageRef, InstanceID: a.ID.String(),
		},
	}}
	if slices.Contains(a.Runners, "adapter-command") {
		all = append(all, extension{
			URI:         extensions.AdapterCommand,
			Description: "Bounded adapter commands, requested in Message.metadata.",
		}, hitlExtension())
	}
	return all
}
