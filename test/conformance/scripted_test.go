package conformance

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// The scripted runner does what the id of a message says, as the scenarios of
// the public A2A kit have it. A server that has it requires no extension, so it
// is another one than that which all other cases ask.
func scriptedCases() []kase {
	return []kase{
		every("CORE-STREAM-002", messageIsAlone, needScript),
		every("CORE-SEND-001", sendAnswersWithMessage, needScript),
		every("DM-FILE-001", artifactsAreWhatTheyAre, needScript),
		both("CORE-STREAM-003", chunksBecomeOne, needScript),
		every("DM-STATE-001", rejectedHasEnded, needScript),
		both("DM-TASK-002", allStatesAreShown, needScript),
		both("AUTH-INTASK-001", authorizationIsATask, needScript),
		every("AUTH-INTASK-002", authorizationIsAState, needScript),
		both("AUTH-INTASK-003", authorizationIsExplained, needScript),
		both("AUTH-INTASK-005", streamsStayWhileAuthorizing, needScript),
		both("AUTH-INTASK-006", messagesWhileAuthorizing, needScript),
		both("CORE-MULTI-005", followUpNeedsTaskOnly, needScript),
		both("STREAM-SUB-002", waitingStreamStays, needScript),
	}
}

// play is a message that has the scripted runner do something.
func (x *trial) play(script string, change func(object)) object {
	return x.message("play", func(m object) {
		m["messageId"] = unique(script)
		if change != nil {
			change(m)
		}
	})
}

// stage is the trial on the server with the scripted runner.
func (x *trial) stage() *trial { return x.on(x.scripted) }

func messageIsAlone(x *trial) {
	y := x.stage()
	h := y.all(y.follow(opStream, y.play("tck-message-response", nil)))
	y.want(h.closed && len(h.events) == 1 && h.events[0].kind == "message", "the stream has %+v", h.events)
	y.want(partsOf(h.last().body) == "Direct message response", "the message is %v", h.last().body)
}

// partsOf is the text of a message in any form.
func partsOf(m any) string {
	if s := partText(m); s != "" {
		return s
	}
	return text(m, "content", 0, "text")
}

func sendAnswersWithMessage(x *trial) {
	y := x.stage()
	before := y.total()
	r := y.ok(opSend, y.play("tck-message-response", nil))
	m := r.get("message")
	if r.form == rpc03() {
		m = r.result
	}
	y.want(partsOf(m) == "Direct message response" && text(m, "messageId") != "" && r.get("task") == nil, "the answer is %.300s", r.raw)
	y.want(y.total() == before, "a task was made")
}

// partOf is the only part of a task's only artifact.
func (x *trial) partOf(task any) any {
	x.Helper()
	artifacts := list(task, "artifacts")
	if len(artifacts) != 1 || len(list(artifacts[0], "parts")) != 1 {
		x.Fatalf("the artifacts are %.400v", artifacts)
	}
	return dig(artifacts[0], "parts", 0)
}

func artifactsAreWhatTheyAre(x *trial) {
	y := x.stage()
	part := func(script string) any {
		one := y.partOf(y.ok(opSend, y.play(script, nil)).task())
		h := y.all(y.follow(opStream, y.play(script, nil)))
		again := y.partOf(y.ok(opGet, object{"id": text(h.events[0].body, "id")}).task())
		y.want(fmt.Sprint(one) == fmt.Sprint(again), "%s is %v and %v", script, one, again)
		return one
	}
	y.want(text(part("tck-artifact-text"), "text") == "Generated text content", "the text is %v", part("tck-artifact-text"))
	file, url, data := part("tck-artifact-file"), part("tck-artifact-file-url"), part("tck-artifact-data")
	name, media, raw, address := "filename", "mediaType", "raw", "url"
	switch y.form {
	case rpc03():
		name, media, raw, address = "name", "mimeType", "bytes", "uri"
	case rest03():
		name, media, raw, address = "name", "mimeType", "fileWithBytes", "fileWithUri"
		data = dig(data, "data") // which is wrapped in the proto form
	}
	if y.form.version == "0.3" {
		file, url = dig(file, "file"), dig(url, "file")
	}
	content, err := base64.StdEncoding.DecodeString(text(file, raw))
	y.check(err)
	y.want(len(content) > 0 && text(file, name) == "output.txt" && text(file, media) == "text/plain", "the file is %v", file)
	y.want(text(url, address) == "https://example.com/output.txt" && text(url, name) == "output.txt" && text(url, media) == "text/plain",
		"the file's address is %v", url)
	y.want(text(data, "data", "key") == "value" && dig(data, "data", "count") == 42.0, "the data are %v", data)
}

func chunksBecomeOne(x *trial) {
	y := x.stage()
	h := y.all(y.follow(opStream, y.play("tck-stream-artifact-chunked", nil)))
	var chunks []any
	for _, e := range h.events {
		if e.kind == "artifactUpdate" && len(list(e.body, "artifact", "parts")) > 0 && partText(dig(e.body, "artifact")) != "" {
			chunks = append(chunks, e.body)
		}
	}
	if len(chunks) != 2 {
		y.Fatalf("there are %d chunks: %v", len(chunks), chunks)
	}
	y.want(partText(dig(chunks[0], "artifact")) == "chunk-1 " && dig(chunks[0], "append") != true &&
		partText(dig(chunks[1], "artifact")) == "chunk-2" && dig(chunks[1], "append") == true &&
		text(chunks[0], "artifact", "artifactId") == text(chunks[1], "artifact", "artifactId"), "the chunks are %v", chunks)
	last := false
	for _, e := range h.events {
		y.want(!last || e.kind != "artifactUpdate", "there is a chunk after the last one")
		last = last || dig(e.body, "lastChunk") == true
	}
	y.want(last && h.last().state() == "TASK_STATE_COMPLETED", "the stream ends with %v", h.last())
	k := y.ok(opGet, object{"id": text(h.events[0].body, "id")}).result
	y.want(partText(dig(k, "artifacts", 0)) == "chunk-1 chunk-2", "the artifact is %v", dig(k, "artifacts"))
}

