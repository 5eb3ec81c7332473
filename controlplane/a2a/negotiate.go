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

// version is the protocol version a request is processed by.
type version struct {
	// relaxed: the request named none. See negotiateVersion.
	relaxed bool
}

const supportedVersions = "1.0"

var versionForm = regexp.MustCompile(`^(\d+\.\d+)(\.\d+)?$`)

// negotiateVersion picks the version from the header or, failing that, the
// query parameter. The patch number has no say.
//
// The specification takes a request that names no version for 0.3. As long as
// 0.3 is not served, refusing it would only turn away everybody who tries the
// address by hand with the 1.0 paths, and the examples of adapter-command/v1;
// so it is processed as 1.0, and spellings of 0.3 that cannot be taken for
// anything else are understood (decode.go): that is all relaxed means. It is
// answered in 1.0. A method name of 0.3 is refused as of an unsupported
// version. Serving 0.3 changes this function alone.
func negotiateVersion(r *http.Request) (version, *fault) {
	v := strings.TrimSpace(r.Header.Get(headerVersion))
	if v == "" {
		v = strings.TrimSpace(r.URL.Query().Get(headerVersion))
	}
	if v == "" {
		return version{relaxed: true}, nil
	}
	if m := versionForm.FindStringSubmatch(v); m == nil || m[1] != supportedVersions {
		return version{}, errVersion(v)
	}
	return version{}, nil
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
		})
	}
	return all
}
