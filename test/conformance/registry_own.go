package conformance

// runtimeRules are the scenarios of runtime/v1, section 7, and its policy.
func runtimeRules() []Requirement {
	const at = "runtime/v1 7"
	return []Requirement{
		{"RUNTIME-CONF-001", Must, at, "The card has exactly one entry of runtime/v1; it is required and its params fit the schema.", ""},
		{"RUNTIME-CONF-002", Must, at, "An activated extension is echoed in A2A-Extensions, on every operation.", ""},
		{"RUNTIME-CONF-003", Must, at,
			"A request that does not activate runtime/v1 is answered 400 with EXTENSION_REQUIRED and the URI.", ""},
		{"RUNTIME-CONF-004", Must, at,
			"Every task that is returned or streamed, by every method, has the runtime.* entries of the card.", ""},
		{"RUNTIME-CONF-005", Must, at, "image_ref of a vm is qcow2://… with an sha256 digest; a host has none.", ""},
		{"RUNTIME-CONF-006", Must, at,
			"instance_id is the same, byte for byte, on every card of the instance's life, restarts included.", ""},
		{"RUNTIME-CONF-007", Must, at, "instance_id is a UUID of version 4 or 7 and the same on card and tasks.", ""},
		{"RUNTIME-CONF-008", Must, at,
			"Provider and capabilities are valid identifiers, whatever they are, and the same on card and tasks.", ""},
		{"RUNTIME-HOST-001", Must, "runtime/v1 8.2",
			"runtime.host is shown by the operator's policy only, and only to principals with scope fleet:read-host.", ""},
		{"RUNTIME-HOST-002", Must, "runtime/v1 8.2", "A withheld runtime.host is absent; no placeholder stands for it.", ""},
		{"RUNTIME-URI-001", Must, "runtime/v1 1", "The extension's path serves its specification with status 200.", ""},
	}
}

// adapterRules are those of adapter-command/v1, in the order of its text.
func adapterRules() []Requirement {
	const at = "adapter-command/v1"
	return []Requirement{
		{"ADAPTER-ABSENT-001", Must, at, "Without an envelope a message is a text that is echoed.", ""},
		{"ADAPTER-ENVELOPE-001", Must, at,
			"An envelope is checked before anything is dispatched: a broken one names the rule and makes no task.", ""},
		{"ADAPTER-ENVELOPE-002", Must, at, "An envelope that is unsupported or unsafe never becomes an echo, whatever its spelling.", ""},
		{"ADAPTER-MODE-001", Must, at, "mode is plan or assess, and the command sees it in AIWG_A2A_ADAPTER_MODE.", ""},
		{"ADAPTER-COMMAND-001", Must, at, "The only command is node, the runner's path, --request and a request path.", ""},
		{"ADAPTER-PATH-001", Must, at, "The request path stays under its two directories, against every way out of them.", ""},
		{"ADAPTER-TIMEOUT-001", Must, at, "timeout_seconds is from 1 to 900.", ""},
		{"ADAPTER-TIMEOUT-002", Must, at,
			"A command that does not end in time is ended, with all it started; the task failed as application.", ""},
		{"ADAPTER-EXIT-001", Must, at, "Exit code 0 completes the task.", ""},
		{"ADAPTER-EXIT-002", Must, at, "Another exit code fails the task as application, and the task says which.", ""},
		{"ADAPTER-EXIT-003", Must, at, "What could not be dispatched fails the task as infrastructure.", ""},
		{"ADAPTER-OUTPUT-001", Must, at, "Standard output and error are artifacts of the task, complete to the last byte.", ""},
		{"ADAPTER-OUTPUT-002", Must, at, "Output is streamed as it appears, before the command ends.", ""},
		{"ADAPTER-OUTPUT-003", Must, at,
			"Text parts are whole characters however output comes in; what is no text comes as raw bytes.", ""},
		{"ADAPTER-CANCEL-001", Must, at, "CancelTask ends everything the command started; the task is canceled.", ""},
		{"ADAPTER-EXAMPLE-001", Must, at,
			"The example of the specification is understood as it is printed: messages:send, no version, parts with kind.", ""},
		{"ADAPTER-INPUT-001", Must, at, "Without input_mode no output is ever taken for a question.", ""},
		{"ADAPTER-INPUT-002", Must, at, "input_mode needs hitl-prompt/v1 to be activated, and is text-line.", ""},
		{"ADAPTER-INPUT-003", Must, at,
			"A prompt on the last line makes the task input-required, with the envelope of hitl-prompt/v1.", ""},
		{"ADAPTER-INPUT-004", Must, at, "The answer's text and one newline reach that very command, which goes on.", ""},
		{"ADAPTER-INPUT-005", Must, at, "A text over 4096 bytes or with control characters is refused; the task still waits.", ""},
		{"ADAPTER-INPUT-006", Must, at, "A reply must name the prompt, the task and its context.", ""},
		{"ADAPTER-INPUT-007", Must, at,
			"A prompt is claimed atomically: of equal replies at once one is taken; a later one is refused.", ""},
		{"ADAPTER-INPUT-008", Must, at, "A later prompt has an id of its own, and the earlier id is refused.", ""},
		{"ADAPTER-INPUT-009", Must, at, "The command's own timeout goes on while the task waits.", ""},
		{"ADAPTER-INPUT-010", Must, at, "After a restart of the server a prompt from before is refused.", ""},
		{"ADAPTER-INPUT-011", Must, at, "A failed delivery restores the prompt, if the task has not changed.",
			"needs a machine that fails between claim and delivery; tests of controlplane/runner/engine do that"},
		{"ADAPTER-INPUT-012", Must, at, "A prompt for restricted responders is refused on this route.",
			"text-line prompts are for anybody; tests of controlplane/prompt make a restricted one"},
		{"ADAPTER-INPUT-013", Must, at, "Detection retains no more than 8 KiB of output.",
			"a bound inside the server; a property test of controlplane/prompt holds it"},
	}
}

