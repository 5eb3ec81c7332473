package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Push keeps webhooks and delivers to them.
type Push interface {
	// Check says with a *push.Refusal what is wrong with a registration.
	Check(ctx context.Context, r push.Registration) error
	// Room returns push.ErrTooMany if a task takes no further webhook of that id,
	// push.ErrFull if nobody's of the caller does. The task may be one to be made.
	Room(ctx context.Context, in task.Scope, taskID, id string) error
	Create(ctx context.Context, in task.Scope, taskID string, r push.Registration, after int64) (push.Hook, error)
	List(ctx context.Context, in task.Scope, taskID string) ([]push.Hook, error)
	Delete(ctx context.Context, in task.Scope, taskID, id string) error
}

var _ Push = (*push.Service)(nil)

// pushConfig is a TaskPushNotificationConfig as it is answered. The token and
// the credentials are never told again, not even to who registered them: they
// are another service's secrets, everybody who may see the task may read its
// configurations, and whoever registered them has them already.
type pushConfig struct {
	TaskID         string    `json:"taskId"`
	ID             string    `json:"id"`
	URL            string    `json:"url"`
	Authentication *pushAuth `json:"authentication,omitempty"`
}

type pushAuth struct {
	Scheme string `json:"scheme"`
}

func newPushConfig(h push.Hook) pushConfig {
	p := pushConfig{TaskID: h.TaskID, ID: h.ID, URL: h.URL}
	if h.Scheme != "" {
		p.Authentication = &pushAuth{h.Scheme}
	}
	return p
}

// pushRequest names a webhook, or asks for one.
type pushRequest struct {
	taskID       string
	registration push.Registration
	path         string // where in the request the registration stood
}

// pushConfig reads a TaskPushNotificationConfig. What is not decided here is
// decided by Push.
func (o object) pushConfig(v version) pushRequest {
	r := pushRequest{taskID: o.id("taskId")}
	r.registration.ID = o.id("id")
	r.registration.Version = string(v)
	r.registration.URL, _ = o.text("url")
	token, _ := o.text("token")
	r.registration.Token = push.Secret(token)
	if raw, ok := o.get("authentication"); ok {
		a := o.d.object(o.at("authentication"), raw)
		r.registration.Scheme, _ = a.text("scheme")
		credentials, _ := a.text("credentials")
		r.registration.Credentials = push.Secret(credentials)
		if r.registration.Scheme == "" {
			o.d.fail(a.at("scheme"), "is required")
		}
	}
	return r
}

// inlinePush is a webhook that comes with a message, and where it stood.
type inlinePush struct {
	push.Registration
	path string
}

func (o object) inlinePush(name string) *inlinePush {
	raw, ok := o.get(name)
	if !ok {
		return nil
	}
	r := o.d.object(o.at(name), raw).pushConfig(v10)
	if r.taskID != "" {
		o.d.fail(o.at(name)+".taskId", "must be absent: the task is that of the message")
	}
	return &inlinePush{r.registration, o.at(name)}
}

// checkPush refuses a webhook before there is a task.
func (c *call) checkPush(ctx context.Context, p *inlinePush) *fault {
	if p == nil {
		return nil
	}
	if c.cfg.Push == nil {
		return errPushUnsupported()
	}
	return c.explainPush(ctx, p.path, c.cfg.Push.Check(ctx, p.Registration))
}

// roomForPush refuses a webhook that a task has no room for, before the message
// it came with is delivered: that cannot be taken back.
func (c *call) roomForPush(ctx context.Context, taskID string, p *inlinePush) *fault {
	if p == nil {
		return nil
	}
	return c.explainPush(ctx, p.path, c.cfg.Push.Room(ctx, c.caller.scope(), taskID, p.ID))
}

// addPush registers the webhook that came with a message: for what is behind
// the event after, the newest one before the message.
func (c *call) addPush(ctx context.Context, taskID string, p *inlinePush, after int64) *fault {
	if p == nil {
		return nil
	}
	_, err := c.cfg.Push.Create(ctx, c.caller.scope(), taskID, p.Registration, after)
	return c.explainPush(ctx, p.path, err)
}

