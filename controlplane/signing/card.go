// Package signing signs AgentCards and verifies them (A2A 1.0, section 8.4):
// a JSON Web Signature with Ed25519 over the card's canonical form. It keeps
// the control plane's keys in files, rotates them and publishes their public
// halves.
//
// It knows the fields of a card by their presence only, and nothing of agents,
// machines or principals.
package signing

import (
	"bytes"
	"encoding/json"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/jcs"
)

// Canonical returns the bytes of a card that are signed: without its
// signatures, without what only repeats a default of the protocol's
// definition, in the form of RFC 8785.
func Canonical(card []byte) ([]byte, error) {
	strict, err := jcs.Transform(card) // refuses what two readers would understand differently
	if err != nil {
		return nil, fmt.Errorf("cannot read card: %w", err)
	}
	kept, err := agentCard().normalize(strict)
	if err != nil {
		return nil, fmt.Errorf("cannot read card: %w", err)
	}
	out, err := jcs.Transform(kept)
	if err != nil {
		return nil, fmt.Errorf("cannot write card: %w", err)
	}
	return out, nil
}

// presence says when a member of a message is part of the canonical form.
type presence int

const (
	// implicit members are left out when they have their default value.
	implicit presence = iota
	// kept members stay whatever they hold: those marked REQUIRED, those
	// marked optional, and single messages.
	kept
	// dropped members never stay.
	dropped
)

// shape is how a member is made up.
type shape int

const (
	plain shape = iota // a scalar, or a value that is taken as it is
	single
	repeated
	mapped
)

type field struct {
	presence presence
	shape    shape
	message  func() message // of what single, repeated and mapped consist
}

// message says for each member what becomes of it. Members it does not name
// are left as they are: a reader that does not know them must not lose them
// from what is signed.
type message map[string]field

func (m message) normalize(raw json.RawMessage) (json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return nil, fmt.Errorf("a message is not an object: %.40q", raw)
	}
	for name, value := range members {
		f, known := m[name]
		if !known {
			continue
		}
		value, err := f.normalize(value)
		if err != nil {
			return nil, err
		}
		if f.presence == dropped || string(value) == "null" || f.presence == implicit && isDefault(value) {
			delete(members, name)
			continue
		}
		members[name] = value
	}
	return encode(members)
}

func (f field) normalize(raw json.RawMessage) (json.RawMessage, error) {
	if string(raw) == "null" || f.message == nil || f.presence == dropped {
		return raw, nil
	}
	m := f.message()
	switch f.shape {
	case single:
		return m.normalize(raw)
	case repeated:
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, fmt.Errorf("a list of messages is none: %.40q", raw)
		}
		for i := range list {
			var err error
			if list[i], err = m.normalize(list[i]); err != nil {
				return nil, err
			}
		}
		return encode(list)
	case mapped:
		var entries map[string]json.RawMessage
		if err := json.Unmarshal(raw, &entries); err != nil {
			return nil, fmt.Errorf("a map of messages is none: %.40q", raw)
		}
		for k := range entries {
			var err error
			if entries[k], err = m.normalize(entries[k]); err != nil {
				return nil, err
			}
		}
		return encode(entries)
	case plain:
	}
	return raw, nil
}

func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("cannot encode card: %w", err)
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

func isDefault(raw json.RawMessage) bool {
	switch string(raw) {
	case `""`, "false", "0", "[]", "{}":
		return true
	}
	return false
}

// The messages of a2a.proto that a card is made of. REQUIRED and optional
// members and single messages are kept; the others are implicit, and named
// only here so that none is forgotten.
func agentCard() message {
	return message{
		"name": {presence: kept}, "description": {presence: kept}, "version": {presence: kept},
		"documentationUrl": {presence: kept}, "iconUrl": {presence: kept},
		"defaultInputModes": {presence: kept}, "defaultOutputModes": {presence: kept},
		"supportedInterfaces":  {kept, repeated, agentInterface},
		"provider":             {kept, single, agentProvider},
		"capabilities":         {kept, single, agentCapabilities},
		"securitySchemes":      {implicit, mapped, securityScheme},
		"securityRequirements": {implicit, repeated, securityRequirement},
		"skills":               {kept, repeated, agentSkill},
		"signatures":           {presence: dropped},
	}
}

func agentProvider() message {
	return message{"url": {presence: kept}, "organization": {presence: kept}}
}

func agentInterface() message {
	return message{
		"url": {presence: kept}, "protocolBinding": {presence: kept}, "protocolVersion": {presence: kept}, "tenant": {},
	}
}

func agentCapabilities() message {
	return message{
		"streaming": {presence: kept}, "pushNotifications": {presence: kept}, "extendedAgentCard": {presence: kept},
		"extensions": {implicit, repeated, agentExtension},
	}
}

func agentExtension() message {
	// params is a Struct: what is in it is data, which has no defaults.
	return message{"uri": {}, "description": {}, "required": {}, "params": {presence: kept}}
}

func agentSkill() message {
	return message{
		"id": {presence: kept}, "name": {presence: kept}, "description": {presence: kept}, "tags": {presence: kept},
		"examples": {}, "inputModes": {}, "outputModes": {},
		"securityRequirements": {implicit, repeated, securityRequirement},
	}
}

func securityRequirement() message {
	return message{"schemes": {implicit, mapped, func() message { return message{"list": {}} }}}
}

func securityScheme() message {
	scheme := func(required ...string) func() message {
		return func() message {
			m := message{"description": {}, "bearerFormat": {}, "oauth2MetadataUrl": {}}
			for _, name := range required {
				m[name] = field{presence: kept}
			}
			return m
		}
	}
	oauth := func() message {
		m := scheme()()
		m["flows"] = field{kept, single, oauthFlows}
		return m
	}
	return message{
		"apiKeySecurityScheme":        {kept, single, scheme("location", "name")},
		"httpAuthSecurityScheme":      {kept, single, scheme("scheme")},
		"oauth2SecurityScheme":        {kept, single, oauth},
		"openIdConnectSecurityScheme": {kept, single, scheme("openIdConnectUrl")},
		"mtlsSecurityScheme":          {kept, single, scheme()},
	}
}

func oauthFlows() message {
	flow := func(required ...string) field {
		return field{kept, single, func() message {
			m := message{"authorizationUrl": {}, "tokenUrl": {}, "refreshUrl": {}, "scopes": {}, "pkceRequired": {}}
			for _, name := range required {
				m[name] = field{presence: kept}
			}
			return m
		}}
	}
	return message{
		"authorizationCode": flow("authorizationUrl", "tokenUrl", "scopes"),
		"clientCredentials": flow("tokenUrl", "scopes"),
		"deviceCode":        flow("deviceAuthorizationUrl", "tokenUrl", "scopes"),
		"implicit":          flow(),
		"password":          flow(),
	}
}
