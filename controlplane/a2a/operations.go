package a2a

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/share"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// find returns a task the caller may see. Another machine's looks like none at
// all, as somebody else's does to the store.
func (c *call) find(ctx context.Context, id string, v task.View) (task.Record, *fault) {
	if id == "" || len(id) > maxID {
		return task.Record{}, errTaskNotFound()
	}
	rec, err := c.cfg.Store.Task(ctx, c.caller.scope(), id, v)
	if err != nil {
		return task.Record{}, c.explain(ctx, "read a task", err)
	}
	if rec.InstanceID != c.agent.ID {
		return task.Record{}, errTaskNotFound()
	}
	return rec, nil
}

// submit makes a task of a message, or answers it with another message.
func (c *call) submit(ctx context.Context, req sendRequest) (engine.Result, *fault) {
	if f := c.checkPush(ctx, req.push); f != nil {
		return engine.Result{}, f
	}
	if req.message.TaskID != "" {
		rec, f := c.continueTask(ctx, req)
		return engine.Result{Task: rec}, f
	}
	if _, ok := req.message.Metadata[prompt.ResponseKey]; ok {
		return engine.Result{}, errField("message.taskId", "is required: the message answers a prompt, and that is of a task")
	}
	if f := c.roomForPush(ctx, "", req.push); f != nil {
		return engine.Result{}, f
	}
	if f := c.nameMessage(ctx, &req.message); f != nil {
		return engine.Result{}, f
	}
	res, err := c.cfg.Tasks.Submit(ctx, engine.Submission{
		Scope: c.caller.scope(), ContextID: req.message.ContextID, Message: req.message, Metadata: req.metadata,
		Machine: c.agent.machine(), Extensions: c.extensions, TaskID: c.flight.id(),
	})
	switch {
	case err != nil:
		return res, c.explain(ctx, "make a task", err)
	case res.Message != nil:
		return res, nil
	}
	c.flight.landed()
	return res, c.addPush(ctx, res.Task.ID, req.push, 0)
}

// refuseContinuation answers a message to an existing task that does not wait
// for one, with the reason that is true of that task.
func (c *call) refuseContinuation(ctx context.Context, m task.Message) *fault {
	rec, f := c.find(ctx, m.TaskID, task.View{Inline: -1})
	switch {
	case f != nil:
		return f
	case m.ContextID != "" && m.ContextID != rec.ContextID:
		return errField("message.contextId", "is not that of the task")
	case rec.Status.State.Terminal():
		return errUnsupported("the task has ended and takes no more messages: " + string(rec.Status.State))
	}
	return errUnsupported("the task does not wait for a message")
}

// send is SendMessage.
func (c *call) send(ctx context.Context, req sendRequest) (any, *fault) {
	res, f := c.submit(ctx, req)
	switch {
	case f != nil:
		return nil, f
	case res.Message != nil:
		return map[string]any{"message": *res.Message}, nil
	}
	return c.await(ctx, res.Task.ID, req)
}

// await answers with a task, once it has settled or at once.
func (c *call) await(ctx context.Context, id string, req sendRequest) (any, *fault) {
	v := task.View{History: req.history, Inline: c.cfg.Limits.Inline}
	if !req.immediately {
		c.settle(ctx, id)
	}
	rec, err := c.cfg.Store.Task(context.WithoutCancel(ctx), c.caller.scope(), id, v)
	if err != nil {
		return nil, c.explain(ctx, "read a task", err)
	}
	t, f := c.present(ctx, rec)
	return map[string]any{"task": t}, f
}

// settle waits until the task has ended or waits for somebody, but no longer
// than a client can be expected to.
func (c *call) settle(ctx context.Context, id string) {
	limit := time.NewTimer(c.cfg.Limits.Blocking)
	defer limit.Stop()
	for {
		changed := c.cfg.Tasks.Changed(id)
		rec, err := c.cfg.Store.Task(ctx, c.caller.scope(), id, task.View{Inline: -1})
		if err != nil || changed == nil || rec.Status.State.Terminal() || rec.Status.State.Interrupted() {
			return // an error is met again, and told, by who reads the task next
		}
		select {
		case <-changed:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		case <-c.cfg.Tasks.Done():
			return
		}
	}
}

// get is GetTask.
func (c *call) get(ctx context.Context, id string, history int) (any, *fault) {
	rec, f := c.find(ctx, id, task.View{History: history, Inline: c.cfg.Limits.Inline})
	if f != nil {
		return nil, f
	}
	return c.present(ctx, rec)
}

// cancel is CancelTask.
func (c *call) cancel(ctx context.Context, id string) (any, *fault) {
	if _, f := c.find(ctx, id, task.View{Inline: -1}); f != nil {
		return nil, f
	}
	wait, stop := context.WithTimeout(ctx, c.cfg.Limits.CancelWait)
	defer stop()
	rec, err := c.cfg.Tasks.Cancel(wait, c.caller.scope(), id)
	if errors.Is(err, task.ErrTerminal) {
		rec, f := c.find(ctx, id, task.View{Inline: -1})
		if f != nil {
			return nil, f
		}
		return nil, errNotCancelable(rec.Status.State)
	}
	if err != nil {
		return nil, c.explain(ctx, "cancel a task", err)
	}
	return c.get(ctx, rec.ID, -1)
}

// listRequest is a ListTasksRequest, decoded.
type listRequest struct {
	filter  task.Filter
	history int
	inline  bool
}

const (
	defaultPage = 50
	maxPage     = 100
)

