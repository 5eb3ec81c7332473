// Package managementv1 is the management API of version 1: its OpenAPI
// document and the types, server and client generated from it. It imports
// nothing of this module; controlplane/management serves it.
package managementv1

import _ "embed"

//go:generate go tool oapi-codegen -config codegen.yaml openapi.yaml

// BasePath is where the API is mounted.
const BasePath = "/api/v1"

// ProblemType is the start of every problem's type; the code follows.
const ProblemType = "https://agentic-sandbox.aiwg.io/problems/"

// Document is the OpenAPI document, as YAML.
//
//go:embed openapi.yaml
var Document []byte