// promptRules are the scenarios of hitl-prompt/v1.
func promptRules() []Requirement {
	const at = "hitl-prompt/v1"
	return []Requirement{
		{"HITL-CF-1", Must, at, "A reply to an unknown or answered prompt is 409, -32010.", ""},
		{"HITL-CF-2", Must, at, "A reply that is taken moves the task on, once.", ""},
		{"HITL-CF-3", Must, at, "A payload against the schema is 422, -32011, with validation_errors; a better one is then taken.", ""},
		{"HITL-CF-4", Must, at, "Over twenty replies, the 95th percentile of the time to go on is at most a second.",
			"a measurement, which a shared host spoils; a test of controlplane/a2a makes it with deadlines that allow for that"},
		{"HITL-CF-5", Must, at, "The envelope has the members of its schema and no others.", ""},
		{"HITL-CF-6", Must, at, "After a disconnect the same prompt, with the same id and schema, is there.", ""},
		{"HITL-CF-7", Must, at, "A prompt is asked, answered and its task completed, over one binding.", ""},
	}
}

// idempotencyRules are those of idempotency/v1, which is active only when it
// is asked for.
func idempotencyRules() []Requirement {
	const at = "idempotency/v1"
	return []Requirement{
		{"IDEM-OPTIN-001", Must, at, "Without the extension one message id sent twice is two tasks (A2A#928, A2A#1987).", ""},
		{"IDEM-REPLAY-001", Must, at, "A message that is sent again is answered as before, byte for byte, with Idempotent-Replayed.", ""},
		{"IDEM-ATONCE-001", Must, at, "Two equal messages at once are one task and get the same answer.", ""},
		{"IDEM-OTHER-001", Must, at, "Another content under the same id is 422 with both hashes.", ""},
		{"IDEM-SCOPE-001", Must, at, "A message id of one principal says nothing of another's.", ""},
		{"IDEM-RESTART-001", Must, at, "What was answered is remembered over a restart of the server.", ""},
	}
}

// limitRules are what one request or one principal may cost.
func limitRules() []Requirement {
	return []Requirement{
		{"LIMIT-BODY-001", Must, "limits", "A body over the limit is 413 with a reason, on both bindings.", ""},
		{"LIMIT-STREAMS-001", Must, "limits",
			"A stream beyond the limit is 429 with Retry-After, not a stream; a closed one makes room.", ""},
		{"LIMIT-TASKS-001", Must, "limits", "A task beyond those an instance may have unfinished is 429 and not made.", ""},
		{"LIMIT-WAIT-001", Must, "limits", "A blocking send answers within the limit with the task as it is.", ""},
		{"LIMIT-OUTPUT-001", Must, "limits", "A command that writes more than is kept is ended, and the task says so.", ""},
	}
}
