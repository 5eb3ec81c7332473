// Package extensions is the contract of the A2A extensions this system
// publishes: their identifiers, their specifications and the JSON Schemas of
// what they add to cards, messages and tasks, embedded. It holds no behaviour.
package extensions

import "embed"

// Identifiers. They are permanent and used verbatim.
const (
	Runtime        = "https://agentic-sandbox.aiwg.io/extensions/runtime/v1"
	AdapterCommand = "https://agentic-sandbox.aiwg.io/extensions/adapter-command/v1"
	HITLPrompt     = "https://agentic-sandbox.aiwg.io/extensions/hitl-prompt/v1"
	Idempotency    = "https://agentic-sandbox.aiwg.io/extensions/idempotency/v1"
)

// Schemas holds each specification at <name>/v<n>/spec.md and beside it the
// JSON Schemas (draft 2020-12):
//
//	runtime/v1/params.schema.json                of the entry in an AgentCard
//	runtime/v1/task-metadata.schema.json         of Task.metadata
//	adapter-command/v1/envelope.schema.json      of the value in Message.metadata
//	adapter-command/v1/outcome.schema.json       of the value in Task.metadata
//	hitl-prompt/v1/envelope.schema.json          of the value in TaskStatus.message.metadata
//	hitl-prompt/v1/response.schema.json          of Message.metadata.hitl_response_for
//	idempotency/v1/params.schema.json            of the entry in an AgentCard
//	idempotency/v1/conflict.schema.json          of the metadata of a refusal's ErrorInfo
//
//go:embed runtime adapter-command hitl-prompt idempotency
var Schemas embed.FS
