package a2a_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
)

// late is an engine that is made after who needs it.
type late struct{ engine atomic.Pointer[engine.Engine] }

func (l *late) Changed(id string) <-chan struct{} { return l.engine.Load().Changed(id) }

// newPushRig is a rig whose webhooks may be on loopback.
func newPushRig(t *testing.T) *rig {
	t.Helper()
	var tasks late
	var service *push.Service
	r := newRig(t, func(cfg *a2a.Config, ecfg *engine.Config) {
		db := ecfg.Journal.(*sqlite.DB)
		service = push.New(context.WithoutCancel(t.Context()), push.Config{
			Store: db.Webhooks(), Log: db, Tasks: &tasks, Format: a2a.PushFormat(*cfg),
			Guard:  &push.Guard{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			Limits: push.Limits{PerTask: 4},
		})
		cfg.Push = service
	})
	tasks.engine.Store(r.engine)
	t.Cleanup(service.Close)
	return r
}

// delivery is what a webhook got.
type delivery struct {
	header http.Header
	body   map[string]any
	raw    string
}

func webhook(t *testing.T) (url string, got <-chan delivery) {
	t.Helper()
	c := make(chan delivery, 100)
	return serveOn(t, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		raw, err := io.ReadAll(req.Body)
		d := delivery{header: req.Header, raw: string(raw)}
		if err != nil || json.Unmarshal(raw, &d.body) != nil {
			t.Errorf("a webhook got %q, %v", raw, err)
		}
		c <- d
	})) + "/hook", c
}

func (r *rig) next(got <-chan delivery) delivery {
	r.t.Helper()
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	select {
	case d := <-got:
		return d
	case <-limit.C:
		r.t.Fatal("nothing was delivered")
		return delivery{}
	}
}

// TestPushConfigs: the four operations, on both bindings of 1.0.
func TestPushConfigs(t *testing.T) {
	r := newPushRig(t)
	id := r.start("sh:sleep 600")
	url, _ := webhook(t)
	configs := "/agents/" + idA + "/tasks/" + id + "/pushNotificationConfigs"
	body := func(id string) string {
		return `{"id":"` + id + `","url":"` + url + `","token":"s3cret-token","authentication":{"scheme":"Bearer","credentials":"s3cret-cred"}}`
	}
	want := func(config string) string {
		return `{"taskId":"` + id + `","id":"` + config + `","url":"` + url + `","authentication":{"scheme":"Bearer"}}`
	}
	check := func(what string, a answer, status int, want string) {
		t.Helper()
		if a.status != status || strings.TrimSpace(string(a.body)) != want {
			t.Errorf("%s answers %d %s, not %d %s", what, a.status, a.body, status, want)
		}
	}
	rpc := func(result string) string { return `{"id":7,"jsonrpc":"2.0","result":` + result + `}` }
	check("create", r.do(http.MethodPost, configs, body("one"), good), 200, want("one"))
	check("get", r.do(http.MethodGet, configs+"/one", "", good), 200, want("one"))
	created := r.rpc("CreateTaskPushNotificationConfig",
		`{"task_id":"`+id+`","url":"`+url+`","authentication":{"scheme":"Basic","credentials":"s3cret-cred"}}`, good)
	two, _ := created.path("result", "id").(string)
	if len(two) != 36 || created.path("result", "authentication", "credentials") != nil {
		t.Errorf("create without an id answers %s", created.body)
	}
	check("get", r.rpc("GetTaskPushNotificationConfig", `{"taskId":"`+id+`","id":"one"}`, good), 200, rpc(want("one")))
	check("list", r.do(http.MethodGet, configs+"?pageSize=1", "", good), 200, `{"configs":[`+want("one")+`],"nextPageToken":"1"}`)
	second := r.rpc("ListTaskPushNotificationConfigs", `{"taskId":"`+id+`","pageSize":5,"pageToken":"1"}`, good)
	if second.path("result", "configs", 0, "id") != two || second.path("result", "nextPageToken") != "" {
		t.Errorf("the second page is %s", second.body)
	}
	for range 2 { // deleting is idempotent
		check("delete", r.do(http.MethodDelete, configs+"/one", "", good), 200, `{}`)
		check("delete", r.rpc("DeleteTaskPushNotificationConfig", `{"taskId":"`+id+`","id":"`+two+`"}`, good), 200, rpc(`{}`))
	}
	check("list", r.do(http.MethodGet, configs, "", good), 200, `{"configs":[],"nextPageToken":""}`)
	for _, a := range []answer{
		r.do(http.MethodGet, configs+"/one", "", good), r.do(http.MethodGet, configs+"/never", "", good),
	} {
		if a.status != 404 || a.path("error", "details", 0, "reason") != "TASK_NOT_FOUND" {
			t.Errorf("a configuration that is gone is %d %s", a.status, a.body)
		}
	}
	for i := range 5 {
		a := r.do(http.MethodPost, configs, body(fmt.Sprint("n", i)), good)
		if i < 4 && a.status != 200 || i == 4 && (a.status != 429 || a.path("error", "details", 0, "reason") != "LIMIT_REACHED") {
			t.Errorf("configuration %d: %d %s", i, a.status, a.body)
		}
		if strings.Contains(string(a.body), "s3cret") {
			t.Errorf("a secret is told: %s", a.body)
		}
	}
	r.do(http.MethodPost, "/agents/"+idA+"/tasks/"+id+":cancel", "", good)
}

