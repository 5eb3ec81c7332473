package a2a

import (
	"net/http"
	"strings"
)

// oldCard is an AgentCard of A2A 0.3.
type oldCard struct {
	ProtocolVersion      string           `json:"protocolVersion"`
	Name                 string           `json:"name"`
	Description          string           `json:"description"`
	URL                  string           `json:"url"`
	PreferredTransport   string           `json:"preferredTransport"`
	AdditionalInterfaces []oldInterface   `json:"additionalInterfaces"`
	Version              string           `json:"version"`
	Capabilities         oldCapabilities  `json:"capabilities"`
	SecuritySchemes      map[string]any   `json:"securitySchemes"`
	Security             []map[string]any `json:"security"`
	DefaultInputModes    []string         `json:"defaultInputModes"`
	DefaultOutputModes   []string         `json:"defaultOutputModes"`
	Skills               []Skill          `json:"skills"`
	// ExtendedCard says that agent/getAuthenticatedExtendedCard answers.
	ExtendedCard bool `json:"supportsAuthenticatedExtendedCard"`
}

type oldInterface struct {
	URL       string `json:"url"`
	Transport string `json:"transport"`
}

type oldCapabilities struct {
	Streaming         bool        `json:"streaming"`
	PushNotifications bool        `json:"pushNotifications"`
	Extensions        []extension `json:"extensions"`
}

// oldForm is the card for clients of 0.3: it lists their interfaces only. It
// shows no signatures, which were made over the card of 1.0.
func (c card) oldForm() oldCard {
	old := oldCard{
		ProtocolVersion: "0.3.0", Name: c.Name, Description: c.Description, Version: c.Version,
		Capabilities: oldCapabilities{
			Streaming: c.Capabilities.Streaming, PushNotifications: c.Capabilities.PushNotifications, Extensions: c.Capabilities.Extensions,
		},
		SecuritySchemes:   map[string]any{"bearer": map[string]any{"type": "http", "scheme": "bearer"}},
		Security:          []map[string]any{{"bearer": []string{}}},
		DefaultInputModes: c.DefaultInputModes, DefaultOutputModes: c.DefaultOutputModes, Skills: c.Skills,
		ExtendedCard: c.Capabilities.ExtendedAgentCard,
	}
	for _, i := range c.SupportedInterfaces {
		if i.ProtocolVersion != string(v03) {
			continue
		}
		if old.URL == "" {
			old.URL, old.PreferredTransport = i.URL, i.ProtocolBinding
		}
		old.AdditionalInterfaces = append(old.AdditionalInterfaces, oldInterface{URL: i.URL, Transport: i.ProtocolBinding})
	}
	return old
}

// card is the card as an operation answers with it. On HTTP+JSON that is the
// form of the proto file, in which a scheme is named by a member; the SDK for Go
// reads the other form there as well, so it has both.
func (b binding) card(c card) oldCard {
	old := c.oldForm()
	if b == httpJSON {
		old.SecuritySchemes = map[string]any{"bearer": map[string]any{
			"type": "http", "scheme": "bearer", "httpAuthSecurityScheme": map[string]any{"scheme": "bearer"},
		}}
	}
	return old
}

// cardIn is the card in the form of a version.
func cardIn(v version, c card) any {
	if v == v03 {
		return c.oldForm()
	}
	return c
}

// wellKnown03 is where clients of before 1.0 also look for the card.
const wellKnown03 = "/.well-known/agent.json"

// cardVersion is the version a card is asked for in. Finding an agent comes
// before negotiating with it: the clients of 1.0 name no version with it, so
// none means 1.0 here, and neither does an unknown one fail, since the card is
// what tells the known ones. Clients of 0.3 have a path of their own.
func cardVersion(r *http.Request) version {
	if strings.HasSuffix(r.URL.Path, wellKnown03) {
		return v03
	}
	if m := versionForm.FindStringSubmatch(askedVersion(r)); m != nil && m[1] == string(v03) {
		return v03
	}
	return v10
}
