package conformance

// pushRules are of webhooks.
func pushRules() []Requirement {
	return []Requirement{
		{"PUSH-CREATE-001", Must, "3.1.7",
			"A created configuration is answered with its id and task; so is one that comes with a message.", ""},
		{"PUSH-CREATE-002", Must, "3.1.7", "A configuration stays until the task has ended or it is deleted, also over a restart.", ""},
		{"PUSH-GET-001", Must, "3.1.8", "Get gives the configuration.", ""},
		{"PUSH-GET-002", Must, "3.1.8", "Get of an unknown configuration, or of one that is not the caller's, is TaskNotFound.", ""},
		{"PUSH-LIST-001", Must, "3.1.9", "List gives all configurations of the task, by pages.", ""},
		{"PUSH-DEL-001", Must, "3.1.10", "A deleted configuration is gone.", ""},
		{"PUSH-DEL-002", Must, "3.1.10", "Deleting once more has the same effect and answer.", ""},
		{"PUSH-DELIVER-001", Must, "4.3.3", "Deliveries carry the authentication and, in both spellings, the token.", ""},
		{"PUSH-DELIVER-002", Must, "4.3.3", "Every event is tried; what fails is tried again, in order, and delays no stream.", ""},
		{"PUSH-DELIVER-003", Must, "4.3.3", "What is delivered is a StreamResponse.", ""},
		{"PUSH-CRASH-001", Must, "durability", "After kill -9 in the middle of retries every event is still delivered, in order.", ""},
		{"PUSH-SECRET-001", Must, "13", "Token and credentials are never told again.", ""},
		{"PUSH-SSRF-001", Should, "13.2",
			"Addresses that are not public are refused when the configuration is made (a2a-go#373, a2a-js#584, a2a-python#786).", ""},
		{"PUSH-SSRF-002", Should, "13.2", "Redirects are not followed, and nothing but webhooks is dialed.", ""},
	}
}

// cardRules are of the AgentCard (A2A, section 8).
func cardRules() []Requirement {
	return []Requirement{
		{"CARD-DISC-001", Must, "8.1", "The card is at /.well-known/agent-card.json below the agent's address.", ""},
		{"CARD-ORIGIN-001", May, "8.2", "The same surface is at the root of an origin of the agent's own, {instance_id}.<domain>.", ""},
		{"CARD-PROTO-001", Must, "8.3", "Protocols and versions are declared, the preferred one first.", ""},
		{"CARD-PROTO-002", Must, "8.3.1", "Each declared interface answers at its address.", ""},
		{"CARD-STRUCT-001", Must, "4.4.1", "Required members are there, no list is empty or null (a2a-go#369), no member is unknown.", ""},
		{"CARD-EXT-001", Must, "3.1.11", "The extended card is for authenticated callers and has what the card declares.", ""},
		{"CARD-EXT-002", Must, "3.1.11", "One that is declared but not there is ExtendedAgentCardNotConfigured.",
			"an instance without a runner would have none, and a loadout must allow one; tests of controlplane/a2a make it"},
		{"CARD-SIGN-001", Must, "8.4.1", "The signature is over the canonical form (RFC 8785) of the card.", ""},
		{"CARD-SIGN-002", Must, "8.4.1", "Signatures are no part of what is signed.", ""},
		{"CARD-SIGN-003", Must, "8.4.2", "The protected header has alg and kid; typ is JOSE.", ""},
		{"CARD-SIGN-004", Must, "8.4.3", "A revoked key is no longer published, and new cards are signed by the new one.", ""},
		{"CARD-CACHE-001", Should, "8.6.1", "The card has Cache-Control with max-age, and Vary for what it depends on.", ""},
		{"CARD-CACHE-002", Should, "8.6.1", "The card has an ETag; If-None-Match is answered 304, HEAD without a body.", ""},
		{"CARD-CACHE-003", May, "8.6.1", "The card has Last-Modified.",
			"not given: the card is made anew from what is true, so the time of its last change is not known; the ETag says it better"},
		{"CARD-STABLE-001", Must, "durability", "The card is the same, byte for byte, after a restart.", ""},
	}
}