// pushTask finds the task whose webhooks are spoken of.
func (c *call) pushTask(ctx context.Context, id string) *fault {
	if c.cfg.Push == nil {
		return errPushUnsupported()
	}
	_, f := c.find(ctx, id, task.View{Inline: -1})
	return f
}

// createPush is CreateTaskPushNotificationConfig.
func (c *call) createPush(ctx context.Context, r pushRequest) (push.Hook, *fault) {
	if f := c.pushTask(ctx, r.taskID); f != nil {
		return push.Hook{}, f
	}
	h, err := c.cfg.Push.Create(ctx, c.caller.scope(), r.taskID, r.registration, push.FromNow)
	return h, c.explainPush(ctx, r.path, err)
}

// getPush is GetTaskPushNotificationConfig.
func (c *call) getPush(ctx context.Context, r pushRequest) (push.Hook, *fault) {
	all, f := c.listPush(ctx, r.taskID)
	if f != nil {
		return push.Hook{}, f
	}
	for _, h := range all {
		if h.ID == r.registration.ID {
			return h, nil
		}
	}
	return push.Hook{}, errTaskNotFound()
}

func (c *call) listPush(ctx context.Context, taskID string) ([]push.Hook, *fault) {
	if f := c.pushTask(ctx, taskID); f != nil {
		return nil, f
	}
	all, err := c.cfg.Push.List(ctx, c.caller.scope(), taskID)
	return all, c.explainPush(ctx, "", err)
}

// deletePush is DeleteTaskPushNotificationConfig.
func (c *call) deletePush(ctx context.Context, r pushRequest) *fault {
	if f := c.pushTask(ctx, r.taskID); f != nil {
		return f
	}
	return c.explainPush(ctx, "", c.cfg.Push.Delete(ctx, c.caller.scope(), r.taskID, r.registration.ID))
}

// explainPush maps the errors of Push to faults; path is where in the request
// the configuration stands.
func (c *call) explainPush(ctx context.Context, path string, err error) *fault {
	var refusal *push.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return errField(object{path: path}.at(refusal.Field), refusal.Rule)
	case errors.Is(err, push.ErrTooMany):
		f := errBusy("the task has as many push notification configurations as it may have")
		f.retryAfter = 0 // it does not pass by waiting
		return f
	case errors.Is(err, push.ErrFull):
		return errBusy("as many push notification configurations wait for their webhooks to take events as may")
	}
	return c.explain(ctx, "work on push notification configurations", err)
}

// pushPage is one page of ListTaskPushNotificationConfigs. The token is the
// serial of the last webhook before it.
func (o object) pushPage(all []push.Hook) (page []push.Hook, next string) {
	size := defaultPage
	if _, ok := o.get("pageSize"); ok {
		if size = o.count("pageSize"); size < 1 || size > maxPage {
			o.d.fail(o.at("pageSize"), "must be between 1 and %d", maxPage)
			return nil, ""
		}
	}
	var after int64
	if token, _ := o.text("pageToken"); token != "" {
		var err error
		if after, err = strconv.ParseInt(token, 10, 64); err != nil {
			o.d.fail(o.at("pageToken"), "is not a token of an earlier page")
			return nil, ""
		}
	}
	for _, h := range all { // oldest first, so by serial
		switch {
		case h.Serial <= after:
		case len(page) == size:
			return page, strconv.FormatInt(page[size-1].Serial, 10)
		default:
			page = append(page, h)
		}
	}
	return page, ""
}

func (c *call) pushList(ctx context.Context, o object, taskID string) (any, *fault) {
	all, f := c.listPush(ctx, taskID)
	if f != nil {
		return nil, f
	}
	page, next := o.pushPage(all)
	configs := make([]pushConfig, 0, len(page))
	for _, h := range page {
		configs = append(configs, newPushConfig(h))
	}
	return map[string]any{"configs": configs, "nextPageToken": next}, o.d.fault()
}

