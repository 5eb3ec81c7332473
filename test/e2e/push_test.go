package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

// webhook receives notifications. What it answers is the test's choice.
type webhook struct {
	url  string
	news chan struct{} // holds a token when something came

	mu     sync.Mutex
	status int
	all    []notice
}

// notice is one try to tell an event.
type notice struct {
	key    string
	event  any
	task   string
	status int // that it was answered with
}

func newWebhook(t *testing.T, status int) *webhook {
	t.Helper()
	w := &webhook{status: status, news: make(chan struct{}, 1)}
	srv := httptest.NewServer(http.HandlerFunc(w.take))
	t.Cleanup(srv.Close)
	w.url = srv.URL
	return w
}

func (w *webhook) take(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
	n := notice{key: r.Header.Get("Idempotency-Key")}
	if err != nil || json.Unmarshal(body, &n.event) != nil {
		rw.WriteHeader(http.StatusInternalServerError) // cut off by a death
		return
	}
	for _, kind := range []string{"statusUpdate", "artifactUpdate"} {
		if id := text(n.event, kind, "taskId"); id != "" {
			n.task = id
		}
	}
	w.mu.Lock()
	n.status = w.status
	w.all = append(w.all, n)
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
	rw.WriteHeader(n.status)
}

// answer says how it answers from now on.
func (w *webhook) answer(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = status
}

func (w *webhook) notices() []notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

// until waits for notices until they are as wanted.
func (w *webhook) until(t *testing.T, so func([]notice) bool) {
	t.Helper()
	ctx := deadline(t)
	for !so(w.notices()) {
		select {
		case <-w.news:
		case <-ctx.Done():
			t.Fatalf("the webhook got %+v", w.notices())
		}
	}
}

// taken are the events of a task that were acknowledged, each once, in the
// order in which they came first. One that comes before an earlier one has
// been taken is an error.
func taken(t *testing.T, all []notice, taskID string) []any {
	t.Helper()
	var events []any
	var keys []string
	pending := "" // the key of an event that was refused, and must come before any other
	for _, n := range all {
		if n.task != taskID {
			continue
		}
		known := slices.Contains(keys, n.key)
		if pending != "" && n.key != pending && !known {
			t.Errorf("task %s: %s comes, but %s has not been taken", taskID, n.key, pending)
		}
		switch {
		case n.status != http.StatusOK && !known:
			pending = n.key
		case n.status == http.StatusOK && !known:
			keys, events, pending = append(keys, n.key), append(events, n.event), ""
		}
	}
	return events
}

// ends reports whether an event is the last one of its task.
func ends(event any) bool {
	return text(event, "statusUpdate", "status", "state") == "TASK_STATE_COMPLETED"
}

func pushes(url, id string) string {
	return `,"configuration":{"returnImmediately":true,"taskPushNotificationConfig":{"id":"` + id + `","url":"` + url + `"}}`
}

// echoMessage has a text come back, and a webhook told.
func echoMessage(said, configuration string) string {
	return `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"` + said + `"}]}` + configuration + `}`
}

// TestCrashBetweenPushes kills the daemon between the tries of a webhook that
// fails, before its first event is taken and again in the middle: it gets every
// event of two tasks, each task's in order.
func TestCrashBetweenPushes(t *testing.T) {
	h := host(t, "", "--push-allow", "127.0.0.0/8", "--push-http")
	c := h.agent
	hook := newWebhook(t, http.StatusServiceUnavailable)
	var tasks []string
	for _, said := range []string{"one", "two"} {
		tasks = append(tasks, text(c.send(echoMessage(said, pushes(hook.url+"/hook", "h")), header()).json, "task", "id"))
	}
	for _, id := range tasks {
		c.ended(id)
	}
	count := func(all []notice, id string, status int) (n int) {
		for _, x := range all {
			if x.task == id && x.status == status {
				n++
			}
		}
		return n
	}
	each := func(least, status int) func([]notice) bool {
		return func(all []notice) bool {
			return count(all, tasks[0], status) >= least && count(all, tasks[1], status) >= least
		}
	}
	restart := func() {
		t.Helper()
		check(t, h.Kill())
		check(t, h.Launch(deadline(t)))
	}
	hook.until(t, each(2, http.StatusServiceUnavailable))
	restart()
	hook.until(t, each(3, http.StatusServiceUnavailable))
	hook.answer(http.StatusOK)
	hook.until(t, func(all []notice) bool {
		return count(all, tasks[0], http.StatusOK)+count(all, tasks[1], http.StatusOK) > 0
	})
	hook.answer(http.StatusBadGateway)
	restart()
	hook.answer(http.StatusOK)
	hook.until(t, func(all []notice) bool {
		for _, id := range tasks {
			if !slices.ContainsFunc(all, func(n notice) bool { return n.task == id && n.status == http.StatusOK && ends(n.event) }) {
				return false
			}
		}
		return true
	})
	for _, id := range tasks {
		got, want := taken(t, hook.notices(), id), c.log(id)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("task %s: the webhook took %v\nthe log has %v", id, got, want)
		}
		if len(want) < 3 {
			t.Errorf("task %s has %d events only", id, len(want))
		}
	}
}

// TestCrashAfterGivingUp kills the daemon after a webhook was given up: the
// next one knows, and leaves it alone until it is registered again; then it
// gets all that it has missed.
func TestCrashAfterGivingUp(t *testing.T) {
	h := host(t, "", "--push-allow", "127.0.0.0/8", "--push-http")
	c := h.agent
	gone, fine := newWebhook(t, http.StatusGone), newWebhook(t, http.StatusOK)
	id := text(c.send(echoMessage("gone", pushes(gone.url, "h")), header()).json, "task", "id")
	c.ended(id)
	eventually(t, func() bool { return strings.Contains(h.Log(), "webhook given up") }, h.Log)
	if n := len(gone.notices()); n != 1 {
		t.Errorf("a webhook that is gone was tried %d times", n)
	}
	check(t, h.Kill())
	check(t, h.Launch(deadline(t)))
	// While another one is served to the end, nobody comes back to it.
	other := text(c.send(echoMessage("fine", pushes(fine.url, "h")), header()).json, "task", "id")
	fine.until(t, func(all []notice) bool {
		return slices.ContainsFunc(all, func(n notice) bool { return n.task == other && ends(n.event) })
	})
	if n := len(gone.notices()); n != 1 {
		t.Errorf("after the restart it was tried %d times", n)
	}
	gone.answer(http.StatusOK)
	r := c.do(http.MethodPost, "/tasks/"+id+"/pushNotificationConfigs", `{"id":"h","url":"`+gone.url+`"}`, header())
	if r.status != http.StatusOK {
		t.Fatalf("it cannot be registered again: %d %s", r.status, r.body)
	}
	gone.until(t, func(all []notice) bool { return ends(all[len(all)-1].event) })
	if got, want := taken(t, gone.notices(), id), c.log(id); !reflect.DeepEqual(got, want) {
		t.Errorf("the webhook took %v\nthe log has %v", got, want)
	}
}