// authRules are of who may do what (A2A, sections 7, 13).
func authRules() []Requirement {
	const proxy = "TLS is ended by the proxy in front (deploy/README.md)"
	return []Requirement{
		{"AUTH-TLS-001", Must, "7.1", "Production is encrypted.", proxy},
		{"AUTH-TLS-002", Should, "7.1", "TLS is modern.", proxy},
		{"AUTH-SERVER-001", Should, "7.2", "Clients verify the server's certificate.", "a rule for clients"},
		{"AUTH-SERVER-002", Must, "7.4", "Every request is authenticated; 401 comes with a challenge.", ""},
		{"AUTH-SCOPE-001", Must, "13.1", "Every operation asks what the principal may do: without agents:invoke it is 403.", ""},
		{"AUTH-SCOPE-002", Must, "13.1", "Results are only the caller's.", ""},
		{"AUTH-SCOPE-003", Must, "3.3.2", "Somebody else's task looks like none on all nine operations that name one (a2a-go#351).", ""},
		{"AUTH-INTASK-001", Must, "7.6.1", "What needs an authorization is a task.", ""},
		{"AUTH-INTASK-002", Must, "7.6.1", "Its state is TASK_STATE_AUTH_REQUIRED.", ""},
		{"AUTH-INTASK-003", Must, "7.6.1", "Its status message says what is needed.", ""},
		{"AUTH-INTASK-004", Must, "7.6.1",
			"Credentials come out of band.", "no runner asks for one; the scripted one only shows the state"},
		{"AUTH-INTASK-005", Should, "7.6.1", "Streams stay open while it waits.", ""},
		{"AUTH-INTASK-006", Should, "7.6.1", "It takes messages meanwhile.", ""},
	}
}

// bindingRules are of the two bindings and of their being one.
func bindingRules() []Requirement {
	return []Requirement{
		{"JSONRPC-FMT-001", Must, "9.1", "Requests and answers are JSON-RPC 2.0; the id comes back as it was.", ""},
		{"JSONRPC-FMT-002", Must, "9.1", "Every answer is application/json, errors too (a2a-go#264).", ""},
		{"JSONRPC-SVC-001", Must, "9.1", "Methods have the names of the service, in PascalCase; others are -32601.", ""},
		{"JSONRPC-SVC-002", Must, "9.2", "Service parameters are headers.", ""},
		{"JSONRPC-ERR-001", Must, "9.5", "Errors have code, message and data, a list of typed objects.", ""},
		{"JSONRPC-ERR-002", Must, "9.5", "Errors of A2A have codes from -32001 on.", ""},
		{"JSONRPC-ERR-003", Must, "9.5", "Errors of A2A have ErrorInfo with reason and domain.", ""},
		{"JSONRPC-SSE-001", Must, "9.4.2", "Streams are server-sent events, each a JSON-RPC answer with a StreamResponse.", ""},
		{"JSONRPC-SSE-002", Must, "5.4", "Each error has its own code.", ""},
		{"JSONRPC-SLASH-001", Must, "9.1", "The address is taken with and without a slash at its end (a2a-python#1165, a2a-tck#230).", ""},
		{"JSONRPC-PARAMS-001", Must, "9.4", "Params may be absent where nothing is required.", ""},
		{"HTTP_JSON-URL-001", Must, "11.3",
			"Operations are at the paths of the specification; the seed's messages:send is one of them.", ""},
		{"HTTP_JSON-URL-002", Must, "11.3", "Each path takes its verbs; others are 405 with Allow.", ""},
		{"HTTP_JSON-SVC-001", Must, "11.1",
			"Answers are JSON, errors, 404 and 405 too (a2a-go#264); application/a2a+json is answered in kind.", ""},
		{"HTTP_JSON-SVC-002", Must, "11.2", "Service parameters are headers.", ""},
		{"HTTP_JSON-QP-001", Must, "11.5", "Query parameters are in camelCase.", ""},
		{"HTTP_JSON-ERR-001", Must, "11.6", "Errors are google.rpc.Status in JSON.", ""},
		{"HTTP_JSON-ERR-002", Must, "11.6", "Errors of A2A have ErrorInfo.", ""},
		{"HTTP_JSON-STATUS-001", Must, "5.4", "Each error has its own status.", ""},
		{"HTTP_JSON-SSE-001", Must, "11.7", "Streams are server-sent events, each a StreamResponse.", ""},
		{"HTTP_JSON-TENANT-001", May, "11.3", "Paths may begin with a tenant.",
			"no interface declares a tenant, so clients must send none; an agent has its own address instead"},
		{"BIND-EQUIV-001", Must, "5.1", "Both bindings have all operations.", ""},
		{"BIND-EQUIV-002", Must, "5.1", "Both give the same task.", ""},
		{"BIND-EQUIV-003", Must, "5.1", "Both give the same errors.", ""},
		{"BIND-EQUIV-004", Must, "5.1", "Both take the same credentials.", ""},
		{"BIND-FIELD-001", Must, "5.2", "Both are on the card.", ""},
	}
}

