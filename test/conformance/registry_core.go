package conformance

// coreRules are of the operations (A2A, section 3).
func coreRules() []Requirement {
	return []Requirement{
		{"CORE-SEND-001", Must, "3.1.1", "SendMessage answers with a task or a message.", ""},
		{"CORE-SEND-002", Must, "3.1.1",
			"A message to a task that has ended is UnsupportedOperation (a2a-go#438, a2a-python#1205, a2a-rs#268).", ""},
		{"CORE-SEND-003", Must, "3.1.1", "A part of a media type that is not taken is ContentTypeNotSupported.", ""},
		{"CORE-STREAM-001", Must, "3.1.2", "SendStreamingMessage opens a stream of events.", ""},
		{"CORE-STREAM-002", Must, "3.1.2", "An answer that is a message is alone on its stream.", ""},
		{"CORE-STREAM-003", Must, "3.1.2", "A stream begins with the task, goes on with updates and closes when the task has ended.", ""},
		{"CORE-GET-001", Must, "3.1.3", "GetTask gives the task as it is now, with its artifacts.", ""},
		{"CORE-GET-002", Must, "3.1.3", "GetTask of an unknown id is TaskNotFound.", ""},
		{"CORE-LIST-001", Must, "3.1.4", "ListTasks gives only tasks the caller may see.", ""},
		{"CORE-LIST-002", Must, "3.1.4", "Pages follow one another by pageToken; none is lost or repeated.", ""},
		{"CORE-LIST-003", Must, "3.1.4", "Tasks come by the time of their status, newest first.", ""},
		{"CORE-LIST-004", Must, "3.1.4",
			"nextPageToken is always there, empty on the last page; tasks is a list, also an empty one (a2a-go#369).", ""},
		{"CORE-LIST-005", Must, "3.1.4", "Artifacts are absent unless includeArtifacts is true.", ""},
		{"CORE-LIST-006", Must, "3.1.4",
			"contextId, status, statusTimestampAfter and historyLength filter; what does not fit them is refused by name.", ""},
		{"CORE-CANCEL-001", Must, "3.1.5", "CancelTask answers with the canceled task.", ""},
		{"CORE-CANCEL-002", Must, "3.1.5", "CancelTask of a task that has ended is TaskNotCancelable.", ""},
		{"CORE-CANCEL-003", Must, "3.1.5", "CancelTask of an unknown id is TaskNotFound.", ""},
		{"CORE-EXECUTION-MODE-001", Must, "3.2.2", "A send waits until the task has ended or waits for somebody.", ""},
		{"CORE-EXECUTION-MODE-002", Must, "3.2.2", "With returnImmediately it answers once the task exists.", ""},
		{"CORE-ERR-001", Must, "3.3.2", "Errors say what is wrong and which field it is about.", ""},
		{"CORE-ERR-002", Must, "3.3.2", "Input is checked before anything is done: a broken message makes no task.", ""},
		{"CORE-CAP-001", Must, "3.3.4", "Without the capability, push operations are PushNotificationNotSupported.", ""},
		{"CORE-CAP-002", Must, "3.3.4", "Without the capability, streams are UnsupportedOperation.", "streaming cannot be turned off here"},
		{"CORE-CAP-003", Must, "3.3.4", "Without the capability, GetExtendedAgentCard is UnsupportedOperation.", ""},
		{"CORE-CAP-004", Must, "3.3.4",
			"Without a required extension every operation is ExtensionSupportRequired, also as another version of it.", ""},
		{"CORE-HIST-001", Should, "3.2.4", "historyLength 0 leaves history out of GetTask.", ""},
		{"CORE-HIST-002", Must, "3.2.4", "No more history is given than was asked for.", ""},
		{"CORE-HIST-003", Should, "3.2.4", "historyLength 0 leaves history out of SendMessage.", ""},
		{"CORE-HIST-004", May, "3.2.4", "Messages are kept in the task's history.", ""},
		{"CORE-HIST-005", Should, "3.2.4", "History is in the order of the conversation.", ""},
		{"CORE-HIST-006", Should, "3.2.4", "A message in history is the one that was sent.", ""},
	}
}

// contextRules are of contexts and tasks over several messages.
func contextRules() []Requirement {
	return []Requirement{
		{"CORE-MULTI-001", May, "3.4.1", "A message without contextId gets one.", ""},
		{"CORE-MULTI-001a", Must, "3.4.1", "A contextId that was made is in the answer.", ""},
		{"CORE-MULTI-002", May, "3.4.1", "A client's contextId is kept.", ""},
		{"CORE-MULTI-002a", Must, "3.4.1", "A contextId that is not taken is refused, never replaced.", ""},
		{"CORE-MULTI-003", Must, "3.4.2", "Every new task has an id of its own.", ""},
		{"CORE-MULTI-004", Must, "3.4.2", "A message to an unknown task is TaskNotFound and makes none (a2a-java#766).", ""},
		{"CORE-MULTI-005", Must, "3.4.3", "A message with a taskId alone belongs to that task's context.", ""},
		{"CORE-MULTI-006", Must, "3.4.3", "A contextId that is not that of the task is refused.", ""},
	}
}