// list is ListTasks. A page that holds as many bytes as one may ends before it
// has as many tasks as were asked for.
func (c *call) list(ctx context.Context, req listRequest) (any, *fault) {
	if f := c.enterList(ctx); f != nil {
		return nil, f
	}
	req.filter.InstanceID, req.filter.Bytes = c.agent.ID, c.cfg.Limits.Page
	v := task.View{History: req.history, Inline: -1}
	if req.inline {
		v.Inline = c.cfg.Limits.Inline
	}
	page, err := c.cfg.Store.List(ctx, c.caller.scope(), req.filter, v)
	if err != nil {
		return nil, c.explain(ctx, "list tasks", err)
	}
	tasks := make([]task.Task, 0, len(page.Tasks))
	for _, rec := range page.Tasks {
		t, f := c.present(ctx, rec)
		if f != nil {
			return nil, f
		}
		tasks = append(tasks, t)
	}
	return map[string]any{
		"tasks": tasks, "nextPageToken": encodePlace(page.Next), "pageSize": req.filter.Limit, "totalSize": page.Total,
	}, nil
}

// enterList waits until one more page may be held in memory, no longer than a
// client can be expected to. It is held until its reader has taken it: leave.
func (c *call) enterList(ctx context.Context) *fault {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Limits.Blocking)
	defer cancel()
	c.leaveList = c.lists.Enter(ctx, share.Owner{Tenant: c.caller.scope().TenantOrDefault(), Name: c.caller.Name})
	if c.leaveList == nil {
		return errBusy("as many lists are being read as may be")
	}
	return nil
}

// leave ends a call whose answer has been written.
func (c *call) leave() {
	if c.leaveList != nil {
		c.leaveList()
	}
}

func encodePlace(p *task.Place) string {
	if p == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.StatusMillis, 10) + " " + p.ID))
}

func decodePlace(token string) (*task.Place, bool) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) > maxID {
		return nil, false
	}
	for i, ch := range b {
		if ch == ' ' {
			ms, err := strconv.ParseInt(string(b[:i]), 10, 64)
			p := &task.Place{StatusMillis: ms, ID: string(b[i+1:])}
			// Decoding forgives what encoding never writes.
			if err != nil || encodePlace(p) != token {
				return nil, false
			}
			return p, true
		}
	}
	return nil, false
}

// decodeList checks the fields of a ListTasksRequest, which come from a query
// on one binding and from an object on the other.
func decodeList(o object) (listRequest, *fault) {
	req := listRequest{history: 0}
	if h := o.count("historyLength"); h >= 0 {
		req.history = h
	}
	req.inline, _ = o.flag("includeArtifacts")
	req.filter.ContextID = o.id("contextId")
	if s, _ := o.text("status"); s != "" {
		if req.filter.State = task.State(s); !req.filter.State.Valid() {
			o.d.fail(o.at("status"), "is not a state of a task, such as %s", task.Working)
		}
	}
	if s, _ := o.text("statusTimestampAfter"); s != "" {
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			o.d.fail(o.at("statusTimestampAfter"), "must be a timestamp such as 2026-01-01T00:00:00Z")
		}
		req.filter.Since = t
	}
	if token, _ := o.text("pageToken"); token != "" {
		var ok bool
		if req.filter.After, ok = decodePlace(token); !ok {
			o.d.fail(o.at("pageToken"), "is not a token of an earlier page")
		}
	}
	req.filter.Limit = defaultPage
	if _, ok := o.get("pageSize"); ok {
		if req.filter.Limit = o.count("pageSize"); req.filter.Limit < 1 || req.filter.Limit > maxPage {
			o.d.fail(o.at("pageSize"), "must be between 1 and %d", maxPage)
		}
	}
	return req, o.d.fault()
}

// present is the task as it goes out: with the metadata of runtime/v1 and
// with the way to what was left out.
func (c *call) present(ctx context.Context, rec task.Record) (task.Task, *fault) {
	t := rec.Task
	meta, err := c.runtimeMetadata()
	if err != nil {
		return t, c.internal(ctx, "encode metadata", err)
	}
	t.Metadata = t.Metadata.Merge(meta)
	for _, cut := range rec.Cuts {
		for i := range t.Artifacts {
			if a := &t.Artifacts[i]; a.ArtifactID == cut {
				if a.Metadata, err = a.Metadata.Set("url", c.url+"/tasks/"+t.ID+"/artifacts/"+a.ArtifactID); err != nil {
					return t, c.internal(ctx, "encode metadata", err)
				}
			}
		}
	}
	return t, nil
}

// metaHost names the machine's host in a task's metadata; not everybody sees it.
const metaHost = "runtime.host"

func (c *call) runtimeMetadata() (m task.Metadata, err error) {
	set := func(key string, v any) {
		if err == nil {
			m, err = m.Set(key, v)
		}
	}
	set("runtime.instance_id", c.agent.ID)
	set("runtime.kind", c.agent.Kind)
	if c.agent.Provider != "" {
		set("runtime.provider", c.agent.Provider)
	}
	if len(c.agent.Capabilities) > 0 {
		set("runtime.capabilities", c.agent.Capabilities)
	}
	if c.caller.SeesHost && c.agent.Host != "" {
		set(metaHost, c.agent.Host)
	}
	return m, err
}

// taskParams are the params of the methods that name a task.
func taskParams(o object) (id string, history int) {
	return o.id("id"), o.count("historyLength")
}

func emptyObject() json.RawMessage { return json.RawMessage(`{}`) }