// TestPushRefusals: what breaks a rule is said by its field, on every way in,
// and makes no task.
func TestPushRefusals(t *testing.T) {
	r := newPushRig(t)
	id := r.start("hello")
	configs := "/agents/" + idA + "/tasks/" + id + "/pushNotificationConfigs"
	for field, bodies := range map[string][]string{
		"url": {
			`{}`, `{"url":7}`, `{"url":"ftp://example.org"}`, `{"url":"http://169.254.169.254/latest"}`, `{"url":"https://[::ffff:10.0.0.1]"}`,
			`{"url":"https://user:pw@example.org"}`, `{"url":"https://[fd00::1]/"}`,
		},
		"token":                      {`{"url":"http://127.0.0.1:1","token":"a\r\nX-Evil: 1"}`},
		"authentication.credentials": {`{"url":"http://127.0.0.1:1","authentication":{"scheme":"Bearer","credentials":"a\nb"}}`},
		"authentication.scheme":      {`{"url":"http://127.0.0.1:1","authentication":{}}`, `{"url":"http://127.0.0.1:1","authentication":{"scheme":"a b"}}`},
		"id":                         {`{"url":"http://127.0.0.1:1","id":"a/b"}`},
		"taskId":                     {`{"url":"http://127.0.0.1:1","taskId":"another"}`},
	} {
		for _, body := range bodies {
			a := r.do(http.MethodPost, configs, body, good)
			if a.status != 400 || a.path("error", "details", 1, "fieldViolations", 0, "field") != field {
				t.Errorf("%s answers %d %s", body, a.status, a.body)
			}
			inline := strings.TrimSuffix(message("x"), "}") + `,"configuration":{"taskPushNotificationConfig":` + body + `}}`
			for _, path := range []string{"/message:send", "/message:stream"} {
				a = r.do(http.MethodPost, "/agents/"+idA+path, inline, good)
				if a.status != 400 || a.path("error", "details", 1, "fieldViolations", 0, "field") != "configuration.taskPushNotificationConfig."+field {
					t.Errorf("%s with %s answers %d %s", path, body, a.status, a.body)
				}
			}
		}
	}
	if a := r.do(http.MethodGet, "/agents/"+idA+"/tasks", "", good); a.path("totalSize") != 1.0 {
		t.Errorf("a refused webhook made a task: %s", a.body)
	}
	if a := r.do(http.MethodGet, configs, "", good); a.path("configs", 0) != nil {
		t.Errorf("a refused webhook was kept: %s", a.body)
	}
}