// rpcPush are the methods of A2A 1.0 about webhooks.
func rpcPush() map[string]rpcMethod {
	method := func(op func(c *call, ctx context.Context, o object, r pushRequest) (any, *fault)) rpcMethod {
		return rpcMethod{unary: func(c *call, ctx context.Context, params json.RawMessage) (any, *fault) {
			o := (&decoder{}).object("", params)
			r := o.pushConfig(c.version)
			if f := o.d.fault(); f != nil {
				return nil, f
			}
			return op(c, ctx, o, r)
		}}
	}
	return map[string]rpcMethod{
		"CreateTaskPushNotificationConfig": method(func(c *call, ctx context.Context, _ object, r pushRequest) (any, *fault) {
			h, f := c.createPush(ctx, r)
			return newPushConfig(h), f
		}),
		"GetTaskPushNotificationConfig": method(func(c *call, ctx context.Context, _ object, r pushRequest) (any, *fault) {
			h, f := c.getPush(ctx, r)
			return newPushConfig(h), f
		}),
		"ListTaskPushNotificationConfigs": method(func(c *call, ctx context.Context, o object, r pushRequest) (any, *fault) {
			return c.pushList(ctx, o, r.taskID)
		}),
		"DeleteTaskPushNotificationConfig": method(func(c *call, ctx context.Context, _ object, r pushRequest) (any, *fault) {
			return emptyObject(), c.deletePush(ctx, r)
		}),
	}
}

// routesPush adds webhooks in HTTP+JSON, below prefix for 0.3.
func (s *surface) routesPush(at func(path string, m methods), prefix string) {
	configs := prefix + "/tasks/{task:[^/:]+}/pushNotificationConfigs"
	at(configs, methods{http.MethodPost: s.rest(restPushCreate), http.MethodGet: s.rest(restPushList)})
	at(configs+"/{config:[^/]+}", methods{http.MethodGet: s.rest(restPushGet), http.MethodDelete: s.rest(restPushDelete)})
}

func restPushCreate(c *call, r *http.Request) (any, *fault) {
	raw, f := c.body(r, true)
	if f != nil {
		return nil, f
	}
	d := &decoder{}
	var req pushRequest
	if o := d.object("", raw); c.version == v03 {
		req = o.pushConfig03(httpJSON)
	} else {
		req = o.pushConfig(c.version)
	}
	if id := mux.Vars(r)["task"]; req.taskID == "" {
		req.taskID = id
	} else if req.taskID != id {
		d.fail("taskId", "must be that of the path, or absent")
	}
	if f := d.fault(); f != nil {
		return nil, f
	}
	h, f := c.createPush(r.Context(), req)
	return c.showPush(h), f
}

func restPushGet(c *call, r *http.Request) (any, *fault) {
	h, f := c.getPush(r.Context(), pathPush(r))
	return c.showPush(h), f
}

func restPushDelete(c *call, r *http.Request) (any, *fault) {
	return emptyObject(), c.deletePush(r.Context(), pathPush(r))
}

func restPushList(c *call, r *http.Request) (any, *fault) {
	d := &decoder{}
	o := queryObject(d, r, []string{"pageToken"}, []string{"pageSize"})
	if c.version == v03 {
		return c.pushList03(r.Context(), httpJSON, mux.Vars(r)["task"])
	}
	return c.pushList(r.Context(), o, mux.Vars(r)["task"])
}

func pathPush(r *http.Request) pushRequest {
	return pushRequest{taskID: mux.Vars(r)["task"], registration: push.Registration{ID: mux.Vars(r)["config"]}}
}

func (c *call) showPush(h push.Hook) any {
	if c.version == v03 {
		return httpJSON.pushConfig(h)
	}
	return newPushConfig(h)
}

// PushFormat makes what webhooks are sent: cfg is that of the surface. In 1.0
// every event is a StreamResponse; in 0.3 every change of status is the task.
func PushFormat(cfg Config) push.Format {
	cfg.fill()
	s := &surface{cfg: cfg}
	return func(ctx context.Context, v string, rec task.Record, e task.Event) (push.Body, error) {
		if version(v) == v03 {
			return s.pushBody03(ctx, rec, e)
		}
		b, err := json.Marshal(update(rec, e))
		return push.Body{Data: b, ContentType: mediaA2A}, err
	}
}
