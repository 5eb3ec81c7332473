package a2a

import (
	"context"
	"encoding/json"
	"errors"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// oldPushConfig is a TaskPushNotificationConfig of 0.3: named by taskId in its
// JSON schema, by name in its proto file.
type oldPushConfig struct {
	Name   string  `json:"name,omitempty"`
	TaskID string  `json:"taskId,omitempty"`
	Config oldHook `json:"pushNotificationConfig"`
}

type oldHook struct {
	ID             string   `json:"id"`
	URL            string   `json:"url"`
	Authentication *oldAuth `json:"authentication,omitempty"`
}

type oldAuth struct {
	Schemes []string `json:"schemes"`
}

// pushConfig is a webhook without its secrets, as in pushConfig of 1.0.
func (b binding) pushConfig(h push.Hook) oldPushConfig {
	old := oldPushConfig{Config: oldHook{ID: h.ID, URL: h.URL}}
	if b == jsonRPC {
		old.TaskID = h.TaskID
	} else {
		old.Name = "tasks/" + h.TaskID + "/pushNotificationConfigs/" + h.ID
	}
	if h.Scheme != "" {
		old.Config.Authentication = &oldAuth{Schemes: []string{h.Scheme}}
	}
	return old
}

// pushConfig03 reads the params of set and the body of Create: the
// configuration stands in pushNotificationConfig, which on HTTP+JSON may stand
// in config. One that is not wrapped, as in 1.0, is understood as well.
func (o object) pushConfig03(b binding) pushRequest {
	taskID := o.id("taskId")
	id := o.id("configId")
	if raw, ok := o.get("config"); ok && b == httpJSON {
		o = o.d.object(o.at("config"), raw)
	}
	if raw, ok := o.get("pushNotificationConfig"); ok {
		o = o.d.object(o.at("pushNotificationConfig"), raw)
	}
	r := o.hook03()
	if r.ID == "" {
		r.ID = id
	}
	return pushRequest{taskID: taskID, registration: r, path: o.path}
}

// hook03 reads a PushNotificationConfig.
func (o object) hook03() push.Registration {
	r := push.Registration{ID: o.id("id"), Version: string(v03)}
	r.URL, _ = o.text("url")
	token, _ := o.text("token")
	r.Token = push.Secret(token)
	if raw, ok := o.get("authentication"); ok {
		a := o.d.object(o.at("authentication"), raw)
		if schemes := a.texts("schemes"); len(schemes) > 0 {
			r.Scheme = schemes[0] // they are alternatives
		} else {
			r.Scheme, _ = a.text("scheme")
		}
		credentials, _ := a.text("credentials")
		r.Credentials = push.Secret(credentials)
	}
	return r
}

func (o object) inlinePush03(name string) *inlinePush {
	raw, ok := o.get(name)
	if !ok {
		return nil
	}
	return &inlinePush{o.d.object(o.at(name), raw).hook03(), o.at(name)}
}

func (c *call) pushList03(ctx context.Context, b binding, taskID string) (any, *fault) {
	all, f := c.listPush(ctx, taskID)
	if f != nil {
		return nil, f
	}
	configs := make([]oldPushConfig, 0, len(all))
	for _, h := range all {
		configs = append(configs, b.pushConfig(h))
	}
	if b == jsonRPC {
		return configs, nil
	}
	return map[string]any{"configs": configs, "nextPageToken": ""}, nil
}

// rpcPush03 are the methods of A2A 0.3 about webhooks. get, list and delete
// name the task by id.
func rpcPush03() map[string]rpcMethod {
	method := func(op func(c *call, ctx context.Context, r pushRequest) (any, *fault)) rpcMethod {
		return rpcMethod{unary: func(c *call, ctx context.Context, params json.RawMessage) (any, *fault) {
			o := (&decoder{}).object("", params)
			r := pushRequest{taskID: o.id("id")}
			r.registration.ID = o.id("pushNotificationConfigId")
			if f := o.d.fault(); f != nil {
				return nil, f
			}
			return op(c, ctx, r)
		}}
	}
	return map[string]rpcMethod{
		"tasks/pushNotificationConfig/set": {unary: func(c *call, ctx context.Context, params json.RawMessage) (any, *fault) {
			o := (&decoder{}).object("", params)
			r := o.pushConfig03(jsonRPC)
			if f := o.d.fault(); f != nil {
				return nil, f
			}
			h, f := c.createPush(ctx, r)
			return jsonRPC.pushConfig(h), f
		}},
		"tasks/pushNotificationConfig/get": method(func(c *call, ctx context.Context, r pushRequest) (any, *fault) {
			h, f := c.getPush03(ctx, r)
			return jsonRPC.pushConfig(h), f
		}),
		"tasks/pushNotificationConfig/list": method(func(c *call, ctx context.Context, r pushRequest) (any, *fault) {
			return c.pushList03(ctx, jsonRPC, r.taskID)
		}),
		"tasks/pushNotificationConfig/delete": method(func(c *call, ctx context.Context, r pushRequest) (any, *fault) {
			return json.RawMessage("null"), c.deletePush(ctx, r)
		}),
	}
}

// getPush03 may leave the configuration unnamed; then it is the first.
func (c *call) getPush03(ctx context.Context, r pushRequest) (push.Hook, *fault) {
	if r.registration.ID != "" {
		return c.getPush(ctx, r)
	}
	all, f := c.listPush(ctx, r.taskID)
	if f == nil && len(all) == 0 {
		f = errTaskNotFound()
	}
	if f != nil {
		return push.Hook{}, f
	}
	return all[0], nil
}

// pushBody03 is the task at a change of its status; other events are not told
// in 0.3. The task is read anew for its artifacts, but has the status of the
// event: each is told once and in order.
func (s *surface) pushBody03(ctx context.Context, rec task.Record, e task.Event) (push.Body, error) {
	if e.Status == nil {
		return push.Body{}, nil
	}
	agent, err := s.cfg.Instances.Instance(ctx, rec.InstanceID)
	if errors.Is(err, ErrUnknownInstance) {
		agent = Agent{ID: rec.InstanceID} // removed; its tasks still end
	} else if err != nil {
		return push.Body{}, err
	}
	rec, err = s.cfg.Store.Task(ctx, task.System(), rec.ID, task.View{Inline: s.cfg.Limits.Inline})
	if err != nil {
		return push.Body{}, err
	}
	rec.Status = e.Status.Status
	c := &call{surface: s, agent: agent, version: v03, url: s.base(agent)}
	t, f := c.present(ctx, rec)
	if f != nil {
		return push.Body{}, errors.New(f.message)
	}
	b, err := json.Marshal(jsonRPC.task(t))
	return push.Body{Data: b, ContentType: "application/json"}, err
}