func rejectedHasEnded(x *trial) {
	y := x.stage()
	k := y.ok(opSend, y.play("tck-reject-task", nil)).task()
	id := text(k, "id")
	y.want(text(k, "status", "state") == y.says("TASK_STATE_REJECTED"), "the task is %v", dig(k, "status"))
	h := y.all(y.follow(opStream, y.play("tck-reject-task", nil)))
	y.want(h.closed && h.last().state() == y.says("TASK_STATE_REJECTED"), "the stream ends with %v", h.states())
	y.refused(y.call(opCancel, object{"id": id}), notCancelable())
	y.refused(y.call(opSend, y.play("tck-complete-task", func(m object) { m["taskId"] = id })), unsupported())
	_, r := y.open(opSubscribe, object{"id": id})
	y.refused(r, unsupported())
}

func allStatesAreShown(x *trial) {
	y := x.stage()
	for script, want := range map[string]string{
		"tck-complete-task": "COMPLETED", "tck-reject-task": "REJECTED", "tck-fail-task": "FAILED", "tck-input-required": "INPUT_REQUIRED",
		"tck-auth-required": "AUTH_REQUIRED",
	} {
		k := y.ok(opSend, y.play(script, nil)).task()
		id := text(k, "id")
		y.Cleanup(func() { y.end(id) })
		y.want(text(k, "status", "state") == "TASK_STATE_"+want, "%s gives %v", script, dig(k, "status"))
		tasks := list(y.ok(opList, object{"status": "TASK_STATE_" + want, "contextId": text(k, "contextId")}).result, "tasks")
		y.want(len(tasks) == 1 && text(tasks[0], "id") == id, "the list of %s has %v", want, ids(tasks))
	}
}

// authorizing makes a task that waits for an authorization.
func (x *trial) authorizing() any {
	x.Helper()
	k := x.ok(opSend, x.play("tck-auth-required", nil)).task()
	x.Cleanup(func() { x.end(text(k, "id")) })
	return k
}

func authorizationIsATask(x *trial) {
	y := x.stage()
	k := y.authorizing()
	y.want(text(y.ok(opGet, object{"id": text(k, "id")}).result, "id") == text(k, "id"), "the task is not there")
}

func authorizationIsAState(x *trial) {
	y := x.stage()
	k := y.authorizing()
	y.want(text(k, "status", "state") == y.says("TASK_STATE_AUTH_REQUIRED"), "the task is %v", dig(k, "status"))
}

func authorizationIsExplained(x *trial) {
	y := x.stage()
	m := dig(y.authorizing(), "status", "message")
	y.want(strings.TrimSpace(partText(m)) != "" && text(m, "role") == "ROLE_AGENT", "the status message is %v", m)
}

func streamsStayWhileAuthorizing(x *trial) {
	y := x.stage()
	sent := y.follow(opStream, y.play("tck-auth-required", nil))
	h := y.read(sent, func(e event) bool { return e.state() == "TASK_STATE_AUTH_REQUIRED" })
	y.want(!h.closed, "the stream ended with %v", h.states())
	id := text(h.events[0].body, "id")
	y.Cleanup(func() { y.end(id) })
	subscribed := y.follow(opSubscribe, object{"id": id})
	first, err := subscribed.next()
	y.check(err)
	y.want(first.state() == "TASK_STATE_AUTH_REQUIRED", "the task is %s", first.state())
	y.ok(opSend, y.play("tck-complete-task", func(m object) { m["taskId"] = id }))
	for _, s := range []*stream{sent, subscribed} {
		rest := y.all(s)
		y.want(rest.closed && rest.last().state() == "TASK_STATE_COMPLETED", "a stream ends with %v", rest.states())
	}
}

func messagesWhileAuthorizing(x *trial) {
	y := x.stage()
	id := text(y.authorizing(), "id")
	k := y.ok(opSend, y.play("tck-complete-task", func(m object) { m["taskId"] = id })).task()
	y.want(text(k, "id") == id && text(k, "status", "state") == "TASK_STATE_COMPLETED", "the task is %v", dig(k, "status"))
}

func followUpNeedsTaskOnly(x *trial) {
	y := x.stage()
	first := y.ok(opSend, y.play("tck-input-required", nil)).task()
	k := y.ok(opSend, y.play("tck-complete-task", func(m object) { m["taskId"] = text(first, "id") })).task()
	y.want(text(k, "contextId") == text(first, "contextId") && text(k, "status", "state") == "TASK_STATE_COMPLETED", "the task is %.300v", k)
}

func waitingStreamStays(x *trial) {
	y := x.stage()
	id := text(y.ok(opSend, y.play("tck-input-required", nil)).task(), "id")
	s := y.follow(opSubscribe, object{"id": id})
	first, err := s.next()
	y.check(err)
	y.want(first.state() == "TASK_STATE_INPUT_REQUIRED", "the task is %s", first.state())
	y.ok(opSend, y.play("tck-complete-task", func(m object) { m["taskId"] = id }))
	h := y.all(s)
	y.want(h.closed && h.last().state() == "TASK_STATE_COMPLETED", "the stream ends with %v", h.states())
}
