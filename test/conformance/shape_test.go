package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Shapes say what the messages of a protocol version look like: by message and
// member its type. A name that ends in ! is required. Types are
//
//	string id int bool time   scalars; an id is a string that is not empty
//	map any                   what is free inside
//	[]T []+T                  lists; the latter is not empty
//	'a'|'b'                   one of these strings
//	Name                      another message
//
// and the member "=" lists those of which exactly one is there. Messages are
// closed: a member that is not named is an error, and null is one everywhere.
type shapes map[string]map[string]string

const (
	states10 = "'TASK_STATE_SUBMITTED'|'TASK_STATE_WORKING'|'TASK_STATE_COMPLETED'|'TASK_STATE_FAILED'|" +
		"'TASK_STATE_CANCELED'|'TASK_STATE_INPUT_REQUIRED'|'TASK_STATE_REJECTED'|'TASK_STATE_AUTH_REQUIRED'"
	statesRPC03  = "'submitted'|'working'|'completed'|'failed'|'canceled'|'input-required'|'rejected'|'auth-required'|'unknown'"
	statesREST03 = "'TASK_STATE_SUBMITTED'|'TASK_STATE_WORKING'|'TASK_STATE_COMPLETED'|'TASK_STATE_FAILED'|" +
		"'TASK_STATE_CANCELLED'|'TASK_STATE_INPUT_REQUIRED'|'TASK_STATE_REJECTED'|'TASK_STATE_AUTH_REQUIRED'"
)

// shapes10 are those of A2A 1.0, the same on both bindings.
func shapes10() shapes {
	return shapes{
		"Task": {
			"id!": "id", "contextId!": "id", "status!": "TaskStatus", "artifacts": "[]Artifact", "history": "[]Message", "metadata": "map",
		},
		"TaskStatus": {"state!": states10, "message": "Message", "timestamp!": "time"},
		"Message": {
			"messageId!": "id", "contextId": "id", "taskId": "id", "role!": "'ROLE_USER'|'ROLE_AGENT'", "parts!": "[]+Part",
			"metadata": "map", "extensions": "[]string", "referenceTaskIds": "[]string",
		},
		"Part": {
			"text": "string", "raw": "string", "url": "string", "data": "any", "=": "text raw url data",
			"metadata": "map", "filename": "string", "mediaType": "string",
		},
		"Artifact": {
			"artifactId!": "id", "name": "string", "description": "string", "parts!": "[]+Part", "metadata": "map", "extensions": "[]string",
		},
		"TaskStatusUpdateEvent": {"taskId!": "id", "contextId!": "id", "status!": "TaskStatus", "metadata": "map"},
		"TaskArtifactUpdateEvent": {
			"taskId!": "id", "contextId!": "id", "artifact!": "Artifact", "append": "bool", "lastChunk": "bool", "metadata": "map",
		},
		"SendMessageResponse": {"task": "Task", "message": "Message", "=": "task message"},
		"StreamResponse": {
			"task": "Task", "message": "Message", "statusUpdate": "TaskStatusUpdateEvent", "artifactUpdate": "TaskArtifactUpdateEvent",
			"=": "task message statusUpdate artifactUpdate",
		},
		"ListTasksResponse":           {"tasks!": "[]Task", "nextPageToken!": "string", "pageSize!": "int", "totalSize!": "int"},
		"TaskPushNotificationConfig":  {"taskId!": "id", "id!": "id", "url!": "id", "authentication": "AuthenticationInfo"},
		"AuthenticationInfo":          {"scheme!": "id"},
		"ListPushNotificationConfigs": {"configs!": "[]TaskPushNotificationConfig", "nextPageToken!": "string"},
		"Empty":                       {},
		"AgentCard": {
			"name!": "id", "description!": "id", "supportedInterfaces!": "[]+AgentInterface", "provider": "AgentProvider", "version!": "id",
			"documentationUrl": "id", "capabilities!": "AgentCapabilities", "securitySchemes": "map", "securityRequirements": "[]any",
			"defaultInputModes!": "[]+id", "defaultOutputModes!": "[]+id", "skills!": "[]+AgentSkill", "signatures": "[]+AgentCardSignature",
			"iconUrl": "id",
		},
		"AgentInterface": {"url!": "id", "protocolBinding!": "id", "tenant": "id", "protocolVersion!": "'1.0'|'0.3'"},
		"AgentProvider":  {"url!": "id", "organization!": "id"},
		"AgentCapabilities": {
			"streaming": "bool", "pushNotifications": "bool", "extensions": "[]+AgentExtension", "extendedAgentCard": "bool",
		},
		"AgentExtension": {"uri!": "id", "description": "string", "required": "bool", "params": "map"},
		"AgentSkill": {
			"id!": "id", "name!": "id", "description!": "id", "tags!": "[]string", "examples": "[]string",
			"inputModes": "[]string", "outputModes": "[]string", "securityRequirements": "[]any",
		},
		"AgentCardSignature": {"protected!": "id", "signature!": "id", "header": "map"},
	}
}

