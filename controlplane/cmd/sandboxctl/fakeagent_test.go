package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/gorilla/mux"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
)

// agent is the A2A address of every machine. What it does with a message is
// named by the message: the file of an adapter command, or the text.
func (f *fakeServer) agent() http.Handler {
	r := mux.NewRouter()
	const at = "/agents/{id}"
	r.HandleFunc(at+"/.well-known/agent-card.json", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"name":"agent of %s","supportedInterfaces":[],"evil":"\u009b2J\u202e"}`, mux.Vars(r)["id"])
	})
	r.HandleFunc(at+"/message:stream", f.stream).Methods(http.MethodPost)
	r.HandleFunc(at+"/message:send", f.deliver).Methods(http.MethodPost)
	r.HandleFunc(at+"/tasks", listTasks)
	r.HandleFunc(at+"/tasks/{task}:cancel", func(w http.ResponseWriter, r *http.Request) {
		switch mux.Vars(r)["task"] {
		case "T-ok.json", "T-fail.json":
			a2aError(w, http.StatusBadRequest, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE", "the task has ended: TASK_STATE_X")
			return
		case "T-hold.json":
			f.mu.Lock()
			select {
			case <-f.hold:
			default:
				close(f.hold)
			}
			f.mu.Unlock()
		}
		fmt.Fprint(w, taskJSON("hold.json"))
	}).Methods(http.MethodPost)
	r.HandleFunc(at+"/tasks/{task}:subscribe", f.subscribe).Methods(http.MethodPost)
	r.HandleFunc(at+"/tasks/{task}/artifacts/{artifact}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "whole %s of %s\x00\n", mux.Vars(r)["artifact"], mux.Vars(r)["task"])
	})
	r.HandleFunc(at+"/tasks/{task}", func(w http.ResponseWriter, r *http.Request) {
		name, ok := strings.CutPrefix(mux.Vars(r)["task"], "T-")
		if !ok {
			a2aError(w, http.StatusNotFound, "NOT_FOUND", "TASK_NOT_FOUND", "there is no such task")
			return
		}
		fmt.Fprint(w, taskJSON(name))
	})
	return r
}

// listTasks lists three tasks; the one that asks is the oldest.
func listTasks(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	all := []string{}
	for _, name := range []string{"fail.json", "ok.json", "ask.json"} {
		if state := q.Get("status"); state == "" || state == fates()[name].state {
			all = append(all, taskJSON(name))
		}
	}
	from, _ := strconv.Atoi(q.Get("pageToken"))
	size, err := strconv.Atoi(q.Get("pageSize"))
	if err != nil || size < 1 || size > 100 || from > len(all) {
		a2aError(w, http.StatusBadRequest, "INVALID_ARGUMENT", "INVALID_REQUEST", "pageSize or pageToken")
		return
	}
	next := ""
	if from+size < len(all) {
		next = strconv.Itoa(from + size)
	}
	page := all[from:min(from+size, len(all))]
	fmt.Fprintf(w, `{"tasks":[%s],"nextPageToken":%q,"pageSize":%d,"totalSize":%d}`, strings.Join(page, ","), next, size, len(all))
}

func a2aError(w http.ResponseWriter, status int, code, reason, message string, violations ...invoke.Violation) {
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": status, "status": code, "message": message,
		"details": []any{map[string]any{"reason": reason, "fieldViolations": violations}},
	}})
}

type fate struct {
	state   string
	outcome string
	message string
}

func fates() map[string]fate {
	return map[string]fate{
		"ok.json":     {invoke.Completed, `{"reason":"exit","exit_code":0}`, ""},
		"break.json":  {invoke.Completed, `{"reason":"exit","exit_code":0}`, ""},
		"fail.json":   {invoke.Failed, `{"fail_kind":"application","reason":"exit","exit_code":3}`, "the command exited with 3"},
		"infra.json":  {invoke.Failed, `{"fail_kind":"infrastructure","reason":"machine_gone"}`, "the machine no longer exists"},
		"reject.json": {invoke.Rejected, `{}`, "no"},
		"ask.json":    {invoke.InputRequired, `{}`, "Continue? [y/N]"},
		"hold.json":   {invoke.Canceled, `{"reason":"canceled"}`, ""},
		"text":        {invoke.Completed, `{"reason":"exit","exit_code":0}`, ""},
	}
}

func taskJSON(name string) string {
	fate := fates()[name]
	t := map[string]any{
		"id": "T-" + name, "contextId": "C", "status": status(fate),
		"metadata":  map[string]any{invoke.ExtensionAdapterCommand: json.RawMessage(fate.outcome), "runtime.kind": "vm"},
		"artifacts": []any{map[string]any{"artifactId": "stdout", "name": "stdout", "parts": []any{map[string]any{"text": "plan\n"}}}},
	}
	b, err := json.Marshal(t)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func status(fate fate) map[string]any {
	s := map[string]any{"state": fate.state, "timestamp": "2026-01-02T03:04:05.000Z"}
	if fate.message != "" {
		m := map[string]any{"messageId": "m", "role": "ROLE_AGENT", "parts": []any{map[string]any{"text": fate.message}}}
		if fate.state == invoke.InputRequired {
			m["metadata"] = map[string]any{invoke.ExtensionHITLPrompt: map[string]any{
				"prompt_id": "P", "prompt": fate.message, "response_schema": map[string]any{"type": "object"},
			}}
		}
		s["message"] = m
	}
	return s
}

func (f *fakeServer) stream(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Message invoke.Message `json:"message"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Header.Get("A2A-Version") != "1.0" ||
		!strings.Contains(r.Header.Get("A2A-Extensions"), invoke.ExtensionRuntime) {
		a2aError(w, http.StatusBadRequest, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED", "headers are missing")
		return
	}
	if body.Message.TaskID != "" {
		f.replied(w, body.Message)
		return
	}
	raw, ok := body.Message.Metadata[invoke.ExtensionAdapterCommand]
	if !ok {
		if body.Message.Text() == "just a message" {
			events(w)(0, `{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"an answer \u001b[2J"}]}}`)
			return
		}
		f.follow(w, r, "text", body.Message.Text(), 0)
		return
	}
	f.mu.Lock()
	fmt.Fprintf(&f.sent, "%s\n", raw)
	f.mu.Unlock()
	var envelope struct {
		Mode    string   `json:"mode"`
		Command []string `json:"command"`
	}
	if json.Unmarshal(raw, &envelope) != nil || envelope.Mode != "plan" {
		a2aError(w, http.StatusBadRequest, "INVALID_ARGUMENT", "INVALID_REQUEST", "the envelope breaks a rule",
			invoke.Violation{Field: "mode", Description: `must be "plan" or "assess"`})
		return
	}
	f.follow(w, r, envelope.Command[3], "plan\n", 0)
}

func (f *fakeServer) subscribe(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(mux.Vars(r)["task"], "T-")
	if !ok {
		a2aError(w, http.StatusNotFound, "NOT_FOUND", "TASK_NOT_FOUND", "there is no such task")
		return
	}
	after, err := strconv.Atoi(r.Header.Get("Last-Event-ID"))
	if err != nil {
		a2aError(w, http.StatusBadRequest, "INVALID_ARGUMENT", "INVALID_REQUEST", "Last-Event-ID")
		return
	}
	f.follow(w, r, name, "plan\n", after)
}

func events(w http.ResponseWriter) func(id int, data string) {
	w.Header().Set("Content-Type", "text/event-stream")
	return func(id int, data string) {
		fmt.Fprintf(w, "id: %d\ndata: %s\n\n", id, data)
		http.NewResponseController(w).Flush()
	}
}

// follow streams the events of a task behind one of them.
func (f *fakeServer) follow(w http.ResponseWriter, r *http.Request, name, stdout string, after int) {
	send := events(w)
	id := "T-" + name
	send(after, `{"task":{"id":"`+id+`","contextId":"C","status":{"state":"TASK_STATE_WORKING"}}}`)
	sum := sha256.Sum256([]byte(stdout))
	chunk := func(stream, key, data, meta string) string {
		v, _ := json.Marshal(data)
		return `{"artifactUpdate":{"taskId":"` + id + `","artifact":{"artifactId":"` + stream + `","name":"` + stream +
			`","parts":[{"` + key + `":` + string(v) + `}]},"append":true,"lastChunk":` + strconv.FormatBool(key == "raw") + `,"metadata":{` + meta + `}}}`
	}
	fate := fates()[name]
	end, _ := json.Marshal(map[string]any{"statusUpdate": map[string]any{
		"taskId": id, "status": status(fate),
		"metadata": map[string]any{invoke.ExtensionAdapterCommand: json.RawMessage(fate.outcome)},
	}})
	all := []string{
		chunk("stdout", "text", stdout, `"offset":0`),
		chunk("stderr", "text", "note\n", `"offset":0`),
		chunk("stdout", "raw", "", fmt.Sprintf(`"offset":%d,"sha256":%q`, len(stdout), hex.EncodeToString(sum[:]))),
		string(end),
	}
	for i, e := range all {
		if i < after {
			continue
		}
		if name == "hold.json" && i == 2 {
			f.holding <- struct{}{}
			select {
			case <-f.hold:
			case <-r.Context().Done():
				return
			}
		}
		f.mu.Lock()
		drop := name == "break.json" && i == 1 && f.drops > 0
		if drop {
			f.drops--
		}
		f.mu.Unlock()
		if drop {
			panic(http.ErrAbortHandler)
		}
		send(i+1, e)
	}
}