// TestPushOfOthers: on somebody else's task every operation answers as on none.
func TestPushOfOthers(t *testing.T) {
	r := newPushRig(t)
	id := r.start("hello")
	bob := with(map[string]string{"X-User": "bob"})
	body := `{"id":"c","url":"http://127.0.0.1:1"}`
	if a := r.do(http.MethodPost, "/agents/"+idA+"/tasks/"+id+"/pushNotificationConfigs", body, good); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for _, op := range [][3]string{
		{http.MethodPost, "", body}, {http.MethodGet, "", ""}, {http.MethodGet, "/c", ""}, {http.MethodDelete, "/c", ""},
	} {
		answers := map[string]bool{}
		for _, path := range []string{idA + "/tasks/" + id, idA + "/tasks/none", idB + "/tasks/" + id} {
			a := r.do(op[0], "/agents/"+path+"/pushNotificationConfigs"+op[1], op[2], bob)
			answers[fmt.Sprint(a.status, string(a.body))] = true
			if a.status != 404 || a.path("error", "details", 0, "reason") != "TASK_NOT_FOUND" {
				t.Errorf("%v on %s answers %d %s", op, path, a.status, a.body)
			}
		}
		if len(answers) != 1 {
			t.Errorf("%v tells apart: %v", op, answers)
		}
	}
	for _, method := range []string{"Create", "Get", "List", "Delete"} {
		name := method + "TaskPushNotificationConfig"
		if method == "List" {
			name += "s"
		}
		a := r.rpc(name, `{"taskId":"`+id+`","id":"c","url":"http://127.0.0.1:1"}`, bob)
		if a.path("error", "code") != -32001.0 {
			t.Errorf("%s answers %s", name, a.body)
		}
	}
	if a := r.do(http.MethodGet, "/agents/"+idA+"/tasks/"+id+"/pushNotificationConfigs/c", "", good); a.status != 200 {
		t.Errorf("the owner has lost it: %d %s", a.status, a.body)
	}
}

// TestPushDelivery: a webhook that comes with the message is told everything a
// stream would be, in the same words.
func TestPushDelivery(t *testing.T) {
	r := newPushRig(t)
	url, got := webhook(t)
	body := strings.TrimSuffix(message("sh:echo hello; echo oops >&2; exit 3"), "}") + `,"configuration":{"taskPushNotificationConfig":` +
		`{"url":"` + url + `","token":"tok","authentication":{"scheme":"Bearer","credentials":"cred"}}}}`
	sent := r.do(http.MethodPost, "/agents/"+idA+"/message:send", body, good)
	id, _ := sent.path("task", "id").(string)
	if id == "" {
		t.Fatalf("send answers %d %s", sent.status, sent.body)
	}
	var c collected
	for len(c.states) == 0 || c.states[len(c.states)-1] != "TASK_STATE_FAILED" {
		d := r.next(got)
		if len(d.body) != 1 || d.body["task"] != nil || strings.Contains(d.raw, `"kind"`) || strings.Contains(d.raw, "null") {
			t.Errorf("delivered %s", d.raw)
		}
		for _, v := range d.body {
			if dig(v, "taskId") != id || dig(v, "contextId") != sent.path("task", "contextId") {
				t.Errorf("delivered %s", d.raw)
			}
		}
		for name, value := range map[string]string{
			"Content-Type": "application/a2a+json", "Authorization": "Bearer cred",
			"A2A-Notification-Token": "tok", "X-A2A-Notification-Token": "tok",
		} {
			if d.header.Get(name) != value {
				t.Errorf("header %s is %q", name, d.header.Get(name))
			}
		}
		c.add(frame{data: d.body})
	}
	if c.states[0] != "TASK_STATE_SUBMITTED" || c.out["stdout"] != "hello\n" || c.out["stderr"] != "oops\n" {
		t.Errorf("was told %+v", c)
	}
	list := r.do(http.MethodGet, "/agents/"+idA+"/tasks/"+id+"/pushNotificationConfigs", "", good)
	if list.path("configs", 0, "url") != url {
		t.Errorf("the configuration is %s", list.body)
	}
}

