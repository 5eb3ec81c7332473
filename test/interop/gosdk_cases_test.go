package interop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	peer "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// goCases are the cases of one version on one binding. Later ones use what
// earlier ones made.
type goCases struct {
	*a2aclient.Client
	agent   string
	version string
	binding peer.TransportProtocol
	key     string // in the names of what is held and released

	done, held, told *peer.Task
	hook, late       *webhook
	crash            seen
	following        chan error
}

// extensionRequired is the one case without an activated extension.
const extensionRequired = "extension-required"

type namedCase struct {
	name string
	do   func(context.Context) error
}

func (c *goCases) list() []namedCase {
	return []namedCase{
		{"send", c.send},
		{"get", c.get},
		{"list", c.listTasks},
		{"errors", c.errors},
		{extensionRequired, c.extensionRequired},
		{"stream", c.stream},
		{"send-immediately", c.sendImmediately},
		{"subscribe", func(ctx context.Context) error { return c.follow(ctx, c.held.ID, "held", "") }},
		{"cancel", c.cancel},
		{"input-required", c.inputRequired},
		{"extended-card", c.extendedCard},
		{"push-create", c.pushCreate},
		{"push-get", c.pushGet},
		{"push-list", c.pushList},
		{"push-deliver", c.pushDeliver},
		{"push-delete", c.pushDelete},
	}
}

func words(text string) *peer.SendMessageRequest {
	return &peer.SendMessageRequest{Message: peer.NewMessage(peer.MessageRoleUser, peer.NewTextPart(text))}
}

// command is a message that runs a bounded command with the text for it.
func command(name, text string, more map[string]any) *peer.SendMessageRequest {
	envelope := map[string]any{
		"adapter": "sandbox-agent-runner", "mode": "plan", "timeout_seconds": 300,
		"command": []any{"node", ".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs", "--request", ".aiwg/ops/runs/" + name + ".json"},
	}
	maps.Copy(envelope, more)
	req := words(text)
	req.Message.Metadata = map[string]any{extensions.AdapterCommand: envelope}
	return req
}

// task sends a message and wants a task in one of the states.
func (c *goCases) task(ctx context.Context, req *peer.SendMessageRequest, states ...peer.TaskState) (*peer.Task, error) {
	sent, err := c.SendMessage(ctx, req)
	if err != nil {
		return nil, err
	}
	t, ok := sent.(*peer.Task)
	if !ok || !slices.Contains(states, t.Status.State) {
		return nil, wrong(fmt.Sprintf("a task that is one of %v", states), sent)
	}
	return t, nil
}

// hold starts a command that goes on until it is released.
func (c *goCases) hold(ctx context.Context, mark string, push *peer.PushConfig) (*peer.Task, error) {
	req := command("hold", c.key+mark, nil)
	req.Config = &peer.SendMessageConfig{ReturnImmediately: true, PushConfig: push}
	return c.task(ctx, req, peer.TaskStateSubmitted, peer.TaskStateWorking)
}

func (c *goCases) release(ctx context.Context, mark string) error {
	_, err := c.task(ctx, command("release", c.key+mark, nil), peer.TaskStateCompleted)
	return err
}

func (c *goCases) send(ctx context.Context) (err error) {
	req := words("hello")
	if c.done, err = c.task(ctx, req, peer.TaskStateCompleted); err != nil {
		return err
	}
	if output(c.done) != "hello" || c.done.Metadata["runtime.kind"] != "host" || len(c.done.History) != 1 ||
		c.done.History[0].ID != req.Message.ID || !strings.HasSuffix(c.agent, fmt.Sprint(c.done.Metadata["runtime.instance_id"])) {
		return wrong("an echo", c.done)
	}
	return nil
}

