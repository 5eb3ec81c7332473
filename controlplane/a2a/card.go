package a2a

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// card is an AgentCard of A2A 1.0. No list is ever null, and nothing that is
// signed is empty: the protocol's canonical form keeps an empty value where the
// member is required or was set, the SDKs for JavaScript and Python leave every
// empty one out, and a signature must verify with both.
//
// It has no securityRequirements: the form of the protocol's definition,
// {"schemes":{"bearer":{"list":[]}}}, makes a2a-go v2.4.0 refuse the whole
// card, and its own, {"schemes":{"bearer":[]}}, the SDKs that read ProtoJSON.
// The scheme is declared, and an answer 401 challenges for it.
type card struct {
	Name                string          `json:"name"`
	Description         string          `json:"description"`
	SupportedInterfaces []cardInterface `json:"supportedInterfaces"`
	Version             string          `json:"version"`
	Capabilities        capabilities    `json:"capabilities"`
	SecuritySchemes     map[string]any  `json:"securitySchemes"`
	DefaultInputModes   []string        `json:"defaultInputModes"`
	DefaultOutputModes  []string        `json:"defaultOutputModes"`
	Skills              []Skill         `json:"skills"`
}

type cardInterface struct {
	URL             string `json:"url"`
	ProtocolBinding string `json:"protocolBinding"`
	ProtocolVersion string `json:"protocolVersion"`
}

type capabilities struct {
	Streaming         bool        `json:"streaming"`
	PushNotifications bool        `json:"pushNotifications"`
	ExtendedAgentCard bool        `json:"extendedAgentCard"`
	Extensions        []extension `json:"extensions"`
}

// newCard builds the card of an agent reached at base. Equal agents give
// equal bytes.
func newCard(a Agent, base string) card {
	c := card{
		Name: a.Name, Description: a.Description, Version: a.Version,
		SupportedInterfaces: []cardInterface{
			{URL: base, ProtocolBinding: "JSONRPC", ProtocolVersion: "1.0"},
			{URL: base, ProtocolBinding: "HTTP+JSON", ProtocolVersion: "1.0"},
			{URL: base, ProtocolBinding: "JSONRPC", ProtocolVersion: "0.3"},
			{URL: base, ProtocolBinding: "HTTP+JSON", ProtocolVersion: "0.3"},
		},
		Capabilities: capabilities{Streaming: true, Extensions: a.extensions()},
		SecuritySchemes: map[string]any{"bearer": map[string]any{
			"httpAuthSecurityScheme": map[string]any{"scheme": "Bearer"},
		}},
		DefaultInputModes:  []string{"text/plain"},
		DefaultOutputModes: []string{"text/plain", "application/octet-stream"},
		Skills:             make([]Skill, 0, len(a.Skills)+1),
	}
	if c.Description == "" {
		c.Description = a.Name
	}
	if c.Version == "" {
		c.Version = "1.0.0"
	}
	for _, s := range a.Skills {
		if len(s.Tags) == 0 {
			s.Tags = []string{s.ID} // as loadouts have it
		}
		c.Skills = append(c.Skills, s)
	}
	if len(c.Skills) == 0 { // a card must have one
		c.Skills = append(c.Skills, Skill{
			ID: "message", Name: "Message", Description: "Takes a text message and answers it in the machine.", Tags: []string{"text"},
		})
	}
	return c
}

// newCard is the card of an agent on this surface.
func (s *surface) newCard(a Agent, base string) card {
	c := newCard(a, base)
	c.Capabilities.Extensions = s.extensions(a)
	c.Capabilities.PushNotifications = s.cfg.Push != nil
	c.Capabilities.ExtendedAgentCard = s.cfg.ExtendedSkills != nil
	return c
}

func (s *surface) base(a Agent) string { return s.cfg.PublicURL + "/agents/" + a.ID.String() }

const cardMaxAge = time.Minute

func (s *surface) card(w http.ResponseWriter, r *http.Request) {
	agent, f := s.agent(r)
	if f != nil {
		s.refuse(w, r, f)
		return
	}
	body, err := s.encodeCard(cardVersion(r), s.newCard(agent, s.baseFor(r, agent)))
	if err != nil {
		s.refuse(w, r, s.internal(r.Context(), "encode a card", err))
		return
	}
	sum := sha256.Sum256(body)
	h := w.Header()
	h.Set("ETag", `"`+base64.RawURLEncoding.EncodeToString(sum[:])+`"`)
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", fmt.Sprintf("private, max-age=%d", int(cardMaxAge.Seconds())))
	h.Set("Vary", headerVersion)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body)) // honours If-None-Match and HEAD
}

// mediaA2A is the media type of 1.0.1, used only when the client names it.
const mediaA2A = "application/a2a+json"

func responseType(r *http.Request) string {
	if strings.Contains(r.Header.Get("Accept"), mediaA2A) || strings.HasPrefix(r.Header.Get("Content-Type"), mediaA2A) {
		return mediaA2A
	}
	return "application/json"
}
