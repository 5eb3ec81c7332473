package a2a

import (
	"context"
	"encoding/json"
	"net/http"
)

// extendedCard is GetExtendedAgentCard: the card with the skills that only
// authenticated callers are shown.
func (c *call) extendedCard(ctx context.Context, b binding) (any, *fault) {
	switch {
	case c.cfg.ExtendedSkills == nil && c.version == v03:
		return nil, errExtendedMissing() // 0.3 has one error for both
	case c.cfg.ExtendedSkills == nil:
		return nil, errUnsupported("there is no extended card")
	case c.caller.Name == "":
		return nil, errUnauthenticated()
	}
	skills := c.cfg.ExtendedSkills(c.agent)
	if len(skills) == 0 {
		return nil, errExtendedMissing()
	}
	agent := c.agent
	agent.Skills = append(append([]Skill(nil), agent.Skills...), skills...)
	full := c.newCard(agent, c.url)
	if c.version == v03 {
		return b.card(full), nil
	}
	body, err := c.encodeCard(c.version, full)
	if err != nil {
		return nil, c.internal(ctx, "encode a card", err)
	}
	return body, nil
}

func restExtendedCard(c *call, r *http.Request) (any, *fault) {
	return c.extendedCard(r.Context(), httpJSON)
}

func extendedCardMethod() rpcMethod {
	return rpcMethod{unary: func(c *call, ctx context.Context, _ json.RawMessage) (any, *fault) {
		return c.extendedCard(ctx, jsonRPC)
	}}
}

func errExtendedMissing() *fault {
	return &fault{
		rpc: -32007, http: http.StatusBadRequest, status: failedPrecondition, reason: "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
		message: "there is no extended card for this agent",
	}
}

func errUnauthenticated() *fault {
	return &fault{
		rpc: rpcInvalid, http: http.StatusUnauthorized, rpcHTTP: http.StatusUnauthorized, status: "UNAUTHENTICATED",
		reason: "UNAUTHENTICATED", domain: domainOwn, message: "the extended card is shown to authenticated callers only",
	}
}

func errForbidden(scope string) *fault {
	return &fault{
		rpc: rpcInvalid, http: http.StatusForbidden, rpcHTTP: http.StatusForbidden, status: "PERMISSION_DENIED",
		reason: "PERMISSION_DENIED", domain: domainOwn, message: "this needs a token with the scope " + scope,
	}
}