// modelRules are of the data model and how it is written (A2A, sections 4, 5).
func modelRules() []Requirement {
	return []Requirement{
		{"DM-TASK-001", Must, "4.1.1", "A task has an id and a status.", ""},
		{"DM-TASK-002", Must, "4.1.3", "States are those of the protocol, written TASK_STATE_… (A2A#1408).", ""},
		{"DM-MSG-001", Must, "4.1.4", "A message has a role, parts and an id; one that lacks them is refused.", ""},
		{"DM-MSG-002", Must, "4.1.5", "Roles are ROLE_USER and ROLE_AGENT; others, and the agent's from a client, are refused.", ""},
		{"DM-PART-001", Must, "4.1.6", "A part has exactly one of text, raw, url and data.", ""},
		{"DM-ART-001", Must, "4.1.7", "An artifact has an id, its own in the task, and parts.", ""},
		{"DM-STATUS-001", Must, "4.1.2", "A status has a state.", ""},
		{"DM-SERIAL-001", Must, "5.5", "Names are in camelCase; snake_case is understood in requests (a2a-tck#242).", ""},
		{"DM-SERIAL-002", Must, "5.5", "Enumerations are written by name.", ""},
		{"DM-SERIAL-003", Must, "5.6.1", "Timestamps are UTC with Z.", ""},
		{"DM-SERIAL-004", Must, "5.7", "Required members are there, required lists are not empty, nothing is null.", ""},
		{"DM-SERIAL-005", Should, "5.7", "Members nobody knows are ignored.", ""},
		{"DM-FILE-001", Must, "4.1.6", "Artifacts of text, file bytes, file URLs and data arrive as such.", ""},
		{"DM-STATE-001", Must, "4.1.3", "A task can be rejected; it has ended then.", ""},
	}
}

// streamRules are of streams and of following a task again.
func streamRules() []Requirement {
	return []Requirement{
		{"STREAM-ORDER-001", Must, "3.5.2", "Events come in the order they were made.", ""},
		{"STREAM-ORDER-002", Must, "3.5.2", "All open streams of a task get its events.", ""},
		{"STREAM-ORDER-003", Must, "3.5.2", "Each stream gets the same events in the same order.", ""},
		{"STREAM-ORDER-004", Must, "3.5.2", "A stream that is closed disturbs neither the others nor the task.", ""},
		{"STREAM-SUB-001", Must, "3.1.6", "SubscribeToTask begins with the task as it is.", ""},
		{"STREAM-SUB-002", Must, "3.1.6", "Its stream ends with the task, and not while the task waits for somebody.", ""},
		{"STREAM-SUB-003", Must, "3.1.6", "SubscribeToTask of a task that has ended is UnsupportedOperation (a2a-go#438).", ""},
		{"STREAM-SUB-004", Must, "3.1.6", "SubscribeToTask of an unknown task is TaskNotFound.", ""},
		{"STREAM-VERB-001", Must, "11.3",
			"Subscribe answers GET and POST, also with an empty body (A2A#1574, a2a-js#569, a2a-python#840).", ""},
		{"STREAM-ERROR-001", Must, "3.1.2",
			"An error before the first event is a plain error, not a stream (a2a-go#439, a2a-dotnet#486).", ""},
		{"STREAM-RESUME-001", Must, "durability", "Last-Event-ID goes on behind that event: nothing is lost, nothing comes twice.", ""},
		{"STREAM-RESUME-002", Must, "durability", "A Last-Event-ID that is none of the task's is refused.", ""},
		{"STREAM-CRASH-001", Must, "durability",
			"After kill -9 a running task can be followed: its snapshot has what was written before (a2a-js#542, a2a-python#832).", ""},
		{"STREAM-CRASH-002", Must, "durability",
			"After kill -9 a task that waits for input can be followed and comes to its end (a2a-go#439).", ""},
		{"STREAM-CRASH-003", Must, "durability", "After kill -9 Last-Event-ID goes on where the stream broke.", ""},
	}
}

// versionRules are of negotiation.
func versionRules() []Requirement {
	return []Requirement{
		{"VER-CLIENT-001", Must, "3.6.1",
			"Clients name their version with every request.", "a rule for clients; what comes of silence is VER-SERVER-003"},
		{"VER-CLIENT-002", Must, "3.6", "The patch number has no say.", ""},
		{"VER-SERVER-001", Must, "3.6.2", "A request is answered in the version it names, by header or query.", ""},
		{"VER-SERVER-002", Must, "3.6.2",
			"A version that is not spoken is VersionNotSupported, on every interface (a2a-python#856, a2a-rs#271).", ""},
		{"VER-SERVER-003", Must, "3.6.2", "An empty version is 0.3.", ""},
		{"VER-EXT-001", Must, "3.2.6",
			"Extensions are read from one header or several, with spaces; unknown ones are ignored and not echoed.", ""},
	}
}