func (c *goCases) get(ctx context.Context) error {
	got, err := c.GetTask(ctx, &peer.GetTaskRequest{ID: c.done.ID})
	if err != nil {
		return err
	}
	if diff := cmp.Diff(c.done, got); diff != "" {
		return fmt.Errorf("the task is another one (-want +got):\n%s", diff)
	}
	none := 0
	got, err = c.GetTask(ctx, &peer.GetTaskRequest{ID: c.done.ID, HistoryLength: &none})
	if err != nil || len(got.History) != 0 || got.Status.Timestamp == nil {
		return wrong("no history but a timestamp", got, err)
	}
	return nil
}

func (c *goCases) listTasks(ctx context.Context) error {
	want := []peer.TaskID{c.done.ID}
	for _, text := range []string{"list 0", "list 1"} {
		req := words(text)
		req.Message.ContextID = c.done.ContextID
		t, err := c.task(ctx, req, peer.TaskStateCompleted)
		if err != nil {
			return err
		}
		want = append([]peer.TaskID{t.ID}, want...) // the newest first
	}
	var got []peer.TaskID
	for token := ""; ; {
		page, err := c.ListTasks(ctx, &peer.ListTasksRequest{ContextID: c.done.ContextID, PageSize: 1, PageToken: token})
		if err != nil {
			return err
		}
		// In 0.3, which has no method for it, HTTP+JSON counts none.
		if len(page.Tasks) != 1 || c.version == "1.0" && page.TotalSize != 3 || len(page.Tasks[0].Artifacts) != 0 {
			return wrong("a page of one", page)
		}
		got = append(got, page.Tasks[0].ID)
		if token = page.NextPageToken; token == "" {
			break
		}
	}
	working, err := c.ListTasks(ctx, &peer.ListTasksRequest{ContextID: c.done.ContextID, Status: peer.TaskStateWorking})
	if err != nil || len(working.Tasks) != 0 || !slices.Equal(got, want) {
		return wrong("all tasks and none that work", got, working, err)
	}
	return nil
}

func (c *goCases) errors(ctx context.Context) error {
	if _, err := c.GetTask(ctx, &peer.GetTaskRequest{ID: "no-such-task"}); !errors.Is(err, peer.ErrTaskNotFound) {
		return wrong("no such task", err)
	}
	if _, err := c.CancelTask(ctx, &peer.CancelTaskRequest{ID: c.done.ID}); !errors.Is(err, peer.ErrTaskNotCancelable) {
		return wrong("a task that cannot be canceled", err)
	}
	for e, err := range c.SubscribeToTask(ctx, &peer.SubscribeToTaskRequest{ID: c.done.ID}) {
		if !errors.Is(err, peer.ErrUnsupportedOperation) {
			return wrong("no stream of a task that has ended", e, err)
		}
	}
	return nil
}

// extensionRequired is called without the extension. runtime/v1 wants HTTP
// status 400 on every binding; this SDK reads the reason on HTTP+JSON only.
func (c *goCases) extensionRequired(ctx context.Context) error {
	_, err := c.SendMessage(ctx, words("x"))
	if err == nil || c.binding == peer.TransportProtocolHTTPJSON && !errors.Is(err, peer.ErrExtensionSupportRequired) {
		return wrong("the extension required", err)
	}
	return nil
}

func (c *goCases) stream(ctx context.Context) error {
	var s seen
	for e, err := range c.SendStreamingMessage(ctx, command("lines", "x", nil)) {
		if err != nil {
			return err
		}
		s.take(e)
	}
	return s.whole("one\ntwo\nthree\n")
}

func (c *goCases) sendImmediately(ctx context.Context) (err error) {
	c.held, err = c.hold(ctx, "held", nil)
	return err
}

// follow subscribes to a command that waits, releases it and wants all of it.
// The snapshot may be wanted to have its output so far.
func (c *goCases) follow(ctx context.Context, id peer.TaskID, mark, snapshot string) error {
	var s seen
	released := false
	for e, err := range c.SubscribeToTask(ctx, &peer.SubscribeToTaskRequest{ID: id}) {
		if err != nil {
			return err
		}
		if s.take(e); !released && snapshot != "" && s.text != snapshot {
			return wrong("what was there before", s.text)
		}
		if !released && strings.Contains(s.text, "begun") {
			released = true
			if err := c.release(ctx, mark); err != nil {
				return err
			}
		}
	}
	return s.whole("begun\nended\n")
}