// grpcRules are of the binding that is not offered.
func grpcRules() []Requirement {
	const none = "the gRPC binding is not offered, and no card declares it"
	return []Requirement{
		{"GRPC-SVC-001", Must, "10.1", "gRPC serves A2AService.", none},
		{"GRPC-SVC-002", Must, "10.1", "gRPC speaks proto3.", none},
		{"GRPC-SVC-003", Must, "10.1", "gRPC runs over HTTP/2 with TLS.", none},
		{"GRPC-META-001", Must, "10.2", "Service parameters are metadata.", none},
		{"GRPC-ERR-001", Must, "10.6", "Errors of A2A have ErrorInfo.", none},
		{"GRPC-ERR-002", Must, "5.4", "Each error has its own code.", none},
		{"GRPC-ERR-003", Must, "10.7", "Streams are server streams.", none},
	}
}

// oldRules are of A2A 0.3, which is spoken beside 1.0.
func oldRules() []Requirement {
	return []Requirement{
		{"V03-RPC-001", Must, "0.3", "JSON-RPC has the methods of 0.3 by their names; those of 1.0 need a version.", ""},
		{"V03-REST-001", Must, "0.3", "HTTP+JSON of 0.3 is below /v1, and only 0.3 is.", ""},
		{"V03-SHAPE-001", Must, "0.3",
			"Answers have the form of 0.3 and nothing of 1.0's: kind and lower-case states, or content and wrappers.", ""},
		{"V03-STREAM-001", Must, "0.3", "The last status update of a stream says final, and no other.", ""},
		{"V03-CANCEL-001", Must, "0.3", "A canceled task is canceled on JSON-RPC and TASK_STATE_CANCELLED on HTTP+JSON.", ""},
		{"V03-EXT-001", Must, "0.3", "X-A2A-Extensions is read and echoed.", ""},
		{"V03-ERR-001", Must, "0.3", "Errors have the codes of 0.3.", ""},
		{"V03-CARD-001", Must, "0.3", "The card of 0.3 is at agent.json and for A2A-Version 0.3, with its own interfaces only.", ""},
		{"V03-PUSH-001", Must, "0.3", "Configurations of 0.3 are nested, and told the task at every change of its status.", ""},
		{"V03-BOTH-001", Must, "0.3", "A task of one version is seen in the other, in that one's form.", ""},
		{"V03-PARTS-001", Must, "0.3", "Files and data are read and written as parts with kind.", ""},
	}
}