// TestPushOnEndedTask: conformance kits register webhooks on completed tasks;
// they learn the end.
func TestPushOnEndedTask(t *testing.T) {
	r := newPushRig(t)
	a := r.send("hello")
	id, _ := a.path("task", "id").(string)
	url, got := webhook(t)
	a = r.rpc("CreateTaskPushNotificationConfig", `{"taskId":"`+id+`","id":"x","url":"`+url+`"}`, good)
	if a.path("result", "id") != "x" {
		t.Fatalf("create answers %s", a.body)
	}
	if d := r.next(got); dig(d.body, "statusUpdate", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Errorf("delivered %s", d.raw)
	}
}

// TestPush03: who registered by 0.3 is told in 0.3.
func TestPush03(t *testing.T) {
	r := newPushRig(t)
	url, got := webhook(t)
	old := with(map[string]string{"A2A-Version": "0.3"})
	config := `{"id":"c","url":"` + url + `","token":"s3cret","authentication":{"schemes":["Bearer"],"credentials":"s3cret"}}`
	a := r.rpc("message/send", `{"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"hi"}]},`+
		`"configuration":{"blocking":true,"pushNotificationConfig":`+config+`}}`, old)
	id, _ := a.path("result", "id").(string)
	var states []any
	for len(states) == 0 || states[len(states)-1] != "completed" {
		d := r.next(got)
		if d.body["kind"] != "task" || d.body["id"] != id || d.header.Get("X-A2A-Notification-Token") != "s3cret" ||
			dig(d.body, "metadata", "runtime.instance_id") != idA {
			t.Fatalf("delivered %s", d.raw)
		}
		states = append(states, dig(d.body, "status", "state"))
		if states[len(states)-1] == "completed" && dig(d.body, "artifacts", 0, "parts", 0, "kind") != "text" {
			t.Errorf("the end came without its artifact: %s", d.raw)
		}
	}
	if states[0] != "submitted" {
		t.Errorf("states were %v", states)
	}
	shown := `{"taskId":"` + id + `","pushNotificationConfig":{"id":"c","url":"` + url + `","authentication":{"schemes":["Bearer"]}}}`
	for method, op := range map[string][2]string{
		"set":  {`{"taskId":"` + id + `","pushNotificationConfig":` + config + `}`, shown},
		"get":  {`{"id":"` + id + `","pushNotificationConfigId":"c"}`, shown},
		"list": {`{"id":"` + id + `"}`, `[` + shown + `]`},
	} {
		a := r.rpc("tasks/pushNotificationConfig/"+method, op[0], old)
		if want := `{"id":7,"jsonrpc":"2.0","result":` + op[1] + `}`; strings.TrimSpace(string(a.body)) != want {
			t.Errorf("%s answers %s, not %s", method, a.body, want)
		}
	}
	path := "/agents/" + idA + "/v1/tasks/" + id + "/pushNotificationConfigs"
	rest := r.do(http.MethodPost, path, `{"parent":"tasks/`+id+`","configId":"d","config":{"pushNotificationConfig":{"url":"`+url+`"}}}`, old)
	if rest.path("name") != "tasks/"+id+"/pushNotificationConfigs/d" || rest.path("pushNotificationConfig", "url") != url {
		t.Errorf("create answers %d %s", rest.status, rest.body)
	}
	for _, config := range []string{"c", "d"} {
		raw := r.open(http.MethodPost, "/agents/"+idA,
			`{"jsonrpc":"2.0","id":7,"method":"tasks/pushNotificationConfig/delete","params":{"id":"`+id+`","pushNotificationConfigId":"`+config+`"}}`, old)
		b, err := io.ReadAll(raw.Body)
		raw.Body.Close()
		if err != nil || strings.TrimSpace(string(b)) != `{"id":7,"jsonrpc":"2.0","result":null}` {
			t.Errorf("delete answers %s, %v", b, err)
		}
	}
	if a := r.do(http.MethodGet, path, "", old); strings.TrimSpace(string(a.body)) != `{"configs":[],"nextPageToken":""}` {
		t.Errorf("list answers %s", a.body)
	}
}

// TestPushOnCard: the card says what is true.
func TestPushOnCard(t *testing.T) {
	r := newPushRig(t)
	a := r.do(http.MethodGet, "/agents/"+idA+"/.well-known/agent-card.json", "", good)
	if a.path("capabilities", "pushNotifications") != true {
		t.Errorf("the card is %s", a.body)
	}
}