// shapes03 are those of A2A 0.3, which spells its bindings differently.
func shapes03(on binding) shapes {
	kind := func(name string, members map[string]string) map[string]string {
		if on == jsonRPC {
			members["kind!"] = "'" + name + "'"
		}
		return members
	}
	state, parts, role := statesREST03, "content!", "'ROLE_USER'|'ROLE_AGENT'"
	if on == jsonRPC {
		state, parts, role = statesRPC03, "parts!", "'user'|'agent'"
	}
	all := shapes{
		"Task": kind("task", map[string]string{
			"id!": "id", "contextId!": "id", "status!": "TaskStatus", "artifacts": "[]Artifact", "history": "[]Message", "metadata": "map",
		}),
		"TaskStatus": {"state!": state, "message": "Message", "timestamp": "time"},
		"Message": kind("message", map[string]string{
			"messageId!": "id", "contextId": "id", "taskId": "id", "role!": role, parts: "[]+Part",
			"metadata": "map", "extensions": "[]string", "referenceTaskIds": "[]string",
		}),
		"Artifact": {
			"artifactId!": "id", "name": "string", "description": "string", "parts!": "[]+Part", "metadata": "map", "extensions": "[]string",
		},
		"TaskStatusUpdateEvent": kind("status-update", map[string]string{
			"taskId!": "id", "contextId!": "id", "status!": "TaskStatus", "final!": "bool", "metadata": "map",
		}),
		"TaskArtifactUpdateEvent": kind("artifact-update", map[string]string{
			"taskId!": "id", "contextId!": "id", "artifact!": "Artifact", "append": "bool", "lastChunk": "bool", "metadata": "map",
		}),
		"PushNotificationConfig": {"id": "id", "url!": "id", "authentication": "AuthenticationInfo"},
		"AuthenticationInfo":     {"schemes!": "[]+string"},
		"Null":                   {},
		"Empty":                  {},
		"ListTasksResponse":      {"tasks!": "[]Task", "nextPageToken!": "string"},
	}
	if on == jsonRPC {
		all["Part"] = map[string]string{
			"kind!": "'text'|'file'|'data'", "text": "string", "file": "File", "data": "map", "=": "text file data", "metadata": "map",
		}
		all["File"] = map[string]string{"name": "id", "mimeType": "id", "bytes": "string", "uri": "id", "=": "bytes uri"}
		all["TaskPushNotificationConfig"] = map[string]string{"taskId!": "id", "pushNotificationConfig!": "PushNotificationConfig"}
		return all
	}
	all["Part"] = map[string]string{"text": "string", "file": "File", "data": "Data", "=": "text file data", "metadata": "map"}
	all["Data"] = map[string]string{"data!": "map"}
	all["File"] = map[string]string{
		"name": "id", "mimeType": "id", "fileWithBytes": "string", "fileWithUri": "id", "=": "fileWithBytes fileWithUri",
	}
	all["SendMessageResponse"] = map[string]string{"task": "Task", "message": "Message", "=": "task message"}
	all["StreamResponse"] = map[string]string{
		"task": "Task", "message": "Message", "statusUpdate": "TaskStatusUpdateEvent", "artifactUpdate": "TaskArtifactUpdateEvent",
		"=": "task message statusUpdate artifactUpdate",
	}
	all["TaskPushNotificationConfig"] = map[string]string{"name!": "id", "pushNotificationConfig!": "PushNotificationConfig"}
	all["ListPushNotificationConfigs"] = map[string]string{"configs!": "[]TaskPushNotificationConfig", "nextPageToken": "string"}
	return all
}

var timeForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$`)

// check returns what of v is not of the type.
func (s shapes) check(kind, path string, v any) []string {
	bad := func(format string, args ...any) []string { return []string{path + " " + fmt.Sprintf(format, args...)} }
	if v == nil {
		return bad("is null or missing")
	}
	switch {
	case strings.HasPrefix(kind, "[]"):
		list, ok := v.([]any)
		item, some := strings.CutPrefix(kind[2:], "+")
		switch {
		case !ok:
			return bad("is no list: %.80v", v)
		case some && len(list) == 0:
			return bad("is empty")
		}
		var all []string
		for i, e := range list {
			all = append(all, s.check(item, fmt.Sprintf("%s[%d]", path, i), e)...)
		}
		return all
	case strings.HasPrefix(kind, "'"):
		if text, ok := v.(string); !ok || !slices.Contains(strings.Split(kind, "|"), "'"+text+"'") {
			return bad("is %.80v, want one of %s", v, kind)
		}
		return nil
	case kind == "any" || kind == "map":
		if _, ok := v.(map[string]any); !ok && kind == "map" {
			return bad("is no object: %.80v", v)
		}
		return nulls(path, v)
	}
	if _, known := s[kind]; known {
		return s.message(kind, path, v)
	}
	return scalar(kind, path, v)
}

func scalar(kind, path string, v any) []string {
	ok := false
	switch x := v.(type) {
	case string:
		ok = kind == "string" || kind == "id" && x != "" || kind == "time" && timeForm.MatchString(x)
	case bool:
		ok = kind == "bool"
	case float64:
		ok = kind == "int" && x == float64(int64(x))
	}
	if !ok {
		return []string{fmt.Sprintf("%s is %.80v, want %s", path, v, kind)}
	}
	return nil
}

func (s shapes) message(kind, path string, v any) []string {
	m, ok := v.(map[string]any)
	if !ok {
		return []string{fmt.Sprintf("%s is %.80v, want %s", path, v, kind)}
	}
	var all []string
	for name, value := range m {
		t, known := s[kind][name]
		if !known {
			t, known = s[kind][name+"!"]
		}
		if !known || name == "=" {
			all = append(all, fmt.Sprintf("%s has the member %q, which %s has not", path, name, kind))
			continue
		}
		all = append(all, s.check(t, path+"."+name, value)...)
	}
	for name := range s[kind] {
		if required, is := strings.CutSuffix(name, "!"); is && m[required] == nil {
			all = append(all, fmt.Sprintf("%s.%s is missing", path, required))
		}
	}
	if one := strings.Fields(s[kind]["="]); len(one) > 0 {
		n := 0
		for _, name := range one {
			if _, there := m[name]; there {
				n++
			}
		}
		if n != 1 {
			all = append(all, fmt.Sprintf("%s has %d of %v, want one", path, n, one))
		}
	}
	slices.Sort(all)
	return all
}

// nulls finds null in what is otherwise free.
func nulls(path string, v any) (all []string) {
	switch v := v.(type) {
	case nil:
		return []string{path + " is null"}
	case map[string]any:
		for name, e := range v {
			all = append(all, nulls(path+"."+name, e)...)
		}
	case []any:
		for i, e := range v {
			all = append(all, nulls(fmt.Sprintf("%s[%d]", path, i), e)...)
		}
	}
	return all
}

// answers are what the operations return, by version.
func answerShape(op string, f form) string {
	if f.version == "0.3" && f.binding == jsonRPC {
		switch op {
		case opSend:
			return "" // a task or a message, told apart by kind
		case opPushList:
			return "[]TaskPushNotificationConfig"
		case opPushDelete:
			return ""
		}
	}
	switch op {
	case opSend:
		return "SendMessageResponse"
	case opList:
		return "ListTasksResponse"
	case opGet, opCancel:
		return "Task"
	case opPushCreate, opPushGet:
		return "TaskPushNotificationConfig"
	case opPushList:
		return "ListPushNotificationConfigs"
	case opPushDelete:
		return "Empty"
	case opExtended:
		return "AgentCard"
	}
	return ""
}