func (c *goCases) cancel(ctx context.Context) error {
	t, err := c.hold(ctx, "cancelled", nil)
	if err != nil {
		return err
	}
	if t, err = c.CancelTask(ctx, &peer.CancelTaskRequest{ID: t.ID}); err != nil || t.Status.State != peer.TaskStateCanceled {
		return wrong("a canceled task", t, err)
	}
	return nil
}

func (c *goCases) inputRequired(ctx context.Context) error {
	ctx = activate(ctx, extensions.Runtime, extensions.AdapterCommand, extensions.HITLPrompt)
	t, err := c.task(ctx, command("ask", "x", map[string]any{"input_mode": "text-line"}), peer.TaskStateInputRequired)
	if err != nil {
		return err
	}
	prompt, _ := t.Status.Message.Metadata[extensions.HITLPrompt].(map[string]any)
	id, _ := prompt["prompt_id"].(string)
	if !strings.Contains(fmt.Sprint(prompt["prompt"]), "Continue? [y/N]") || id == "" {
		return wrong("the question in the envelope", prompt)
	}
	reply := func(id string) *peer.SendMessageRequest {
		req := words("yes")
		req.Message.TaskID, req.Message.ContextID = t.ID, t.ContextID
		req.Message.Metadata = map[string]any{"hitl_response_for": map[string]any{"prompt_id": id, "payload": map[string]any{"text": "y"}}}
		return req
	}
	if _, err := c.SendMessage(ctx, reply("6ba7b810-9dad-41d1-80b4-00c04fd430c8")); !conflict(err) {
		return wrong("a conflict: there is no such prompt", err)
	}
	var s seen
	for e, err := range c.SendStreamingMessage(ctx, reply(id)) {
		if err != nil {
			return err
		}
		s.take(e)
	}
	if !s.completed() || !strings.HasSuffix(s.text, "answer <y>\n") {
		return wrong("a completed task with the answer", s.states, s.text)
	}
	if _, err := c.SendMessage(ctx, reply(id)); !conflict(err) {
		return wrong("a conflict: it has been answered", err)
	}
	return nil
}

// conflict reports whether a reply was refused for not being to the prompt
// that waits.
func conflict(err error) bool {
	return err != nil && strings.Contains(err.Error(), "hitl_already_answered_or_unknown")
}

func (c *goCases) extendedCard(ctx context.Context) error {
	card, err := c.GetExtendedAgentCard(ctx, &peer.GetExtendedAgentCardRequest{})
	if err != nil {
		return err
	}
	if card.Name != "interop" || card.Skills[0].ID != "cases" ||
		!slices.ContainsFunc(card.Skills, func(s peer.AgentSkill) bool { return s.ID == "runner.echo" }) {
		return wrong("the card with the runners as skills", card)
	}
	return nil
}

// restartBegun follows a command that will outlive the daemon, up to its first
// output.
func (c *goCases) restartBegun(ctx context.Context) error {
	begun := make(chan struct{})
	c.following = make(chan error, 1)
	go func() {
		c.following <- func() error {
			for e, err := range c.SendStreamingMessage(ctx, command("hold", c.key+"restart", nil)) {
				if err != nil {
					return err
				}
				before := c.crash.text
				if c.crash.take(e); before == "" && c.crash.text != "" {
					close(begun)
				}
			}
			return nil
		}()
	}()
	select {
	case <-begun:
		return nil
	case err := <-c.following:
		c.following <- err // for restart
		return wrong("a stream that goes on", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// restart: the stream broke; the task goes on and can be followed again.
func (c *goCases) restart(ctx context.Context) error {
	select {
	case <-c.following: // with an error or without: how depends on the transport
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.crash.completed() {
		return wrong("a stream cut short", c.crash.states)
	}
	return c.follow(ctx, c.crash.id, "restart", "begun\n")
}
